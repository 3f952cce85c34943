"""The report of ``clcurv relimp`` as a figure: both importances, and shares over depth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from clcurv.report.figure import write_figure
from clcurv.report.relimp_summary import agreement_text
from clcurv.report.text import number, percent, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from clcurv.report.relimp_document import RelimpDocument, RelimpLayer

_PROTECTED, _SHARED, _FREE, _GRAY, _LINE = "#1f4e79", "#c55a11", "#c9d3dc", "#8a8a8a", "#2e7d32"
_MOST_LABELS = 40


def plot_relimp(doc: RelimpDocument, path: str | Path) -> None:
    """Draw the density of past against current importance, and the layers' shares and agreement.

    Args:
        doc: The report, fresh or read back from a file.
        path: Ends in .png, .svg or .pdf; written whole or not at all.

    Raises:
        UsageError: Another suffix, or a path that cannot be written.
        ResourceError: The disk is full.
    """
    write_figure(path, lambda: _figure(doc))


def _figure(doc: RelimpDocument) -> Figure:
    from matplotlib.figure import Figure

    n = len(doc.layers)
    figure = Figure(figsize=(min(max(10.5, 6.5 + 0.3 * n), 17.0), 5.6), layout="constrained")
    title = figure.suptitle(_title(doc), fontsize=10, x=0.01, ha="left")
    title.set_parse_math(False)
    grid = figure.add_gridspec(2, 2, width_ratios=(1, 1.35), height_ratios=(2.2, 1))
    _draw_density(figure, figure.add_subplot(grid[:, 0]), doc)
    upper = figure.add_subplot(grid[0, 1])
    lower = figure.add_subplot(grid[1, 1], sharex=upper)
    if doc.current is None:
        _draw_past(upper, doc)
        lower.set_axis_off()
        upper.tick_params(labelbottom=True)
        _label_layers(upper, doc)
        return figure
    _draw_shares(upper, doc)
    upper.tick_params(labelbottom=False)
    _draw_agreement(lower, doc)
    _label_layers(lower, doc)
    return figure


def _draw_density(figure: Figure, axes: Axes, doc: RelimpDocument) -> None:
    density = doc.density
    if density is None:
        why = "only the past was measured" if doc.current is None else "an importance is zero"
        axes.text(0.5, 0.5, f"no density: {why}", transform=axes.transAxes, ha="center")
        axes.set_axis_off()
        return
    from matplotlib.colors import LogNorm

    counts = np.array(density.counts, dtype=float)
    x, y = np.array(density.current_edges), np.array(density.past_edges)
    mesh = axes.pcolormesh(
        x,
        y,
        np.ma.masked_equal(counts, 0),
        cmap="viridis",
        norm=LogNorm(1, max(counts.max(), 2)),
        rasterized=True,
    )
    bar = figure.colorbar(mesh, ax=axes, pad=0.02, aspect=30)
    bar.set_label("parameters in a cell", fontsize=8)
    bar.ax.tick_params(labelsize=7.5)
    ends = (max(x[0], y[0]), min(x[-1], y[-1]))
    if ends[0] < ends[1]:
        axes.plot(ends, ends, color="white", linewidth=2.4)
        axes.plot(ends, ends, color=_GRAY, linewidth=1.1, linestyle="--", label="α_rel = ½")
        axes.legend(fontsize=8, frameon=True, loc="lower right")
    axes.set_xlabel("log₁₀ importance for the current task (look-ahead)", fontsize=9)
    axes.set_ylabel("log₁₀ importance for the past", fontsize=9)
    axes.set_title("above the line: more important for the past", fontsize=9, loc="left")
    axes.set_xlim(x[0], x[-1])
    axes.set_ylim(y[0], y[-1])


def _draw_shares(axes: Axes, doc: RelimpDocument) -> None:
    x = [layer.layer_id for layer in doc.layers]
    protected = np.array([100 * (layer.protected or 0.0) for layer in doc.layers])
    shared = np.array([100 * (layer.shared or 0.0) for layer in doc.layers])
    free = np.array([100 * (layer.free or 0.0) for layer in doc.layers])
    for values, base, color, label in (
        (protected, 0 * protected, _PROTECTED, "protected"),
        (shared, protected, _SHARED, "shared"),
        (free, protected + shared, _FREE, "free"),
    ):
        axes.bar(x, values, bottom=base, color=color, width=0.8, label=label)
    axes.set_ylim(0, 100)
    axes.set_ylabel("% of parameters", fontsize=9)
    axes.legend(fontsize=8, frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1.0))


def _draw_agreement(axes: Axes, doc: RelimpDocument) -> None:
    for name, low, high, color, label, shift in (
        ("rank_correlation", "rank_low", "rank_high", _LINE, "rank correlation", -0.08),
        ("overlap", "overlap_low", "overlap_high", _SHARED, "overlap of top tenths", 0.08),
    ):
        found = [
            (layer.layer_id + shift, layer.agreement)
            for layer in doc.layers
            if layer.agreement is not None and getattr(layer.agreement, name) is not None
        ]
        if not found:
            continue
        values = np.array([getattr(a, name) for _, a in found])
        ends = np.array([[_or(a, low, name), _or(a, high, name)] for _, a in found])
        bars = np.maximum(np.stack([values - ends[:, 0], ends[:, 1] - values]), 0)
        axes.errorbar(
            [x for x, _ in found], values, yerr=bars, color=color, fmt="o", markersize=3.5,
            elinewidth=1, capsize=2, label=label,
        )  # fmt: skip
    bottom = min(0.0, float(axes.dataLim.y0)) if np.isfinite(axes.dataLim.y0) else 0.0
    axes.set_ylim(1.05 * bottom - 0.03, 1.05)
    axes.axhline(0, color="#888888", linewidth=0.7)
    axes.grid(axis="y", color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.set_ylabel("agreement", fontsize=9)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7.5, frameon=False, ncols=2, loc="lower left", bbox_to_anchor=(0, 1.0))


def _draw_past(axes: Axes, doc: RelimpDocument) -> None:
    axes.set_yscale("log")
    measured = [layer for layer in doc.layers if layer.past_mean > 0]
    errors = [1.96 * (layer.past_stderr or 0.0) for layer in measured]
    values = [layer.past_mean for layer in measured]
    down = [min(e, 0.999 * v) for e, v in zip(errors, values, strict=True)]
    if measured:
        axes.errorbar(
            [layer.layer_id for layer in measured], values, yerr=np.array([down, errors]),
            color=_PROTECTED, fmt="o", markersize=4.5, capsize=2.5,
        )  # fmt: skip
    axes.set_ylabel("mean importance for the past", fontsize=9)
    axes.grid(axis="y", color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)


def _or(found: object, name: str, other: str) -> float:
    value = getattr(found, name)
    return float(getattr(found, other) if value is None else value)


def _label_layers(axes: Axes, doc: RelimpDocument) -> None:
    layers = list(doc.layers)
    # Every k-th name where all would overlap, counted from the head.
    step = -(-len(layers) // _MOST_LABELS)
    last = len(layers) - 1
    shown = [x for x in layers if (last - x.layer_id) % step == 0]
    axes.set_xticks([x.layer_id for x in shown])
    size = 8 if len(shown) <= 24 else 6.5
    for text in axes.set_xticklabels([_name(x) for x in shown], rotation=60, fontsize=size):
        text.set_parse_math(False)
        text.set_horizontalalignment("right")
        text.set_rotation_mode("anchor")
    axes.set_xlim(-0.6, len(layers) - 0.4)
    axes.set_xlabel("layer, shallow to deep", fontsize=9)


def _name(layer: RelimpLayer) -> str:
    return printable(layer.name, limit=28) + (" (head)" if layer.is_head else "")


def _title(doc: RelimpDocument) -> str:
    partial = "" if doc.complete else "PARTIAL (interrupted): "
    arch = printable(doc.model.arch, limit=50)
    estimator = doc.estimator
    first = f"{partial}{arch}: {estimator.estimator}, {estimator.compat}, "
    first += f"{doc.past.n_samples} samples"
    if doc.penalty is not None:
        first += f"; λ {number(doc.penalty.lambda_)}"
    if doc.shares is not None:
        first += f"; {percent(doc.shares.protected)} protected, {percent(doc.shares.shared)} shared"
    second = "" if doc.agreement is None else f"\n{agreement_text(doc.agreement)}; bars: 95 %"
    return first + second
