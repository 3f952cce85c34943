"""Columns of a table for terminals of any width: which of them there is room for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len

EDGES = 2  # of the table, which has none to see


@dataclass(frozen=True)
class Column:
    """A column; where the terminal is too narrow, the one with the highest `rank` goes first."""

    title: str
    cells: tuple[str, ...]
    rank: int
    style: str = ""

    @property
    def width(self) -> int:
        return max(cell_len(x) for x in (self.title, *self.cells)) + 2


def fitting(columns: Sequence[Column], width: int) -> list[Column]:
    """What a terminal of that width has room for, and each title once."""
    left = list(columns)
    while sum(c.width for c in _once(left)) > width - EDGES and any(c.rank for c in left):
        left.remove(max(left, key=lambda c: c.rank))
    return _once(left)


def _once(columns: list[Column]) -> list[Column]:
    """Of two columns with the same title only the first."""
    titles = [c.title for c in columns]
    return [c for i, c in enumerate(columns) if not c.title or c.title not in titles[:i]]
