"""The report of ``clcurv kappa`` in a terminal: a Rich table and the sentences around it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.console import Group as Stack
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from clcurv.report.summary import OUTCOME_WORDS, findings, heading
from clcurv.report.text import count, number, printable, with_error

if TYPE_CHECKING:
    from rich.console import RenderableType

    from clcurv.report.document import Document
    from clcurv.report.kappa_document import Group, KappaDocument

# Columns leave in this order as the terminal narrows; the widths are where they come back.
_FROM_WIDTH = {"reason": 150, "λ_min": 96, "steps": 96, "parameters": 80, "depth": 80, "bar": 68}
_EIGHTHS = " ▏▎▍▌▋▊▉"
_OUTCOME_STYLES = {"pass": "green", "fail": "bold red", "inconclusive": "yellow"}


def kappa_view(doc: KappaDocument, *, width: int, unicode_bars: bool = True) -> RenderableType:
    """Everything there is to show, as one Rich renderable.

    Names and sentences become `Text`, never markup, and control characters are spelled out.

    Args:
        doc: The report.
        width: Columns of the terminal.
        unicode_bars: Block characters for the bars; else ``#``.
    """
    parts: list[RenderableType] = [
        pairs(heading(doc), style="dim"),
        _fitting_table(doc, width, unicode_bars),
        pairs(findings(doc), style="bold"),
        Padding(Text(printable(doc.schedule.advice), style="bold green"), (0, 0, 0, 1)),
    ]
    if width < _FROM_WIDTH["reason"]:
        notable = [g for g in doc.groups if g.status != "ok" or g.is_head]
        parts += [bullet(f"{printable(g.name)}: {printable(g.reason)}", "dim") for g in notable]
    return Stack(*parts, *closing(doc))


def closing(doc: Document) -> list[RenderableType]:
    """The warnings and the gates."""
    parts = [bullet(f"warning: {printable(w)}", "yellow") for w in doc.warnings]
    for gate in doc.judged.gates if doc.judged else ():
        text = f"{printable(gate.expression)}: {OUTCOME_WORDS[gate.outcome]}"
        parts.append(bullet(f"{text}: {printable(gate.reason)}", _OUTCOME_STYLES[gate.outcome]))
    return parts


def pairs(rows: list[tuple[str, str]], *, style: str) -> Table:
    """Labels and texts, in two columns."""
    grid = Table.grid(padding=(0, 1, 0, 1))
    grid.add_column(style=style, no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in rows:
        grid.add_row(Text(label), Text(text))
    return grid


def bullet(text: str, style: str) -> RenderableType:
    """A sentence on lines of its own."""
    return Padding(Text(text, style=style), (0, 0, 0, 1))


def _fitting_table(doc: KappaDocument, width: int, unicode_bars: bool) -> Table:
    """With shorter bars, then without depth, where that keeps the layers' names on one line."""
    shown = {name for name, least in _FROM_WIDTH.items() if width >= least}
    console = Console(width=2 * width)
    table = None
    for bar, less in ((8 if width < 96 else 16, ""), (4, ""), (4, "depth")):
        tried = _layer_table(doc, width, unicode_bars, shown - {less}, bar)
        if "reason" in shown or Measurement.get(console, console.options, tried).maximum <= width:
            return tried
        table = table or tried
    assert table is not None
    return table


def _layer_table(
    doc: KappaDocument, width: int, unicode_bars: bool, shown: set[str], bar_width: int
) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=True, padding=(0, 1), collapse_padding=True)
    table.add_column("layer", overflow="fold", min_width=8)
    if "depth" in shown:
        table.add_column("depth", justify="right", no_wrap=True)
    if "parameters" in shown:
        table.add_column("params", justify="right", no_wrap=True)
    table.add_column("s ± error" if width < 60 else "s ± std. error", justify="right", no_wrap=True)
    if "bar" in shown:
        table.add_column("log s", no_wrap=True)
    if "λ_min" in shown:
        table.add_column("λ_min ≤", justify="right", no_wrap=True)
        table.add_column("steps", justify="right", no_wrap=True)
    table.add_column("λ", justify="right", no_wrap=True, style="bold")
    table.add_column("lr_scale", justify="right", no_wrap=True, style="bold")
    if "reason" in shown:
        table.add_column("reason", overflow="fold", ratio=1)
    limits = _log_limits(doc)
    for group in doc.groups:
        cells = [Text(printable(group.name, limit=max(12, width // 3)))]
        if group.is_head:
            cells[0].append(" (head)", style="dim")
        if "depth" in shown:
            cells.append(Text(str(group.depth)))
        if "parameters" in shown:
            cells.append(Text(count(group.numel)))
        cells.append(_value(group))
        if "bar" in shown:
            cells.append(Text(_bar(group, limits, bar_width, unicode_bars), style="cyan"))
        if "λ_min" in shown:
            cells += [Text(number(group.lambda_min)), Text(str(group.steps))]
        cells += [Text(number(group.lambda_)), Text(number(group.lr_scale))]
        if "reason" in shown:
            cells.append(Text(printable(group.reason)))
        table.add_row(*cells)
    return table


def _value(group: Group) -> Text:
    if group.status == "ok":
        return Text(with_error(group.s, group.s_stderr))
    if group.s is None:
        return Text(group.status, style="yellow")
    return Text(f"{number(group.s)} {group.status}", style="yellow")


def _log_limits(doc: KappaDocument) -> tuple[float, float]:
    logs = [math.log(g.s) for g in doc.groups if g.s is not None and g.s > 0]
    return (min(logs), max(logs)) if logs else (0.0, 0.0)


def _bar(group: Group, limits: tuple[float, float], width: int, unicode_bars: bool) -> str:
    """The smallest s is one cell long, the largest `width`, logarithmic between."""
    if group.s is None or group.s <= 0:
        return ""
    low, high = limits
    share = (math.log(group.s) - low) / (high - low) if high > low else 1.0
    cells = 1 + share * (width - 1)
    if not unicode_bars:
        return "#" * round(cells)
    whole, eighths = divmod(round(8 * cells), 8)
    return "█" * whole + (_EIGHTHS[eighths] if eighths else "")
