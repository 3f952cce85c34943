"""The report of ``clcurv relimp`` in a terminal: a row per layer, and the sentences around it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.console import Group as Stack
from rich.table import Table
from rich.text import Text

from clcurv.report.columns import Column, fitting
from clcurv.report.relimp_summary import (
    advice,
    findings,
    heading,
    overlap_text,
    quantile_text,
    rank_text,
    share_text,
    trial_mark,
)
from clcurv.report.table import bullet, closing, pairs
from clcurv.report.text import count, number, printable, with_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType

    from clcurv.report.relimp_document import RelimpDocument, RelimpLayer, SearchInfo

_HEAD = " (head)"
_MARKS, _ASCII_MARKS = "█▓░", "#=."
PROTECTED, SHARED, FREE = "blue", "magenta", "bright_black"


def relimp_view(doc: RelimpDocument, *, width: int, unicode_bars: bool = True) -> RenderableType:
    """Everything there is to show, as one Rich renderable.

    Names and sentences become `Text`, never markup, and control characters are spelled out.

    Args:
        doc: The report, fresh or read back from a file.
        width: Columns of the terminal.
        unicode_bars: Block characters for the bars; else ``#``, ``=``, ``.``.
    """
    parts: list[RenderableType] = [
        pairs(heading(doc), style="dim"),
        _layers(doc, width, unicode_bars),
        pairs(findings(doc), style="bold"),
    ]
    if doc.search is not None:
        parts.append(_trials(doc.search, width))
    parts.append(bullet(printable(advice(doc)), "bold green"))
    return Stack(*parts, *closing(doc))


def _layers(doc: RelimpDocument, width: int, unicode_bars: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=True, padding=(0, 1), collapse_padding=True)
    columns = fitting(_columns(doc, width, unicode_bars), width)
    for column in columns:
        table.add_column(
            column.title,
            justify="left" if column.title in ("layer", "") else "right",
            no_wrap=column.title != "layer",
            overflow="fold",
        )
    for layer, row in zip(doc.layers, zip(*(c.cells for c in columns), strict=True), strict=True):
        cells = [Text(cell) for cell in row]
        if layer.is_head:
            cells[0].stylize("dim", max(0, len(row[0]) - len(_HEAD)))
        for column, cell in zip(columns, cells, strict=True):
            if not column.title:
                _paint(cell)
        table.add_row(*cells)
    return table


def _columns(doc: RelimpDocument, width: int, unicode_bars: bool) -> list[Column]:
    def column(title: str, text: Callable[[RelimpLayer], str], rank: int) -> Column:
        return Column(title, tuple(text(x) for x in doc.layers), rank)

    name = max(12, width // 4)
    columns = [
        column("layer", lambda x: printable(x.name, limit=name) + (_HEAD if x.is_head else ""), 0),
        column("depth", lambda x: str(x.depth), 8),
        column("params", lambda x: count(x.numel), 6),
    ]
    if doc.current is None:
        past = column("α ± std. error", lambda x: with_error(x.past_mean, x.past_stderr), 0)
        return [*columns, past]
    bar = 8 if width < 110 else 12
    return [
        *columns,
        column("protected", lambda x: share_text(x.protected), 0),
        column("shared", lambda x: share_text(x.shared), 0),
        column("free", lambda x: share_text(x.free), 1),
        column("", lambda x: _bar(x, bar, unicode_bars), 5),
        column("α_rel 5 50 95 %", quantile_text, 9),
        column("rank corr.", lambda x: rank_text(x.agreement), 11),
        column("rank corr.", lambda x: rank_text(x.agreement, short=True), 3),
        column("overlap", lambda x: overlap_text(x.agreement), 10),
        column("overlap", lambda x: overlap_text(x.agreement, short=True), 2),
        column("max α'", lambda x: number(x.multiplier_max), 7),
    ]


def _bar(layer: RelimpLayer, width: int, unicode_bars: bool) -> str:
    """Protected, shared and free parts of a bar."""
    if layer.protected is None or layer.shared is None:
        return ""
    first = round(width * layer.protected)
    second = round(width * (layer.protected + layer.shared)) - first
    if layer.shared > 0 and second == 0 and first < width:
        second = 1
    marks = _MARKS if unicode_bars else _ASCII_MARKS
    return marks[0] * first + marks[1] * second + marks[2] * (width - first - second)


def _paint(bar: Text) -> None:
    for place, mark in enumerate(bar.plain):
        kind = max(_MARKS.find(mark), _ASCII_MARKS.find(mark))
        bar.stylize((PROTECTED, SHARED, FREE)[kind], place, place + 1)


def _trials(search: SearchInfo, width: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=True, padding=(0, 1), collapse_padding=True)
    table.add_column("trial", no_wrap=True)
    wide = width >= 72
    for title in ("lr", "λ", *(("λ_down", "m") if wide else ()), "score"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for place, trial in enumerate(search.trials):
        relative = trial.phase in ("lambda-down", "lambda-up")
        cells = [f"{trial.phase} {trial.number}", number(trial.lr)]
        cells.append("–" if trial.phase == "reference" else number(trial.lambda_))
        if wide:
            cells += [number(trial.lambda_down), f"{trial.m:g}"] if relative else ["–", "–"]
        cells.append("diverged" if trial.status == "diverged" else number(trial.score))
        mark = trial_mark(search, place)
        if not mark and trial.phase != "reference":
            mark = "acceptable" if trial.acceptable else "too low"
        table.add_row(
            *(Text(c) for c in cells), Text(mark), style="bold" if mark == "chosen" else ""
        )
    return table
