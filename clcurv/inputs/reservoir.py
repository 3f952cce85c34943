"""A class-balanced sample of rows that can be read only once, without keeping them all.

Every row gets a random key. Of each class the rows with the smallest keys are kept, which is a
uniform sample of the class (bottom-k sampling: Cohen and Kaplan 2007, section 2). When there are
more than n rows in all, the largest class gives up the one with its largest key; of equally large
classes the last in a fixed random order.

The outcome is the draw of `clcurv.inputs.sampling`: as many rows of each class as
`balanced_quotas` gives for the counts of the whole stream and that order. For when class a gives
up its m-th row, no class holds more than m, those that hold m come before a, and all together
hold n + 1; so at the end n rows are shared out before it is a's turn to get an m-th one.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Drawn:
    """What was kept of a stream.

    Attributes:
        rows: Numbers of the rows kept, ascending.
        values: Their values.
        labels: Their classes.
        seen: Rows that were read.
        counts: Class -> rows that were read.
        ended: Whether the stream was read to its end, and not only to the limit.
    """

    rows: list[int]
    values: list[Any]
    labels: list[Any]
    seen: int
    counts: dict[Hashable, int]
    ended: bool


def draw_from(
    rows: Iterable[tuple[Hashable, Any]], n: int, *, seed: int, limit: int | None = None
) -> Drawn:
    """Read (class, value) pairs and keep at most `n` of them, balanced over the classes.

    Args:
        rows: The stream; never more than n + 1 values of it are held.
        n: Rows wanted.
        seed: Of the draw; the same rows in the same order give the same draw.
        limit: Most rows to read.
    """
    rng = np.random.default_rng(seed)
    # Of each class a heap with the largest key on top: (-key, row, value).
    kept: dict[Hashable, list[tuple[float, int, Any]]] = {}
    ceiling: dict[Hashable, float] = {}
    counts: dict[Hashable, int] = {}
    orders: dict[Hashable, bytes] = {}
    held = seen = 0
    ended = True
    for label, value in rows:
        key = float(rng.random())
        counts[label] = counts.get(label, 0) + 1
        if label not in orders:
            orders[label] = class_order(seed, label)
        # A row above one that its class gave up would be the next to go: passed over at once.
        if key < ceiling.get(label, 1.0):
            heapq.heappush(kept.setdefault(label, []), (-key, seen, value))
            held += 1
        if held > n:
            loser = max(kept, key=lambda c: (len(kept[c]), orders[c]))
            ceiling[loser] = -heapq.heappop(kept[loser])[0]
            held -= 1
            if not kept[loser]:
                del kept[loser]
        seen += 1
        if limit is not None and seen >= limit:
            ended = False
            break
    flat = sorted((row, label, value) for label, heap in kept.items() for _, row, value in heap)
    return Drawn(
        rows=[row for row, _, _ in flat],
        values=[value for _, _, value in flat],
        labels=[label for _, label, _ in flat],
        seen=seen,
        counts=counts,
        ended=ended,
    )


def class_order(seed: int, label: Hashable) -> bytes:
    """Sorts the classes in a random order that does not depend on when they come."""
    return hashlib.sha256(f"{seed}|{type(label).__name__}|{label!r}".encode()).digest()
