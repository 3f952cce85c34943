"""The report of ``clcurv spectrum`` in a terminal: a row per task, and the sentences around it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group as Stack
from rich.table import Table
from rich.text import Text

from clcurv.report.columns import Column, fitting
from clcurv.report.spectrum_summary import (
    accuracy_text,
    erank_text,
    findings,
    heading,
    lambda_min_text,
    rank_text,
    share_text,
    trace_text,
)
from clcurv.report.table import bullet, closing, pairs
from clcurv.report.text import number, printable

if TYPE_CHECKING:
    from rich.console import JustifyMethod, RenderableType

    from clcurv.report.spectrum_document import SpectrumDocument, SpectrumInfo, TaskInfo

VERDICT_STYLES = {
    "healthy": "bold green",
    "at risk": "bold yellow",
    "collapsed": "bold red",
    "inconclusive": "bold yellow",
}
_SPECTRUM = "spectrum"
_LEFT = ("task", "checkpoint", _SPECTRUM)
_EIGHTHS = " ▁▂▃▄▅▆▇█"
_ASCII_LEVELS = " .:-=+*#@"


def spectrum_view(
    doc: SpectrumDocument, *, width: int, unicode_bars: bool = True
) -> RenderableType:
    """Everything there is to show, as one Rich renderable.

    Names and sentences become `Text`, never markup, and control characters are spelled out.

    Args:
        doc: The report, fresh or read back from a file.
        width: Columns of the terminal.
        unicode_bars: Block characters for the sparklines; else ASCII.
    """
    sparks, caption = sparklines(doc, 10 if width < 120 else 18, unicode_bars=unicode_bars)
    columns = fitting(_columns(doc, sparks), width)
    parts: list[RenderableType] = [pairs(heading(doc), style="dim"), _tasks(columns)]
    if any(c.title == _SPECTRUM for c in columns):
        parts.append(bullet(caption, "dim"))
    if any(_is_uncertain(t) for t in doc.tasks):
        parts.append(bullet("?: not resolved; see the warnings", "dim"))
    (label, verdict), *rest = findings(doc)
    grid = pairs([], style="bold")
    grid.add_row(Text(label), Text(verdict, style=VERDICT_STYLES.get(doc.verdict.value, "bold")))
    for name, text in rest:
        grid.add_row(Text(name), Text(text))
    parts.append(grid)
    if doc.l2er is not None and doc.l2er.er_lr:
        parts.append(bullet(printable(doc.l2er.derivation), "dim"))
    return Stack(*parts, *closing(doc))


def sparklines(
    doc: SpectrumDocument, cells: int, *, unicode_bars: bool = True
) -> tuple[dict[int, str], str]:
    """Task index -> eigenvalues over the axis that all tasks share, in `cells` characters.

    A full block is all eigenvalues in one cell, an empty one less than one of them,
    logarithmic between.

    Returns:
        The lines, and a caption that says where the axis begins and ends.
    """
    measured = [(t.index, t.spectrum) for t in doc.tasks if t.spectrum and t.spectrum.quadrature]
    if not measured:
        return {}, ""
    from clcurv.report.density import Axis, counts

    axis = Axis.over([spectrum for _, spectrum in measured])
    if axis is None:
        return {}, ""
    levels = _EIGHTHS if unicode_bars else _ASCII_LEVELS
    lines = {}
    for index, spectrum in measured:
        full = math.log1p(spectrum.n_parameters)
        heights = [math.log1p(n) / full for n in counts(spectrum, axis, cells)]
        lines[index] = "".join(levels[_level(h, len(levels) - 1)] for h in heights)
    caption = (
        f"spectrum: eigenvalues (log) over λ from {number(axis.low)} to {number(axis.high)}, "
        f"linear within ±{number(axis.scale)}, logarithmic beyond"
    )
    return lines, caption


def _level(height: float, top: int) -> int:
    """At least one step for anything that holds an eigenvalue."""
    return min(top, max(round(top * height), 1 if height > 0.02 else 0))


def _is_uncertain(task: TaskInfo) -> bool:
    ranks = [task.eps_rank.fast, task.eps_rank.relative] if task.eps_rank else []
    doubtful = any(x is not None and x.status != "ok" for x in ranks)
    return doubtful or (task.fast_modes is not None and task.fast_modes.status != "ok")


def _columns(doc: SpectrumDocument, sparks: dict[int, str]) -> list[Column]:
    tasks = doc.tasks

    def column(title: str, text: Callable[[TaskInfo], str], rank: int, style: str = "") -> Column:
        return Column(title, tuple(text(t) for t in tasks), rank, style)

    def of(text: Callable[[SpectrumInfo], str]) -> Callable[[TaskInfo], str]:
        return lambda task: text(task.spectrum) if task.spectrum else "–"

    def ranks(which: str, title: str, rank: int) -> list[Column]:
        """With intervals, which leave for a column without them."""
        found = [getattr(t.eps_rank, which) if t.eps_rank else None for t in tasks]
        if not any(found):
            return []
        return [
            Column(title, tuple(rank_text(x) for x in found), max(rank, 8), "bold"),
            Column(title, tuple(rank_text(x, short=True) for x in found), rank, "bold"),
        ]

    has_fast = any(t.eps_rank and t.eps_rank.fast for t in tasks)
    columns = [
        column("", lambda t: str(t.index), 0, "dim"),
        column("task", lambda t: printable(t.name, limit=20), 0),
        column("", lambda t: "failed" if t.status == "failed" else "", 0, "yellow"),
        column("checkpoint", lambda t: printable(t.checkpoint, limit=24), 14),
        column("n", lambda t: str(t.n_samples), 12),
        column("loss", lambda t: number(t.mean_loss), 9),
        column("acc.", accuracy_text, 6),
        column("λ_max", of(lambda s: number(s.lambda_max)), 5),
        column("λ_min", of(lambda_min_text), 11),
        column("trace", of(trace_text), 13),
        *ranks("fast", "ε-rank fast", 1),
        *ranks("relative", "ε-rank rel.", 10 if has_fast else 1),
        column("fast share", lambda t: share_text(t.fast_modes), 8, "bold"),
        column("fast share", lambda t: share_text(t.fast_modes, short=True), 4, "bold"),
        column("eff. rank", erank_text, 8, "bold"),
        column("eff. rank", lambda t: erank_text(t, short=True), 2, "bold"),
        column(_SPECTRUM, lambda t: sparks.get(t.index, ""), 3, "cyan"),
    ]
    if len({t.checkpoint for t in tasks}) == 1:
        columns = [c for c in columns if c.title != "checkpoint"]
    return [c for c in columns if any(x not in ("", "–") for x in c.cells)]


def _tasks(columns: list[Column]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=True, padding=(0, 1), collapse_padding=True)
    for column in columns:
        justify: JustifyMethod = "left" if column.title in _LEFT else "right"
        folds = column.title == "task"
        table.add_column(
            column.title,
            justify=justify,
            no_wrap=not folds,
            overflow="fold",
            style=column.style,
        )
    for row in zip(*(c.cells for c in columns), strict=True):
        table.add_row(*(Text(cell) for cell in row))
    return table
