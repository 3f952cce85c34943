from __future__ import annotations

from xml.etree import ElementTree

import matplotlib
import pytest
from spectrum_results import (
    failed_task,
    make_document,
    make_rank,
    make_spectrum,
    make_task,
)

from clcurv.errors import UsageError
from clcurv.report.spectrum_plots import plot_spectrum

EVIL = "$\\frac$ <b>--\x1b[31m"
MAGIC = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


@pytest.mark.parametrize("kind", MAGIC)
def test_writes_each_kind_the_same_every_time(tmp_path, kind):
    for name in ("a", "b"):
        plot_spectrum(make_document(), tmp_path / f"{name}.{kind}")
    first = (tmp_path / f"a.{kind}").read_bytes()
    assert first.startswith(MAGIC[kind])
    if kind == "png":
        assert first == (tmp_path / "b.png").read_bytes()


def text_of(doc, tmp_path):
    with matplotlib.rc_context():
        plot_spectrum(doc, tmp_path / "a.svg")
    return (tmp_path / "a.svg").read_text()


def test_states_the_smoothing_the_tasks_and_the_verdict(tmp_path):
    text = text_of(make_document(), tmp_path)
    # matplotlib draws glyphs as paths and leaves the text as a comment
    for said in ("σ = 0.15", "task-3", "collapsed", "ε-rank (% of P)", "effective rank",
                 "residual in fast modes", "fast →"):  # fmt: skip
        assert said in text
    assert "partial" not in text


def test_long_streams_draw_some_ridges_and_say_so(tmp_path):
    doc = make_document(tasks=[make_task(i) for i in range(1, 101)])
    text = text_of(doc, tmp_path)
    assert "30 of 100 tasks" in text
    assert "100  task-100" in text


def test_hostile_names_partial_failed_unresolved_and_without_training(tmp_path):
    doc = make_document(
        lr=None,
        steps=None,
        tasks=[
            make_task(
                1, name=EVIL, fast_modes=None, accuracy=None,
                spectrum=make_spectrum(fast=False, rank_relative=make_rank(status="not-resolved")),
            ),
            failed_task(2),
        ],
        reference=make_task(1, 0.09),
        reference_kind="fresh",
        document={"complete": False, "stream_spec": EVIL},
    )  # fmt: skip
    text = text_of(doc, tmp_path)
    assert "partial report: task 2 failed" in text
    assert "dashed: reference" in text
    assert "not resolved" in text
    assert "residual in fast modes" not in text
    assert "\x1b" not in text
    ElementTree.fromstring(text)  # no name breaks out of its comment


def test_nothing_measured_still_gives_a_figure(tmp_path):
    plot_spectrum(make_document(tasks=[failed_task(1)]), tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_other_suffixes_are_refused(tmp_path):
    with pytest.raises(UsageError, match="suffix"):
        plot_spectrum(make_document(), tmp_path / "a.jpg")
    assert list(tmp_path.iterdir()) == []
