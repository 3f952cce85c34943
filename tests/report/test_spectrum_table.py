from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from rich.console import Console
from spectrum_results import (
    failed_task,
    make_advice,
    make_document,
    make_features,
    make_modes,
    make_rank,
    make_spectrum,
    make_task,
    make_verdict,
)

from clcurv.report.document import to_json
from clcurv.report.gate import evaluate, parse_gate
from clcurv.report.reader import load_document
from clcurv.report.render import print_table, render_annotations, render_github, render_markdown
from clcurv.report.spectrum_document import SpectrumDocument
from clcurv.report.spectrum_table import sparklines

EVIL = "a[/red].\x1b]0;pwned\x07|`x`<img"


def show(doc, width=100, encoding="utf-8"):
    raw = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="replace")
    console = Console(file=raw, width=width, color_system=None, markup=False, highlight=False)
    print_table(doc, console)
    raw.flush()
    return raw.buffer.getvalue().decode(encoding)


def sample(**changes):
    return make_document(**changes)


def head_of(text):
    return next(line for line in text.splitlines() if " task " in line and "eff. rank" in line)


def test_one_row_per_task_with_its_numbers():
    text = show(sample(), 160)
    row = next(line for line in text.splitlines() if line.split()[:2] == ["3", "task-3"])
    for shown in (
        "ckpt/task-2.pt", "512", "2.30", "52.0 %", "10.0", "-0.500", "± 0.50", "1.0 % (0.90–1.1)",
        "0.80 % (0.72–0.88)", "18.0 %", "4.50",
    ):  # fmt: skip
        assert shown in row
    assert "lr 0.0100, 2000 steps, γ 0.1" in text
    assert "verdict   collapsed" in text
    assert "weight decay 0.001, effective-rank step 0.01 every 10 batches on 2 layers" in text
    assert "the step is 3 % of the task gradient" in text


@pytest.mark.parametrize("width", [40, 50, 60, 72, 80, 96, 100, 120, 160, 240])
def test_every_width_keeps_the_row_whole_and_the_essentials(width):
    text = show(sample(), width)
    assert max(cell_len(line) for line in text.splitlines()) <= width
    head = head_of(text)
    assert "ε-rank fast" in head
    for n in (1, 2, 3):
        assert any(line.split()[:2] == [str(n), f"task-{n}"] for line in text.splitlines())
    assert ("spectrum" in head) == (width >= 50)
    assert ("checkpoint" in head) == (width >= 160)
    assert text.count("ε-rank fast") == 1


def test_errors_over_the_data_where_there_is_room():
    doc = make_document(tasks=[make_task(1, share=0.226, share_stderr=0.031, erank_stderr=0.84)])
    wide = show(doc, 160)
    assert "22.6 ± 3.1 %" in wide
    assert "22.50 ± 0.84" in wide
    (narrow,) = [line for line in show(doc, 50).splitlines() if line.split()[:1] == ["1"]]
    assert "22.5" in narrow
    assert "±" not in narrow
    assert "22.6 ± 3.1 %" in render_markdown(doc)
    assert "22.50 ± 0.84" in render_markdown(doc)
    tiny = make_document(tasks=[make_task(1, share=2.3e-7, share_stderr=1.4e-7)])
    assert "<0.01 %" in show(tiny, 160)


def test_columns_without_content_are_left_out():
    tasks = [
        make_task(i, spectrum=make_spectrum(fast=False), fast_modes=None, accuracy=None,
                  checkpoint="model.pt")
        for i in (1, 2)
    ]  # fmt: skip
    head = head_of(show(make_document(tasks=tasks, lr=None, steps=None), 200))
    for gone in ("fast", "acc.", "checkpoint"):
        assert gone not in head
    assert "ε-rank rel." in head


def test_sparklines_share_one_axis_and_show_where_the_eigenvalues_are():
    doc = make_document(
        tasks=[
            make_task(1, spectrum=make_spectrum(0.3, top=10.0)),
            make_task(2, spectrum=make_spectrum(0.3, top=0.1, bottom=-0.001)),
            failed_task(3),
        ]
    )
    lines, caption = sparklines(doc, 12)
    assert set(lines) == {1, 2}
    assert all(len(x) == 12 for x in lines.values())
    assert "█" in lines[1]  # the bulk
    assert lines[1][-1] != " "
    assert lines[2][-3:] == "   "  # nothing near the other task's top
    assert lines[1][0] != " "
    assert lines[2][0] == " "  # nor at its negative end
    assert "from -0.500 to 10.0" in caption


def test_a_flat_spectrum_has_no_sparkline():
    nothing = make_spectrum(lambda_max=0.0, lambda_min=0.0, quadrature=())
    doc = make_document(tasks=[make_task(1, spectrum=nothing)])
    assert sparklines(doc, 10) == ({}, "")
    assert "task-1" in show(doc)


