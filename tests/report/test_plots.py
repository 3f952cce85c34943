from __future__ import annotations

import re

import numpy as np
import pytest
from kappa_results import make_document, make_layer

from clcurv.errors import UsageError
from clcurv.report.plots import plot_kappa


def sample(n=6, **changes):
    s = [2.0 ** (n - i) for i in range(n)]
    return make_document(s, stderr=[0.1 * x for x in s], head=9.0, **changes)


@pytest.mark.parametrize(
    ("suffix", "magic"),
    [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF"), ("PNG", b"\x89PNG")],
)  # fmt: skip
def test_formats_by_suffix(tmp_path, suffix, magic):
    path = tmp_path / f"k.{suffix}"
    plot_kappa(sample(), path)
    assert path.read_bytes().startswith(magic)
    assert [x.name for x in tmp_path.iterdir()] == [path.name]


def test_svg_shows_the_layers_and_is_reproducible(tmp_path, monkeypatch):
    import matplotlib as mpl

    monkeypatch.setitem(mpl.rcParamsDefault, "svg.fonttype", "none")  # text stays text
    plot_kappa(sample(), tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    for part in ("blocks.0", "blocks.5", "head", "γ 0.500", "direction early", "timm:vit"):
        assert part in text


def test_the_axis_of_lambda_has_numbers_beside_one(tmp_path, monkeypatch):
    import matplotlib as mpl

    monkeypatch.setitem(mpl.rcParamsDefault, "svg.fonttype", "none")
    report = sample(16)  # from 2.69 to 0.269, the limit
    values = [g.lambda_ for g in report.groups]
    assert max(values) / min(values) == pytest.approx(10)
    plot_kappa(report, tmp_path / "a.svg")
    texts = re.findall(r">([^<>]+)</text>", (tmp_path / "a.svg").read_text())
    assert {"0.5", "1", "2"} <= set(texts)


def test_no_global_figure_state(tmp_path):
    import matplotlib.pyplot as plt

    before = plt.rcParams["text.usetex"]
    plot_kappa(sample(), tmp_path / "a.png")
    assert plt.get_fignums() == []
    assert plt.rcParams["text.usetex"] == before


def test_hostile_names_are_drawn_as_text(tmp_path):
    names = ["$\\frac{", "a\x1b[31m", "漢字", "x\ny", "$\\frac{$"]
    layers = [make_layer(n, i, 2.0 - 0.1 * i) for i, n in enumerate(names)]
    plot_kappa(make_document(layers=layers), tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000


@pytest.mark.parametrize("case", ["one", "none", "refused", "many", "huge", "negative"])
def test_odd_reports_can_be_drawn(tmp_path, case):
    report = {
        "one": lambda: make_document([3.0]),
        "none": lambda: make_document(
            layers=[make_layer("a", 0, None, status="unused")], status="refused", kappa=None
        ),
        "refused": lambda: sample(status="refused", kappa=None, reason="x"),
        "many": lambda: make_document(list(np.linspace(1, 9, 130))),
        "huge": lambda: make_document([1e-100, 1.0, 1e100], stderr=[1e-100, 9.0, 1e99]),
        "negative": lambda: make_document(
            layers=[make_layer("a", 0, -1.0, status="non-positive"), make_layer("b", 1, 1.0)]
        ),
    }[case]()
    plot_kappa(report, tmp_path / "a.svg")
    assert (tmp_path / "a.svg").exists()


@pytest.mark.parametrize("name", ["a.jpg", "a", ".png", "a.png.exe"])
def test_other_suffixes_are_usage_errors(tmp_path, name):
    with pytest.raises(UsageError, match="suffix"):
        plot_kappa(sample(), tmp_path / name)
    assert list(tmp_path.iterdir()) == []
