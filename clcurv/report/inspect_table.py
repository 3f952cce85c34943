"""The report of ``clcurv inspect`` in a terminal."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group as Stack
from rich.table import Table
from rich.text import Text

from clcurv.report.inspect_summary import heading, notes, outline, refusal
from clcurv.report.table import bullet, closing, pairs
from clcurv.report.text import count, number, percent, printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from clcurv.report.inspect_document import CandidateInfo, InspectDocument, InspectedLayer

_ROWS = 40
_WIDE = 90
_STYLES = {"chosen": "green", "refused": "red"}


def print_inspect(doc: InspectDocument, console: Console) -> None:
    """Print the whole report; commands go last, on lines that can be copied.

    Args:
        doc: The report.
        console: Its width decides what is shown.
    """
    console.print(inspect_view(doc, width=console.width))
    if not doc.next:
        return
    console.print(Text("\n next" if notes(doc) or doc.warnings else " next", style="dim"))
    told = ""
    for step in doc.next:
        # Every line a comment of its own: the block can be copied as it is.
        purpose = "" if step.purpose == told else step.purpose
        told = step.purpose
        for line in wrap(purpose, max(console.width - 6, 20)):
            console.print(Text(f"   # {line}", style="dim"))
        # The terminal wraps it, so that no line end is copied into the middle of a word.
        console.print(Text(f"   {printable(step.command)}", style="bold"), soft_wrap=True)


def inspect_view(doc: InspectDocument, *, width: int) -> RenderableType:
    """Everything but the commands, as one Rich renderable.

    Args:
        doc: The report.
        width: Columns of the terminal.
    """
    parts: list[RenderableType] = [pairs(heading(doc, short=width < _WIDE), style="dim")]
    parts += [pairs(rows, style="bold red") for rows in [refusal(doc)] if rows]
    if len(doc.candidates) > 1 or (doc.candidates and doc.architecture is None):
        parts.append(_candidates(doc.candidates))
    if doc.layers:
        parts.append(_layers(doc.layers))
    elif not doc.candidates and doc.tensors:
        parts.append(_outline(doc))
    parts += [bullet(printable(note), "dim") for note in notes(doc)]
    return Stack(*parts, *closing(doc))


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=True, padding=(0, 1), collapse_padding=True)
    for position, title in enumerate(columns):
        text = position == 0 or title in ("evidence", "shape")
        table.add_column(
            title,
            justify="left" if text else "right",
            overflow="fold",
            no_wrap=not text,
            min_width=min(len(title), 8),
        )
    return table


def _candidates(candidates: tuple[CandidateInfo, ...]) -> Table:
    losses = any(c.mean_loss is not None for c in candidates)
    table = _table("candidate", *(["mean loss"] if losses else []), "evidence")
    for candidate in candidates[:_ROWS]:
        cells = [Text(printable(candidate.name), style=_STYLES.get(candidate.status, ""))]
        if losses:
            cells.append(Text(number(candidate.mean_loss)))
        told = candidate.evidence
        if candidate.status == "refused":
            told += "; refused"
        cells.append(Text(printable(told), style="dim"))
        table.add_row(*cells)
    if len(candidates) > _ROWS:
        table.add_row(Text(f"and {len(candidates) - _ROWS} more", style="dim"))
    return table


def _layers(layers: tuple[InspectedLayer, ...]) -> Table:
    total = sum(x.numel for x in layers) or 1
    table = _table("layer", "params", "share", "tensors")
    for layer in layers[:_ROWS]:
        name = Text(printable(layer.name))
        if layer.is_head:
            name.append(" (head)", style="dim")
        if layer.tied_names:
            tied = printable(layer.tied_names[0], limit=40)
            name.append(f" (tied to {tied})", style="dim")
        share = percent(layer.numel / total)
        table.add_row(name, count(layer.numel), share, str(len(layer.param_names)))
    if len(layers) > _ROWS:
        table.add_row(Text(f"and {len(layers) - _ROWS} more", style="dim"))
    return table


def _outline(doc: InspectDocument) -> Table:
    lines = outline(doc.tensors)
    folded = any(line.n > 1 for line in lines)
    table = _table("tensors", *(["how many"] if folded else []), "elements", "shape")
    for line in lines[:_ROWS]:
        many = [str(line.n)] if folded else []
        table.add_row(Text(line.pattern), *many, count(line.elements), Text(line.shape))
    if len(lines) > _ROWS:
        table.add_row(Text(f"and {len(lines) - _ROWS} more", style="dim"))
    return table