def test_ascii_terminals_get_ascii_sparklines():
    text = show(sample(), 100, "latin-1")
    assert "@" in text
    assert "█" not in text


def test_what_is_not_resolved_is_marked():
    open_ = make_spectrum(0.02, rank_fast=make_rank(0.02, status="not-resolved", reason="m/2"))
    doc = make_document(tasks=[make_task(1, spectrum=open_, fast_modes=make_modes(0.4))])
    assert "2.0 %?" in show(doc, 60)
    assert "?: not resolved" in show(doc, 100)
    assert "2.0 % not-resolved" in show(doc, 160)
    assert "?: not resolved" not in show(sample(), 100)


def test_an_upper_bound_is_marked():
    bound = make_spectrum(lambda_min_converged=False)
    assert "≤-0.500" in show(make_document(tasks=[make_task(1, spectrum=bound)]), 160)


def test_failed_tasks_partial_reports_and_verdicts():
    doc = make_document(
        tasks=[make_task(1), failed_task(2, "loss is NaN")], document={"complete": False}
    )
    gate = parse_gate("verdict==collapsed", document=SpectrumDocument)
    text = show(doc.with_verdict(evaluate([gate], doc)), 120)
    row = next(line for line in text.splitlines() if line.split()[:2] == ["2", "task-2"])
    assert "failed" in row
    assert "partial report: task 2 failed" in text
    assert "the run was interrupted" in show(make_document(document={"complete": False}), 120)
    assert "task 2 (task-2) failed: loss is NaN" in text
    assert "verdict==collapsed: inconclusive" in text


def test_the_reference_shows_its_numbers():
    other = make_task(1, 0.09, checkpoint="init.pt", features=(make_features(50.0),))
    doc = make_document(reference=other, reference_kind="checkpoint")
    assert "init.pt, ε-rank fast 9.0 % (8.1–9.9)" in " ".join(show(doc, 200).split())
    gone = make_document(reference=failed_task(1), reference_kind="fresh")
    assert "which failed: NaN in batch 3" in show(gone, 200)


def test_nothing_to_recommend():
    advice = make_advice(weight_decay=0.0, er_lr=0.0, er_every=0, lam=0.0, beta=0.0)
    doc = make_document(verdict=make_verdict("healthy", "all held"), document={"advice": advice})
    assert "none needed" in show(doc)
    assert "L2-ER" not in show(make_document(document={"advice": None}))


def evil():
    return make_document(
        tasks=[make_task(1, name=EVIL, checkpoint=EVIL), failed_task(2, EVIL)],
        verdict=make_verdict("inconclusive", EVIL),
        document={
            "advice": make_advice(derivation=EVIL, er_layers=(EVIL,)),
            "warnings": [EVIL],
            "stream_spec": EVIL,
        },
    )


def test_hostile_names_do_not_act_in_a_terminal():
    raw = io.StringIO()
    gate = parse_gate("verdict==collapsed", document=SpectrumDocument)
    doc = evil()
    doc = doc.with_verdict(evaluate([gate], doc))
    assert EVIL in doc.gates.gates[0].reason
    print_table(doc, Console(file=raw, width=400, force_terminal=True, color_system="truecolor"))
    assert "\x1b]0;" not in raw.getvalue()
    assert "\x07" not in raw.getvalue()
    assert "a[/red].\\x1b]0;pwned\\x07|`x`<img" in raw.getvalue()


def test_hostile_names_do_not_act_in_markdown():
    text = render_markdown(evil())
    assert "\x1b" not in text
    span = "``a[/red].\\x1b]0;pwned\\x07\\|`x`<img``"
    assert span in text
    assert "<img" not in text.replace(span, "")
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    unescaped = [line.replace("\\|", "").count("|") for line in rows]
    assert len(set(unescaped)) == 1
    assert not any(line.startswith("::") for line in text.splitlines())


def test_markdown_and_annotations():
    doc = sample()
    gate = parse_gate("verdict==collapsed", document=SpectrumDocument)
    doc = doc.with_verdict(evaluate([gate], doc))
    text = render_markdown(doc)
    assert text.startswith("### clcurv spectrum\n")
    assert "| 3 | `task-3` | `ckpt/task-2.pt` | 512 | 2.30 | 52.0 % |" in text
    assert "**collapsed**" in text
    assert "| `verdict==collapsed` | FAILED |" in text
    lines = render_annotations(doc).splitlines()
    assert lines[0].startswith("::error title=clcurv verdict==collapsed::fail")
    assert lines[-1].startswith("::notice title=clcurv::collapsed: three measures")
    assert render_github(doc).startswith("::error")


def test_saved_reports_show_the_same():
    doc = sample()
    again = load_document(io.StringIO(to_json(doc)), SpectrumDocument)
    assert show(again, 200) == show(doc, 200)
