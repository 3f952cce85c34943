"""Standard errors and intervals from what every micro-batch contributes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats


def share_stderr(shares: Sequence[float], weights: Sequence[float]) -> float | None:
    """Standard error of Σ_c shares_c over the data.

    Args:
        shares: What chunk c adds to the mean, i.e. weight_c times its own mean.
        weights: Chunk c's part of the loss terms; they sum to 1.

    Returns:
        The square root of Σ (share_c − w_c s)² · C/(C−1), the usual standard error of a mean
        when the chunks are equal; None with fewer than two chunks.
    """
    x, w = np.asarray(shares, dtype=float), np.asarray(weights, dtype=float)
    count = len(x)
    if count < 2:
        return None
    return float(math.sqrt(((x - w * x.sum()) ** 2).sum() * count / (count - 1)))


def t_factor(count: int, level: float = 0.95) -> float:
    """Standard errors in half an interval, where `count` numbers gave the error (Student's t)."""
    return float(stats.t.ppf(0.5 + level / 2, max(count - 1, 1)))


def log_ratio_interval(
    top: Sequence[float],
    bottom: Sequence[float],
    weights: Sequence[float],
    *,
    solver_error: float = 0.0,
    level: float = 0.95,
) -> tuple[float, float] | None:
    """Interval of Σ top / Σ bottom, both measured on the same chunks.

    Delta method on the logarithm with the chunks paired, Student's t with C − 1 degrees of
    freedom, widened by the solver's own relative error. Which layer is largest and which is
    smallest is taken as given.

    Returns:
        Lower and upper end; None with fewer than two chunks or sums that are not positive.
    """
    a, b = float(np.sum(top)), float(np.sum(bottom))
    if len(top) < 2 or a <= 0 or b <= 0:
        return None
    paired = np.asarray(top, dtype=float) / a - np.asarray(bottom, dtype=float) / b
    # The paired shares sum to zero, so their expected share of each chunk is zero too.
    error = share_stderr(paired.tolist(), weights)
    assert error is not None
    half = t_factor(len(top), level) * error + solver_error
    return a / b * math.exp(-half), a / b * math.exp(half)
