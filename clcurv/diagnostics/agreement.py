"""Do two importances agree on which parameters matter? Rank correlation and top tenth."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

TOP = 0.1
SUBSAMPLE = 50_000
RESAMPLES = 200
LEAST = 10  # elements for an interval

_Array = NDArray[np.float64]
_Index = NDArray[np.int64]


@dataclass(frozen=True)
class Agreement:
    """How far two importances of the same elements agree.

    Attributes:
        rank, rank_low, rank_high: Spearman's correlation and its 95 % bootstrap interval over
            elements; None where one of them is constant.
        overlap, overlap_low, overlap_high: Part of the first one's top tenth that is in the
            second one's; None where the first is zero everywhere.
    """

    rank: float | None = None
    rank_low: float | None = None
    rank_high: float | None = None
    overlap: float | None = None
    overlap_low: float | None = None
    overlap_high: float | None = None


def agreement(past: Tensor, current: Tensor, *, seed: int = 0) -> Agreement:
    """Agreement of two importances, shape (n,) each.

    Of more than `SUBSAMPLE` elements a random draw of that many is looked at, with `seed`; the
    intervals are percentiles over `RESAMPLES` resamples of the elements, ranked anew each time.
    """
    rng = np.random.default_rng(seed)
    x, y = past.numpy(), current.numpy()
    if len(x) > SUBSAMPLE:
        rows = np.sort(rng.choice(len(x), SUBSAMPLE, replace=False, shuffle=False))
        x, y = x[rows], y[rows]
    if len(x) < 2:
        return Agreement()
    first, second = _Order(x), _Order(y)
    partner = second.place[first.order]  # of each element of the first order in the second
    rank = None if first.constant or second.constant else float(stats.spearmanr(x, y).statistic)
    once = np.ones(len(x), dtype=np.int64)
    overlap = _overlap(first, second, partner, once, once)
    if len(x) < LEAST:
        return Agreement(rank=rank, overlap=overlap)
    back = first.place[second.order]
    ranks, overlaps = [], []
    for weights in _resamples(len(x), rng):
        theirs = weights[back]
        if rank is not None:
            ranks.append(_spearman(first, second, partner, weights, theirs))
        if overlap is not None:
            overlaps.append(_overlap(first, second, partner, weights, theirs))
    low, high = _interval(ranks)
    under, over = _interval(overlaps)
    return Agreement(rank, low, high, overlap, under, over)


class _Order:
    """Elements from the smallest to the largest, sorted once for all resamples.

    Attributes:
        order: Index of each element in turn; `place` is the inverse.
        constant: Whether all are equal.
        positive: Place of the first element above zero.
    """

    def __init__(self, values: _Array) -> None:
        self.order: _Index = np.argsort(values, kind="stable")
        self.place: _Index = np.empty_like(self.order)
        self.place[self.order] = np.arange(len(values))
        ordered = values[self.order]
        starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
        lengths = np.diff(np.r_[starts, len(values)])
        self.constant = len(starts) == 1
        self.positive = int(np.searchsorted(ordered, 0, side="right"))
        self._ties = len(starts) < len(values)
        self._starts, self._lasts = starts, starts + lengths - 1
        self._run: _Index = np.repeat(np.arange(len(starts)), lengths)

    def centred(self, weights: _Index) -> _Array:
        """Twice the mid-ranks, less their mean, of elements that occur `weights` times."""
        upto = np.cumsum(weights)
        total = float(upto[-1])
        if not self._ties:
            return np.asarray(2.0 * upto - weights - total)
        upto = upto[self._lasts]
        return np.asarray(2.0 * upto - np.diff(upto, prepend=0) - total)[self._run]

    def top(self, weights: _Index) -> int:
        """Place from which the largest tenth begins, with all that equal its smallest; what is
        zero is never in it."""
        upto = np.cumsum(weights)
        wanted = math.ceil(TOP * int(upto[-1]))
        at = int(np.searchsorted(upto, upto[-1] - wanted, side="right"))
        return max(int(self._starts[self._run[at]]), self.positive)


def _resamples(n: int, rng: np.random.Generator) -> Iterator[_Index]:
    """How often each element is drawn."""
    for _ in range(RESAMPLES):
        yield np.bincount(rng.integers(n, size=n), minlength=n)


def _interval(values: list[float | None]) -> tuple[float | None, float | None]:
    found = [v for v in values if v is not None and math.isfinite(v)]
    if not found:
        return None, None
    low, high = np.quantile(found, [0.025, 0.975])
    return float(low), float(high)


def _spearman(
    first: _Order, second: _Order, partner: _Index, weights: _Index, theirs: _Index
) -> float | None:
    """Of elements that occur `weights` times (`theirs` in the second order).

    Sums instead of BLAS products, whose threads take longer to start than these take.
    """
    a, b = first.centred(weights), second.centred(theirs)
    weighted = weights * a
    scale = math.sqrt(float((weighted * a).sum()) * float((theirs * b * b).sum()))
    return float((weighted * b[partner]).sum()) / scale if scale > 0 else None


def _overlap(
    first: _Order, second: _Order, partner: _Index, weights: _Index, theirs: _Index
) -> float | None:
    begin = first.top(weights)
    top = weights[begin:]
    size = int(top.sum())
    return int(top[partner[begin:] >= second.top(theirs)].sum()) / size if size else None
