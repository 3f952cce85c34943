"""The report of ``clcurv kappa`` as a figure: s over depth, its trend, the recommended λ."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clcurv.report.figure import write_figure
from clcurv.report.text import interval, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from clcurv.report.kappa_document import Group, KappaDocument

_MEASURED, _FIT, _ADVICE, _HEAD = "#1f4e79", "#c55a11", "#2e7d32", "#8a8a8a"
_MOST_LABELS = 40


def plot_kappa(doc: KappaDocument, path: str | Path) -> None:
    """Draw s over depth (log axis, 95 % bars), the geometric fit with its band, and λ.

    Args:
        doc: The report, fresh or read back from a file.
        path: Ends in .png, .svg or .pdf; written whole or not at all.

    Raises:
        UsageError: Another suffix, or a path that cannot be written.
        ResourceError: The disk is full.
    """
    write_figure(path, lambda: _figure(doc))


def _figure(doc: KappaDocument) -> Figure:
    from matplotlib.figure import Figure

    n = len(doc.groups)
    figure = Figure(figsize=(min(max(7.0, 2.0 + 0.34 * n), 16.0), 6.2), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1.5))
    _draw_sensitivity(upper, doc)
    _draw_lambda(lower, doc)
    _label_layers(lower, doc)
    return figure


def _positions(groups: list[Group]) -> list[int]:
    return [g.layer_id for g in groups]


def _draw_sensitivity(axes: Axes, doc: KappaDocument) -> None:
    measured = [g for g in doc.groups if g.s is not None and g.s > 0]
    axes.set_yscale("log")
    for chosen, style, label in (
        ([g for g in measured if g.status == "ok" and not g.is_head], _filled(_MEASURED), "s"),
        ([g for g in measured if g.status == "ok" and g.is_head], _filled(_HEAD), "s, head"),
        ([g for g in measured if g.status != "ok"], _hollow(), "s, left out of the fit"),
    ):
        if chosen:
            s = [g.s or 0.0 for g in chosen]
            axes.errorbar(_positions(chosen), s, yerr=_bars(chosen), label=label, zorder=3, **style)
    if doc.kappa.include_head is False and any(g.is_head for g in doc.groups):
        first = min(g.layer_id for g in doc.groups if g.is_head)
        axes.axvline(first - 0.5, color=_HEAD, linewidth=0.8, linestyle=":")
    _draw_fit(axes, doc)
    if not measured:
        axes.text(0.5, 0.5, "no layer could be measured", transform=axes.transAxes, ha="center")
    without = [g.layer_id for g in doc.groups if g not in measured]
    if without:
        axes.plot(
            without,
            [0.03] * len(without),
            transform=axes.get_xaxis_transform(),
            linestyle="",
            marker="x",
            color=_HEAD,
            label="no s",
        )
    axes.set_ylabel("sensitivity s = λmax of the layer's block")
    axes.grid(axis="y", which="major", color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.set_title(_title(doc), fontsize=10, loc="left", parse_math=False)
    if measured:
        axes.legend(fontsize=8, frameon=False, loc="best")


def _filled(color: str) -> dict[str, Any]:
    return {"fmt": "o", "color": color, "markersize": 5, "elinewidth": 1.2, "capsize": 2.5}


def _hollow() -> dict[str, Any]:
    return {**_filled(_HEAD), "markerfacecolor": "white"}


def _bars(groups: list[Group]) -> Any:
    """Distances down and up to the 95 % interval; a lower end at or below 0 stays drawable."""
    down, up = [], []
    for group in groups:
        low, high = group.interval
        s = group.s or 0.0
        down.append(0.0 if low is None else s - max(low, s * 1e-3))
        up.append(0.0 if high is None else high - s)
    return np.array([down, up])


def _draw_fit(axes: Axes, doc: KappaDocument) -> None:
    fit = doc.schedule
    if fit.gamma is None or fit.fit_depth is None or fit.fit_s is None or fit.gamma <= 0:
        return
    inside = [g for g in doc.groups if not g.is_head or doc.kappa.include_head]
    x = np.array(_positions(inside), dtype=float)
    log_s = np.log(fit.fit_s)
    steps = np.array([g.depth for g in inside]) - fit.fit_depth

    def line(gamma: float) -> Any:
        return np.exp(log_s + steps * np.log(gamma))

    label = f"fit, γ {interval(fit.gamma, fit.gamma_low, fit.gamma_high)}"
    if fit.level is not None:
        label = label.replace("95 %", f"{100 * fit.level:.0f} %")
    axes.plot(x, line(fit.gamma), color=_FIT, linewidth=1.6, label=label, zorder=2)
    if fit.gamma_low and fit.gamma_high:
        ends = np.stack([line(fit.gamma_low), line(fit.gamma_high)])
        axes.fill_between(x, ends.min(0), ends.max(0), color=_FIT, alpha=0.15, linewidth=0)


def _draw_lambda(axes: Axes, doc: KappaDocument) -> None:
    groups = list(doc.groups)
    x = _positions(groups)
    base = doc.defaults.lambda_
    colors = [_HEAD if g.is_head and not doc.kappa.include_head else _ADVICE for g in groups]
    axes.set_yscale("log")
    values = [g.lambda_ for g in groups]
    axes.vlines(x, base, values, colors=colors, linewidth=5, alpha=0.35)
    axes.scatter(x, values, c=colors, s=24, zorder=3)
    lows = [g.lambda_low or g.lambda_ for g in groups]
    highs = [g.lambda_high or g.lambda_ for g in groups]
    axes.vlines(x, lows, highs, colors="black", linewidth=1, zorder=4)
    axes.axhline(base, color="#888888", linewidth=0.8)
    low, high = min([*lows, base]), max([*highs, base])
    axes.set_ylim(low / 1.5, high * 1.5)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(lambda value, _: "")
    if high / low < 100:
        ticks = [
            t * base for t in (0.1, 0.2, 0.5, 1, 2, 5, 10) if low / 1.5 <= t * base <= high * 1.5
        ]
        axes.set_yticks(ticks)
    axes.set_ylabel(f"λ ({doc.schedule.mode})", color=_ADVICE)
    axes.grid(axis="y", which="major", color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)


def _label_layers(axes: Axes, doc: KappaDocument) -> None:
    groups = list(doc.groups)
    # Every k-th name where all would overlap, counted from the head.
    step = -(-len(groups) // _MOST_LABELS)
    last = len(groups) - 1
    shown = [g for g in groups if (last - g.layer_id) % step == 0]
    axes.set_xticks(_positions(shown))
    axes.set_xticks(_positions(groups), minor=True)
    size = 8 if len(shown) <= 24 else 6.5
    labels = [printable(g.name, limit=28) for g in shown]
    for text in axes.set_xticklabels(labels, rotation=60, ha="right", fontsize=size):
        text.set_parse_math(False)
        text.set_rotation_mode("anchor")
    axes.set_xlim(-0.7, len(groups) - 0.3)
    axes.set_xlabel("layer, shallow to deep")


def _title(doc: KappaDocument) -> str:
    kappa = doc.kappa
    value = interval(kappa.value, kappa.low, kappa.high)
    if kappa.status != "ok":
        value = "refused"
    arch = printable(doc.model.arch, limit=50)
    generated = ", generated data" if doc.data.source == "generated" else ""
    partial = "" if doc.complete else "PARTIAL (interrupted): "
    return (
        f"{partial}{arch}: κ {value}, direction {doc.schedule.direction}\n"
        f"{doc.data.n_samples} samples{generated}, {doc.estimator.operator} of "
        f"{doc.estimator.loss}, bars: 95 % intervals"
    )
