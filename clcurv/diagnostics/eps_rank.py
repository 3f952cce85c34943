"""ε-ranks from quadratures and from exact eigenvalues."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from clcurv.curvature.quadrature import Rule, Tridiagonal
from clcurv.curvature.rank import count_interval, weight_beyond
from clcurv.diagnostics.spectrum import EpsRank, EstimateStatus

RESOLVED = 0.1  # of the count, on either side
CURVE_POINTS = 25
CURVE_LEAST = 1e-6


def eps_grid(scale: float, noise: float) -> list[float]:
    """ε for the curve: evenly on the logarithm from rounding (or 1e-6 of `scale`) to below `scale`.

    At the largest |λ| itself rounding would decide what is counted.
    """
    least = max(noise, CURVE_LEAST * scale)
    if not 0 < least < scale:
        return []
    return [float(e) for e in np.geomspace(least, scale, CURVE_POINTS, endpoint=False)]


def exact_rank(
    values: NDArray[np.float64],
    dimension: int,
    eps: float,
    *,
    upper: float | None = None,
    noise: float = 0.0,
) -> EpsRank:
    """Counted.

    Args:
        values: Eigenvalues; of the P those that are zero may be missing.
        dimension: P.
        eps: ε.
        upper: If given, only |λ| ≤ `upper` counts.
        noise: Rounding in an eigenvalue.
    """
    positive, negative = weight_beyond(values, np.ones(len(values)), eps, upper)
    count = positive + negative
    status, reason = _under_rounding(eps, noise)
    return EpsRank(
        eps=eps,
        count=count,
        fraction=count / dimension,
        positive=positive,
        negative=negative,
        low=count,
        high=count,
        half_steps=None,
        status=status,
        reason=reason,
        upper=upper,
    )


def quadrature_rank(
    runs: Sequence[Tridiagonal],
    dimension: int,
    eps: float,
    *,
    steps: int,
    upper: float | None = None,
    noise: float = 0.0,
) -> EpsRank:
    """Estimated from Lanczos runs: P times the mean weight of the nodes beyond ±ε.

    The interval has two sources. What a run's own energy beyond ε is lies between two Gauss-Radau
    sums (rigorous, see `Tridiagonal.rule_at`); how far that is from the fraction of all
    eigenvalues is chance, see `clcurv.curvature.rank.count_interval`.

    Args:
        runs: One a probe.
        dimension: P.
        eps: ε.
        steps: Lanczos steps asked for, m.
        upper: If given, only |λ| ≤ `upper` counts.
        noise: Rounding in an eigenvalue.
    """
    sides = _mean_weights([run.rule() for run in runs], eps, upper)
    positive, negative = dimension * sides[0], dimension * sides[1]
    count = positive + negative
    half = dimension * sum(
        _mean_weights([run.head(max(1, steps // 2)).rule() for run in runs], eps, upper)
    )
    bounds = [_bounds(run, eps, upper) for run in runs]
    least = [low for low, _ in bounds]
    most = [high for _, high in bounds]
    low, high = (
        min(count, count_interval(least, dimension)[0]),
        max(count, count_interval(most, dimension)[1]),
    )
    open_below = max(0.0, count - dimension * float(np.mean(least)))
    open_above = max(0.0, dimension * float(np.mean(most)) - count)
    status, reason = _under_rounding(eps, noise)
    if status == "ok" and max(open_below, open_above) > max(0.5, RESOLVED * count):
        status = "not-resolved"
        reason = (
            f"ε lies among Ritz values too far apart: {steps} steps leave between "
            f"{count - open_below:.4g} and {count + open_above:.4g}"
        )
    elif status == "ok" and not low - 0.5 <= half <= high + 0.5:
        status = "not-resolved"
        reason = f"{steps} and {steps // 2} steps disagree: {count:.4g} and {half:.4g}"
    single = len(runs) == 1
    return EpsRank(
        eps=eps,
        count=count,
        fraction=count / dimension,
        positive=positive,
        negative=negative,
        low=None if single else low,
        high=None if single else high,
        half_steps=half,
        status=status,
        reason=reason,
        upper=upper,
    )


def _under_rounding(eps: float, noise: float) -> tuple[EstimateStatus, str]:
    if 0 < eps <= noise:
        return "below-resolution", f"ε = {eps:.3g} lies under rounding ({noise:.3g})"
    return "ok", ""


def _mean_weights(rules: Sequence[Rule], eps: float, upper: float | None) -> tuple[float, float]:
    sides = np.array([weight_beyond(r.nodes, r.weights, eps, upper) for r in rules])
    positive, negative = sides.mean(axis=0)
    return float(positive), float(negative)


def _bounds(run: Tridiagonal, eps: float, upper: float | None) -> tuple[float, float]:
    """Least and most energy with ε < |λ| ≤ upper that the run allows."""
    low = high = 0.0
    for sign in (1, -1):
        inner = _energy_beyond(run, sign * eps, sign)
        outer = (0.0, 0.0) if upper is None else _energy_beyond(run, sign * upper, sign)
        low += max(0.0, inner[0] - outer[1])
        high += max(0.0, inner[1] - outer[0])
    return low, min(1.0, high)


def _energy_beyond(run: Tridiagonal, x: float, sign: int) -> tuple[float, float]:
    """Bounds of the energy above x (`sign` 1) or below x (−1)."""
    rule = run.rule_at(x)
    outside = sign * (rule.nodes - x)
    if run.exhausted:
        exact = float(rule.weights[outside > 0].sum())
        return exact, exact
    at = int(np.abs(outside).argmin())
    outside[at] = -math.inf
    beyond = float(rule.weights[outside > 0].sum())
    return beyond, beyond + float(rule.weights[at])
