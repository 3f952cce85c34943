"""The report of `clcurv relimp` as a table, Markdown, annotations and a figure."""

from __future__ import annotations

import io
import re
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from relimp_results import make_document, make_layer, make_search, make_side
from rich.console import Console

from clcurv.errors import UsageError
from clcurv.report.gate import evaluate, parse_gate
from clcurv.report.relimp_document import RelimpDocument
from clcurv.report.relimp_plots import _figure
from clcurv.report.relimp_summary import trial_text
from clcurv.report.render import (
    print_table,
    render_annotations,
    render_github,
    render_markdown,
    render_plot,
)

EVIL = "a[/red].\x1b]0;pwned\x07|`x`<img"


def show(doc, width=120):
    out = io.StringIO()
    print_table(doc, Console(file=out, width=width))
    return out.getvalue()


def row(text, name):
    return next(line for line in text.splitlines() if line.split()[:1] == [name])


def test_a_row_for_every_layer() -> None:
    text = show(make_document(), 160)
    cells = row(text, "blocks.1").split()
    assert cells[1:3] == ["1", "3.00k"]
    assert "20.0 %" in row(text, "blocks.1")
    assert "0.50 (0.40 to 0.60)" in row(text, "blocks.0")
    assert "30.0 % (20.0–40.0)" in row(text, "blocks.0")
    assert "0.05 0.40 0.95" in row(text, "blocks.0")
    assert "12.0" in row(text, "blocks.0")
    assert "head (head)" in text


def test_the_facts_around_it() -> None:
    text = " ".join(show(make_document(), 200).split())
    assert "old.npz: 400 samples, accuracy 90.0 % (chance 10.0 %), mean loss 0.300" in text
    assert "new.npz: 400 samples, accuracy 85.0 %" in text
    assert "mean loss 0.300 after the look-ahead" in text
    assert "sgd, lr 0.0100, momentum 0.9, 50 steps of 32, stopped early, 2 new classes" in text
    assert "validation accuracy 20.0 % → 85.0 %" in text
    assert "MAS, per-sample, of cross-entropy" in text
    assert "30.0 % protected, 25.0 % shared, 45.0 % free" in text
    assert "rank correlation 0.500 (95 % 0.450 to 0.550), top tenths overlap 30.0 %" in text
    assert "0.400 on average (0.8 × mean α_rel, by tensor); λ_up up to 3.00 above" in text
    assert "8.00 (not searched), at most 8.33 at lr 0.0100" in text


@pytest.mark.parametrize("width", [40, 60, 80, 100, 132, 200])
def test_no_line_is_wider_than_the_terminal(width) -> None:
    doc = make_document(document={"search": make_search()})
    text = show(doc, width)
    assert max(map(len, text.splitlines())) <= width
    assert "60.0 %" in row(text, "blocks.0")


def test_the_bar_has_the_parts_of_the_layer() -> None:
    bar = re.search("[█▓░]+", row(show(make_document(), 120), "blocks.1"))[0]
    assert (bar.count("█"), bar.count("▓"), bar.count("░")) == (2, 4, 6)


def test_the_past_alone_and_a_partial_report() -> None:
    text = show(make_document(past_only=True))
    assert "0.500 ± 0.050" in row(text, "blocks.0")
    assert "protected" not in text
    assert "the past is measured" in text
    partial = make_document(past_only=True, document={"complete": False})
    assert "the run was interrupted" in show(partial)
    assert "### clcurv relimp" in render_markdown(partial)


def test_the_trials_of_the_search() -> None:
    text = show(make_document(document={"search": make_search()}))
    lines = {" ".join(line.split()[:2]): line for line in text.splitlines()}
    assert lines["reference 1"].rstrip().endswith("reference")
    assert lines["uniform 1"].rstrip().endswith("too low")
    assert lines["lambda-down 1"].rstrip().endswith("chosen")
    assert "diverged" in lines["lambda-down 2"]


def test_a_trial_in_a_line() -> None:
    trials = make_search().trials
    assert trial_text(trials[0]) == "search: reference 1: lr 0.0100: score 0.850 (1.5 s)"
    assert ", λ 7.20: score 0.600, too low" in trial_text(trials[1])
    assert ", λ_down 1.00, m 1: score 0.800, acceptable" in trial_text(trials[3])
    assert trial_text(trials[4]).endswith("diverged")


def evil():
    return make_document(
        [make_layer(EVIL, 0), make_layer("head", 1, is_head=True)],
        past=make_side(),
        document={"past_info": {"path": EVIL}, "warnings": [EVIL], "model_path": EVIL},
    )


def test_hostile_names_do_not_act() -> None:
    raw = io.StringIO()
    print_table(evil(), Console(file=raw, width=300, force_terminal=True))
    assert "\x1b]0;" not in raw.getvalue()
    assert "a[/red].\\x1b]0;pwned\\x07" in raw.getvalue()
    text = render_markdown(evil())
    span = "``a[/red].\\x1b]0;pwned\\x07\\|`x`<img``"
    assert span in text
    assert "<img" not in text.replace(span, "")
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len({line.replace("\\|", "").count("|") for line in rows}) == 1


def test_markdown_and_annotations() -> None:
    gate = parse_gate("shares.shared>0.2", document=RelimpDocument)
    doc = make_document(document={"search": make_search(), "warnings": ["mind this"]})
    doc = doc.with_verdict(evaluate([gate], doc))
    text = render_markdown(doc)
    assert "| `blocks.0` | 0 | 1.00k | 60.0 % | 10.0 % | 30.0 % |" in text
    assert "| `shares.shared>0.2` | FAILED |" in text
    assert "| lambda-down 1 | 0.0100 |" in text
    lines = render_annotations(doc).splitlines()
    assert lines[0].startswith("::error title=clcurv shares.shared>0.2::fail")
    assert lines[1] == "::warning title=clcurv::mind this"
    assert lines[-1].startswith("::notice title=clcurv::penalty with λ")
    assert render_github(doc).startswith("::error")


def test_the_figure_shows_density_shares_and_agreement() -> None:
    figure = _figure(make_document())
    assert figure.axes[0].collections[0].get_array().sum() == 4000
    labels = {t.get_text() for ax in figure.axes for t in ax.get_xticklabels()}
    assert {"blocks.0", "blocks.1", "head (head)"} <= labels
    heights = np.array([p.get_height() for ax in figure.axes for p in ax.patches])
    assert {60.0, 10.0, 30.0, 20.0, 50.0} <= set(heights.round(6))
    titles = figure.get_suptitle()
    assert "30.0 % protected" in titles
    assert "rank correlation 0.500" in titles


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_figures_are_written(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    render_plot(make_document(), path)
    first = path.read_bytes()
    render_plot(make_document(), path)
    assert path.read_bytes() == first
    if suffix == "png":
        assert matplotlib.image.imread(path).std() > 0.05


def test_figures_of_little(tmp_path: Path) -> None:
    render_plot(make_document(past_only=True), tmp_path / "past.svg")
    texts = [t.get_text() for ax in _figure(make_document(past_only=True)).axes for t in ax.texts]
    assert texts == ["no density: only the past was measured"]
    render_plot(evil(), tmp_path / "evil.svg")
    render_plot(make_document(document={"density": None}), tmp_path / "none.svg")
    layers = [make_layer(f"blocks.{i}", i) for i in range(90)]
    render_plot(make_document(layers), tmp_path / "many.png")
    with pytest.raises(UsageError, match="suffix"):
        render_plot(make_document(), tmp_path / "a.txt")
