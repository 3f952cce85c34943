"""Ranks of spectra: pure functions of singular values, or of quadrature nodes and weights."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special

from clcurv.errors import NumericalError, UsageError

_Floats = NDArray[np.float64]


def effective_rank(singular_values: ArrayLike) -> float:
    """exp of the entropy of σ/Σσ (Roy and Vetterli 2007, definition 1).

    Between 1 (one direction) and the number of values (all equal); it does not depend on the
    matrix' scale. Given σ² it is the other reading, of the covariance.

    Args:
        singular_values: (k,), ≥ 0, in any order.

    Returns:
        0 for a matrix of zeros.

    Raises:
        NumericalError: A value that is negative or not finite.
    """
    sigma = _nonnegative(singular_values)
    largest = sigma.max(initial=0.0)
    if largest == 0.0:
        return 0.0
    p = sigma / largest  # first, so that the sum neither overflows nor vanishes
    p = p[p > 0] / p.sum()
    return float(math.exp(-float((p * np.log(p)).sum())))


def approximate_rank(singular_values: ArrayLike, energy: float = 0.99) -> int:
    """How many of the largest σ hold the part `energy` of Σσ²; 0 for a matrix of zeros.

    Raises:
        NumericalError: A value that is negative or not finite.
        UsageError: `energy` is not in (0, 1].
    """
    if not 0 < energy <= 1:
        raise UsageError(f"a part of the energy lies between 0 and 1, not at {energy}")
    sigma = _nonnegative(singular_values)
    largest = sigma.max(initial=0.0)
    if largest == 0.0:
        return 0
    held = np.cumsum(np.sort((sigma / largest) ** 2)[::-1])
    # Sums of rounded squares: a share that is reached up to rounding is reached.
    return int(np.searchsorted(held, energy * held[-1] * (1 - 1e-12)) + 1)


def weight_beyond(
    nodes: ArrayLike, weights: ArrayLike, eps: float, upper: float | None = None
) -> tuple[float, float]:
    """Weight of the nodes with λ > ε, and of those with λ < −ε.

    Args:
        nodes: (m,) eigenvalues or Ritz values.
        weights: (m,), ≥ 0.
        eps: ε ≥ 0.
        upper: If given, only nodes with |λ| ≤ `upper` count.
    """
    x, w = np.asarray(nodes, dtype=float), np.asarray(weights, dtype=float)
    inside = np.abs(x) <= (math.inf if upper is None else upper)
    return float(w[inside & (x > eps)].sum()), float(w[inside & (x < -eps)].sum())


def count_interval(
    shares: Sequence[float], dimension: int, level: float = 0.95
) -> tuple[float, float]:
    """Interval of the rank r of a projector Π from vᵀΠv of random unit vectors v.

    For a direction that is uniform on the sphere (a normalised Gaussian) vᵀΠv has exactly the
    distribution Beta(r/2, (P − r)/2). The mean of n of them is taken as the Beta distribution
    with the same mean and variance, which is exact for n = 1 and becomes so for small r/P (sums
    of χ² variables). The interval holds every r under which the mean seen is no surprise; unlike
    Student's t it keeps its coverage where r is one or two and the distribution skewed.

    Args:
        shares: vᵀΠv for every probe, in [0, 1].
        dimension: P.
        level: Coverage.

    Returns:
        Lower and upper end, 0 ≤ low ≤ high ≤ P.
    """
    n, seen = len(shares), float(np.clip(np.mean(shares), 0.0, 1.0))
    # Var Beta(ar/2, a(P−r)/2) = 2r(P−r)/(P²(aP+2)) is to be 1/n of that with a = 1.
    a = (n * (dimension + 2) - 2) / dimension
    tail = (1 - level) / 2

    def above(r: float) -> float:
        return float(special.betaincc(a * r / 2, a * (dimension - r) / 2, seen)) - tail

    def below(r: float) -> float:
        return float(special.betainc(a * r / 2, a * (dimension - r) / 2, seen)) - tail

    least, most = 1e-9, dimension * (1 - 1e-12)
    low = high = float(seen * dimension)
    if 0.0 < seen < 1.0:
        # Rank 0 and rank P have no spread: at them the tails are 0 or 1.
        low = optimize.brentq(above, least, most) if above(least) < 0 < above(most) else 0.0
        high = optimize.brentq(below, least, most) if below(most) < 0 < below(least) else dimension
    return min(float(low), seen * dimension), max(float(high), seen * dimension)


def _nonnegative(values: ArrayLike) -> _Floats:
    sigma = np.asarray(values, dtype=np.float64).reshape(-1)
    if not bool(np.isfinite(sigma).all()) or bool((sigma < 0).any()):
        raise NumericalError("singular values must be finite and not negative")
    return sigma
