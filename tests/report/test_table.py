from __future__ import annotations

import io

import pytest
from kappa_results import make_document, make_layer
from rich.console import Console

from clcurv.diagnostics.kappa import CrossCheck
from clcurv.report.gate import evaluate, parse_gate
from clcurv.report.reader import load_document
from clcurv.report.render import print_table, render_annotations, render_github, render_markdown

EVIL = "blocks[/red].\x1b]0;pwned\x07|`x`<img src=x>\n::error::$x$"


def show(doc, width=120, encoding="utf-8"):
    raw = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=raw, width=width, color_system=None)
    print_table(doc, console)
    raw.flush()
    return raw.buffer.getvalue().decode(encoding)


def sample(**changes):
    s = [1000.0, 100.0, 10.0, 1.0]
    return make_document(
        s, stderr=[0.1 * x for x in s], head=50.0,
        kappa_low=800.0, kappa_high=1250.0, p90_p10=420.0, **changes,
    )  # fmt: skip


def test_shows_every_column_and_fact():
    text = show(sample(), width=170)
    head = next(line for line in text.splitlines() if "layer" in line and "lr_scale" in line)
    for column in (
        "layer",
        "depth",
        "params",
        "std. error",
        "log s",
        "λ_min",
        "steps",
        "λ",
        "reason",
    ):
        assert column in head
    assert "1000 ± 100" in text
    assert "1.00e+03 (95 % 800 to 1250), p90/p10 420" in text or "1000 (95 % 800 to 1250)" in text
    assert "early (s falls with depth), γ 0.100" in text
    assert "at most 93.7 %" in text  # 1 − 2√1000/1001
    assert "Protect early layers" in text
    assert "head (head)" in text


def test_both_numbers_of_the_cross_check():
    checks = (CrossCheck("a", 2.5, 2.5006, 0.0002), CrossCheck("b", 1.0, 1.05, 0.05))
    doc = sample(cross_check=checks)
    said = "a 2.5, PyHessian 2.501 (0.02 % apart); b 1, PyHessian 1.05 (5.00 % apart)"
    assert said in show(doc, width=170)
    assert "a 2.5, PyHessian 2.501" in render_markdown(doc)


def test_a_bound_without_a_trend_is_no_advice():
    flat = make_document([10.0, 1.0, 1.0, 10.0])
    assert flat.schedule.direction == "flat"
    assert "without a trend over depth no schedule here saves it" in show(flat, width=170)
    assert "no schedule here" not in show(sample(), width=170)


@pytest.mark.parametrize("name", ["bert.encoder.layer", "backbone.encoder.layer"])
def test_long_names_stay_on_one_line_at_80_columns(name):
    layers = [make_layer(f"{name}.{i}", i, 10.0**-i, s_stderr=0.1 * 10.0**-i) for i in range(4)]
    text = show(make_document(layers=layers), width=80)
    assert max(map(len, text.splitlines())) <= 80
    for i in range(4):
        row = next(x for x in text.splitlines() if x.strip().startswith(f"{name}.{i} "))
        assert "±" in row
        assert "█" in row


def test_bars_are_logarithmic():
    lines = show(sample(), width=100).splitlines()
    bars = {n: next(x for x in lines if f"blocks.{n} " in x).count("█") for n in range(4)}
    # 16 cells for 1000 and 1 for 1: 5 more for each factor of ten
    assert bars == {0: 16, 1: 11, 2: 6, 3: 1}


@pytest.mark.parametrize("width", [50, 60, 72, 80, 100, 160])
def test_fits_the_terminal_and_keeps_what_matters(width):
    text = show(sample(), width=width)
    assert max(map(len, text.splitlines())) <= width
    head = next(line for line in text.splitlines() if "lr_scale" in line)
    assert "layer" in head
    assert " s ±" in head
    assert ("reason" in head) == (width >= 150)
    for n in range(4):
        row = next(line for line in text.splitlines() if line.strip().startswith(f"blocks.{n}"))
        assert "±" in row


def test_ascii_terminals_get_ascii_bars():
    raw = io.TextIOWrapper(io.BytesIO(), encoding="latin-1", errors="replace")
    print_table(sample(), Console(file=raw, width=100, color_system=None))
    raw.flush()
    assert "################" in raw.buffer.getvalue().decode("latin-1")


def evil():
    return make_document(
        layers=[make_layer(EVIL, 0, 2.0, reason=EVIL), make_layer("b", 1, 1.0)],
        status="refused", kappa=None, reason=EVIL,
        document={"warnings": [EVIL], "data_path": EVIL},
    )  # fmt: skip


def test_hostile_names_do_not_act_in_a_terminal():
    raw = io.StringIO()
    print_table(evil(), Console(file=raw, width=400, force_terminal=True, color_system="truecolor"))
    text = raw.getvalue()
    assert "\x1b]0;" not in text
    assert "\x07" not in text
    assert "blocks[/red].\\x1b]0;pwned\\x07|`x`<img" in text


def test_saved_reports_show_the_same():
    from clcurv.report.document import to_json

    doc = sample()
    again = load_document(io.StringIO(to_json(doc)))
    assert show(again) == show(doc)


def test_layers_without_s_and_warnings_and_verdicts():
    doc = make_document(
        layers=[
            make_layer("a", 0, 2.0, s_stderr=0.0),
            make_layer("b", 1, None, status="unused", reason="no gradient reaches it"),
            make_layer("c", 2, 3.0, status="unconverged", converged=False),
        ]
    )
    doc = doc.with_verdict(
        evaluate([parse_gate("groups[0].s>0.5"), parse_gate("groups[0].s>5")], doc)
    )
    text = show(doc)
    assert "unused" in text
    assert "no gradient reaches it" in text
    assert "3.00 unconverged" in text
    assert "groups[0].s>0.5: FAILED" in text
    assert "groups[0].s>5: holds" in text


def test_markdown_has_one_row_a_layer_and_nothing_acts():
    text = render_markdown(evil())
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 2
    # cells are split at unescaped pipes only
    import re

    assert {len(re.split(r"(?<!\\)\|", row)) for row in rows} == {11}
    assert "<img" not in re.sub(r"(`+).*?\1", "", text)
    assert not any(line.startswith("::") for line in text.splitlines())
    assert "\x1b" not in text


def test_annotations_escape_and_rank():
    doc = sample(document={"warnings": ["50% of, it: x\nsecond"]})
    doc = doc.with_verdict(evaluate([parse_gate("kappa>100"), parse_gate("kappa>1000")], doc))
    lines = render_annotations(doc).splitlines()
    assert lines[0].startswith("::error title=clcurv kappa>100::fail")
    assert lines[1].startswith("::warning title=clcurv kappa>1000::inconclusive")
    assert "::warning title=clcurv::50%25 of, it: x\\x0asecond" in lines
    assert all(line.startswith("::") for line in lines)
    both = render_github(doc)
    assert both.startswith("::error")
    assert "### clcurv kappa" in both


def test_annotation_titles_escape_separators():
    doc = sample()
    gate = parse_gate("groups['a,b:c'].s>1")
    line = render_annotations(doc.with_verdict(evaluate([gate], doc))).splitlines()[0]
    assert "title=clcurv groups['a%2Cb%3Ac'].s>1::" in line
