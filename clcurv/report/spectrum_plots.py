"""The report of ``clcurv spectrum`` as a figure: densities over the stream, and the trends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clcurv.report.density import WIDTH, Axis, smoothed
from clcurv.report.figure import write_figure
from clcurv.report.spectrum_summary import partial_text
from clcurv.report.text import number, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from clcurv.report.spectrum_document import EpsRankInfo, SpectrumDocument, TaskInfo

_FAST, _RELATIVE, _ERANK, _SHARE, _GRAY = "#c55a11", "#1f4e79", "#2e7d32", "#7b3294", "#8a8a8a"
_MOST_RIDGES = 30
_POINTS = 600
_OVERLAP = 1.6  # height of the tallest ridge in distances between ridges


def plot_spectrum(doc: SpectrumDocument, path: str | Path) -> None:
    """Draw densities as ridge lines, ε-rank, fast share and effective rank over the tasks.

    The densities are per unit of asinh(λ/λ₀), on a logarithmic height, and smoothed by a
    Gaussian whose width the figure states.

    Args:
        doc: The report, fresh or read back from a file.
        path: Ends in .png, .svg or .pdf; written whole or not at all.

    Raises:
        UsageError: Another suffix, or a path that cannot be written.
        ResourceError: The disk is full.
    """
    write_figure(path, lambda: _figure(doc))


def _figure(doc: SpectrumDocument) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    ridges = _chosen([t for t in doc.tasks if t.spectrum and t.spectrum.quadrature])
    trends: list[Callable[[Axes, SpectrumDocument], None]] = [_draw_ranks, _draw_effective_rank]
    if any(t.fast_modes for t in doc.tasks):
        trends.insert(1, _draw_shares)
    height = max(2.1 * len(trends) + 1.2, min(2.6 + 0.3 * len(ridges), 11.0))
    figure = Figure(figsize=(10.5, height), layout="constrained")
    title = figure.suptitle(_title(doc), fontsize=10, x=0.01, ha="left")
    title.set_parse_math(False)
    grid = figure.add_gridspec(len(trends), 2, width_ratios=(1.25, 1))
    _draw_ridges(figure.add_subplot(grid[:, 0]), doc, ridges)
    shared: Axes | None = None
    for row, draw in enumerate(trends):
        axes = figure.add_subplot(grid[row, 1], sharex=shared)
        shared = shared or axes
        draw(axes, doc)
        axes.grid(axis="y", which="major", color="#dddddd", linewidth=0.7)
        axes.set_axisbelow(True)
        axes.tick_params(labelbottom=row == len(trends) - 1)
        _mark_failed(axes, doc)
    assert shared is not None
    shared.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_xlabel("task")
    figure.align_ylabels(figure.axes[1:])
    return figure


def _chosen(tasks: Sequence[TaskInfo]) -> list[TaskInfo]:
    """All, or evenly spaced ones with the first and the last."""
    if len(tasks) <= _MOST_RIDGES:
        return list(tasks)
    places = np.linspace(0, len(tasks) - 1, _MOST_RIDGES).round().astype(int)
    return [tasks[i] for i in dict.fromkeys(places.tolist())]


def _draw_ridges(axes: Axes, doc: SpectrumDocument, tasks: Sequence[TaskInfo]) -> None:
    from matplotlib import colormaps

    spectra = [t.spectrum for t in tasks if t.spectrum]
    axis = Axis.over(spectra)
    if axis is None:
        axes.text(0.5, 0.5, "no spectrum to draw", transform=axes.transAxes, ha="center")
        axes.set_axis_off()
        return
    u = axis.grid(_POINTS, margin=4 * WIDTH)
    heights = [np.log10(1 + smoothed(s, axis, u)) for s in spectra]
    unit = _OVERLAP / max(float(h.max()) for h in heights)
    colors = colormaps["viridis"](np.linspace(0.0, 0.85, len(tasks)))
    for i, (height, color) in enumerate(zip(heights, colors, strict=True)):
        line = -i + unit * height
        axes.fill_between(u, -i, line, color=color, alpha=0.55, linewidth=0, zorder=2 * i)
        axes.plot(u, line, color=color, linewidth=0.9, zorder=2 * i + 1)
    _mark_band(axes, doc, axis)
    _scale(axes, axis)
    axes.set_xlim(u[0], u[-1])
    axes.set_ylim(-len(tasks) + 0.7, _OVERLAP + 0.15)
    every = -(-len(tasks) // 20)
    shown = [i for i in range(len(tasks)) if i % every == 0 or i == len(tasks) - 1]
    axes.set_yticks([-i for i in shown])
    for text in axes.set_yticklabels(
        [f"{tasks[i].index}  {printable(tasks[i].name, limit=16)}" for i in shown], fontsize=8
    ):
        text.set_parse_math(False)
    axes.tick_params(axis="y", length=0)
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    dropped = "" if len(tasks) == _measured(doc) else f"; {len(tasks)} of {_measured(doc)} tasks"
    axes.set_xlabel(
        "eigenvalue λ; height: log(1 + eigenvalues per unit of asinh(λ/λ₀))\n"
        f"λ₀ = {number(axis.scale)}; Gaussian smoothing σ = {WIDTH:g} in asinh(λ/λ₀), i.e. "
        f"{100 * WIDTH:.0f} % of |λ| beyond λ₀{dropped}",
        fontsize=8,
    )
    axes.set_title("spectral density", fontsize=9, loc="left")


def _measured(doc: SpectrumDocument) -> int:
    return sum(1 for t in doc.tasks if t.spectrum and t.spectrum.quadrature)


def _mark_band(axes: Axes, doc: SpectrumDocument, axis: Axis) -> None:
    band = doc.estimator.eps_fast
    if band is None:
        return
    lower = float(axis.position(band.lower))
    axes.axvline(lower, color=_FAST, linewidth=1, linestyle="--", zorder=1000)
    axes.annotate(
        "fast →", (lower, 1), xycoords=("data", "axes fraction"), xytext=(3, -9),
        textcoords="offset points", fontsize=8, color=_FAST, zorder=1000,
    )  # fmt: skip
    if band.upper is not None and band.upper < axis.high:
        upper = float(axis.position(band.upper))
        axes.axvline(upper, color=_FAST, linewidth=1, linestyle=":", zorder=1000)


def _scale(axes: Axes, axis: Axis) -> None:
    """Ticks at powers of ten of both signs, and at 0."""
    first = int(np.ceil(np.log10(axis.scale)))
    last = int(np.floor(np.log10(max(abs(axis.low), abs(axis.high)))))
    powers = range(first, last + 1)
    values = [0.0, *(s * 10.0**p for p in powers for s in (1, -1))]
    inside = sorted(v for v in values if axis.low <= v <= axis.high)
    axes.set_xticks(axis.position(inside))
    axes.set_xticklabels([_power(v) for v in inside], fontsize=8)


def _power(value: float) -> str:
    if value == 0:
        return "0"
    sign = "−" if value < 0 else ""
    return f"{sign}$10^{{{round(np.log10(abs(value)))}}}$"


def _draw_ranks(axes: Axes, doc: SpectrumDocument) -> None:
    for which, color, label in (
        ("fast", _FAST, "ε of the fast modes"),
        ("relative", _RELATIVE, "ε relative to max |λ|"),
    ):
        found: list[tuple[int, EpsRankInfo]] = [
            (t.index, rank)
            for t in doc.tasks
            if t.eps_rank and (rank := getattr(t.eps_rank, which)) and rank.fraction is not None
        ]
        if found:
            _draw_rank(axes, found, color, label)
            reference = doc.reference.task
            ranks = reference.eps_rank if reference else None
            known = getattr(ranks, which) if ranks else None
            if known is not None and known.fraction is not None:
                _reference_line(axes, 100 * known.fraction, color)
    _from_zero(axes)
    axes.set_ylabel("ε-rank (% of P)", fontsize=9)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7.5, frameon=False, loc="best")


def _draw_rank(
    axes: Axes, found: Sequence[tuple[int, EpsRankInfo]], color: str, label: str
) -> None:
    """One ε-rank over the tasks; hollow and without a bar where it is not resolved.

    The interval of what is not resolved may be all there is, and would hide the rest.
    """
    values, bars, open_ = [], [], []
    for index, rank in found:
        value = rank.fraction or 0.0
        resolved = rank.status == "ok"
        low, high = (rank.low, rank.high) if resolved else (None, None)
        values.append(100 * value)
        bars.append((100 * (value - _or(low, value)), 100 * (_or(high, value) - value)))
        if not resolved:
            open_.append((index, 100 * value))
    axes.errorbar(
        [index for index, _ in found],
        values,
        yerr=np.maximum(np.array(bars).T, 0.0),
        color=color,
        marker="o",
        markersize=4,
        linewidth=1.2,
        elinewidth=1,
        capsize=2,
        label=f"{label} (hollow: not resolved)" if open_ else label,
    )
    if open_:
        x, y = zip(*open_, strict=True)
        hollow: dict[str, Any] = {"marker": "o", "markersize": 4.5, "markerfacecolor": "white"}
        axes.plot(x, y, linestyle="", color=color, zorder=5, **hollow)


def _draw_shares(axes: Axes, doc: SpectrumDocument) -> None:
    found = [
        (t.index, 100 * t.fast_modes.share, 100 * (t.fast_modes.share_stderr or 0.0))
        for t in doc.tasks
        if t.fast_modes and t.fast_modes.share is not None
    ]
    _bars(axes, found, _SHARE)
    _line(axes, [(i, share) for i, share, _ in found], _SHARE, "residual in fast modes")
    skill = [(t.index, 100 * t.accuracy) for t in doc.tasks if t.accuracy is not None]
    _line(axes, skill, _GRAY, "accuracy before training", thin=True)
    reference = doc.reference.task
    modes = reference.fast_modes if reference else None
    _reference_line(
        axes, None if modes is None or modes.share is None else 100 * modes.share, _SHARE
    )
    axes.set_ylim(0, 103)
    axes.set_ylabel("%", fontsize=9)
    axes.legend(fontsize=7.5, frameon=False, loc="best")


def _draw_effective_rank(axes: Axes, doc: SpectrumDocument) -> None:
    names = list(dict.fromkeys(x.name for t in doc.tasks for x in t.features))
    if len(names) <= 12:
        for name in names:
            layer = [
                (t.index, x.erank)
                for t in doc.tasks
                for x in t.features
                if x.name == name and x.erank is not None
            ]
            _line(axes, layer, _ERANK, "", thin=True, alpha=0.35)
    means = [
        (t.index, t.effective_rank.value, t.effective_rank.stderr or 0.0)
        for t in doc.tasks
        if t.effective_rank and t.effective_rank.value is not None
    ]
    _bars(axes, means, _ERANK)
    _line(axes, [(i, rank) for i, rank, _ in means], _ERANK, "mean over the layers")
    reference = doc.reference.task
    known = reference.effective_rank if reference else None
    _reference_line(axes, known.value if known else None, _ERANK)
    _from_zero(axes)
    axes.set_ylabel("effective rank", fontsize=9)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7.5, frameon=False, loc="best")


def _line(
    axes: Axes,
    points: Sequence[tuple[int, float]],
    color: str,
    label: str,
    *,
    thin: bool = False,
    alpha: float = 1.0,
) -> None:
    if points:
        x, y = zip(*points, strict=True)
        style: dict[str, Any] = {"linewidth": 0.8, "marker": "."} if thin else {"marker": "o"}
        axes.plot(x, y, color=color, markersize=4, alpha=alpha, label=label or None, **style)


def _bars(axes: Axes, points: Sequence[tuple[int, float, float]], color: str) -> None:
    """95 % intervals over the data."""
    known = [(x, y, 1.96 * error) for x, y, error in points if error]
    if known:
        x, y, half = zip(*known, strict=True)
        axes.errorbar(x, y, yerr=half, color=color, linestyle="", elinewidth=1, capsize=2)


def _reference_line(axes: Axes, value: float | None, color: str) -> None:
    if value is not None:
        axes.axhline(value, color=color, linewidth=0.9, linestyle="--", alpha=0.7)


def _from_zero(axes: Axes) -> None:
    top = axes.dataLim.y1
    axes.set_ylim(0, 1.1 * top if np.isfinite(top) and top > 0 else 1.0)


def _mark_failed(axes: Axes, doc: SpectrumDocument) -> None:
    failed = [t.index for t in doc.tasks if t.status == "failed"]
    if failed:
        axes.plot(
            failed, [0.04] * len(failed), transform=axes.get_xaxis_transform(), linestyle="",
            marker="x", color=_GRAY,
        )  # fmt: skip


def _or(value: float | None, other: float) -> float:
    return other if value is None else value


def _title(doc: SpectrumDocument) -> str:
    partial = "" if doc.complete else f"{partial_text(doc)}; "
    arch = printable(doc.model.arch, limit=40)
    stream = printable(doc.stream.spec or doc.stream.name, limit=40)
    estimator = doc.estimator
    sizes = sorted({t.n_samples for t in doc.tasks if t.status == "ok"})
    reference = "; dashed: reference" if doc.reference.task else ""
    probed = any(t.spectrum and t.spectrum.probes > 1 for t in doc.tasks)
    bars = "; bars: 95 % intervals over probes" if probed else ""
    samples = "" if not sizes else f", {sizes[0]} samples" if len(sizes) == 1 else ", mixed samples"
    return (
        f"{partial}{arch} on {stream}: {doc.verdict.value}\n{estimator.operator} of "
        f"{estimator.loss}{samples}{bars}{reference}"
    )
