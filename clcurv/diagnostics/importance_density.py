"""How many parameters have which pair of importances: the counts behind the figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clcurv.curvature.importance import Importance
from clcurv.inputs.layers import Layer

CELLS = 40
DRAWN = 1 << 18
LOWEST = 0.005  # quantile at which an axis begins
MOST_DECADES = 8.0


@dataclass(frozen=True)
class ImportanceDensity:
    """Counts of parameters outside the head over log10 of both importances.

    Attributes:
        past_edges, current_edges: log10 α at the cells' edges, `CELLS` + 1 each.
        counts: A row per cell of the past, a column per cell of the current task. What lies
            below an axis, zeros too, is in its first cell.
    """

    past_edges: tuple[float, ...]
    current_edges: tuple[float, ...]
    counts: tuple[tuple[int, ...], ...]


def importance_density(
    past: Importance, current: Importance, layers: Sequence[Layer], *, seed: int = 0
) -> ImportanceDensity | None:
    """Count parameters by their pair of importances; None where one of them is zero everywhere."""
    names = [n for x in layers if not x.is_head for n in x.param_names if n in current.tensors]
    names = [n for n in dict.fromkeys(names) if n not in current.head and n in past.tensors]
    pairs = [(past.tensors[n].reshape(-1), current.tensors[n].reshape(-1)) for n in names]
    first = _edges([a for a, _ in pairs], seed)
    second = _edges([b for _, b in pairs], seed)
    if first is None or second is None:
        return None
    counts = torch.zeros(CELLS * CELLS, dtype=torch.int64)
    for a, b in pairs:
        cell = CELLS * _cells(a, first) + _cells(b, second)
        counts += torch.bincount(cell, minlength=CELLS * CELLS)
    return ImportanceDensity(
        past_edges=tuple(first.tolist()),
        current_edges=tuple(second.tolist()),
        counts=tuple(tuple(row) for row in counts.reshape(CELLS, CELLS).tolist()),
    )


def _edges(values: Sequence[Tensor], seed: int) -> Tensor | None:
    """From a low quantile of what is positive to the maximum, evenly in log10."""
    generator = torch.Generator().manual_seed(seed)
    total = sum(len(v) for v in values)
    drawn, top = [], 0.0
    for v in values:
        if not len(v):
            continue
        top = max(top, float(v.max()))
        share = min(len(v), -(-DRAWN * len(v) // total))
        rows = torch.randint(len(v), (share,), generator=generator)
        drawn.append(v if share == len(v) else v[rows])
    if top <= 0:
        return None
    flat = torch.cat(drawn)
    positive = flat[flat > 0].log10().sort().values
    end = torch.tensor(top, dtype=torch.float64).log10()
    start = positive[int(LOWEST * len(positive))] if len(positive) else end - 1
    start = torch.maximum(torch.minimum(start, end - 1), end - MOST_DECADES)
    return torch.linspace(float(start), float(end), CELLS + 1, dtype=torch.float64)


def _cells(values: Tensor, edges: Tensor) -> Tensor:
    return (torch.bucketize(values.log10(), edges) - 1).clamp(0, CELLS - 1)
