"""The trend of log s over depth, robust to single layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from clcurv.diagnostics.kappa import LayerSensitivity

Direction = Literal["early", "late", "flat"]


@dataclass(frozen=True)
class DepthFit:
    """A line log s = centre_log_s + slope·(depth − centre_depth).

    Attributes:
        slope, slope_low, slope_high: Theil–Sen slope and its interval, per unit of depth.
        level: Coverage of the interval (0.95 where the number of layers allows it).
        centre_depth, centre_log_s: Medians, a point of the line.
        r2: 1 − residual/total sum of squares of log s; None where log s is constant.
        spearman: Rank correlation; None where s is constant.
        n: Layers fitted.
        within_noise: The layers differ by no more than their standard errors.
    """

    slope: float
    slope_low: float
    slope_high: float
    level: float
    centre_depth: float
    centre_log_s: float
    r2: float | None
    spearman: float | None
    n: int
    within_noise: bool

    @property
    def gamma(self) -> float:
        """exp(slope): the ratio of s, and so of λ, from one depth to the next."""
        return _exp(self.slope)

    @property
    def gamma_low(self) -> float:
        return _exp(self.slope_low)

    @property
    def gamma_high(self) -> float:
        return _exp(self.slope_high)

    @property
    def direction(self) -> Direction:
        """``early``: falls with depth; ``late``: rises; ``flat``: cannot be told."""
        if self.within_noise or self.slope_low <= 0 <= self.slope_high:
            return "flat"
        return "early" if self.slope < 0 else "late"


def _exp(value: float) -> float:
    return math.exp(min(value, 700.0))  # a slope beyond this is no schedule; stay finite


def fit_depth(layers: Sequence[LayerSensitivity]) -> DepthFit | None:
    """Theil–Sen fit of log s on depth (`scipy.stats.theilslopes`, 95 % interval).

    With fewer than five points no pairwise-slope interval reaches 95 %: the widest one, from
    the smallest to the largest slope, misses a true slope of 0 with probability 2/n!, and
    that coverage is what `DepthFit.level` reports.

    Args:
        layers: At least two, each with a positive `s`.

    Returns:
        None where all layers have one depth.
    """
    from scipy.stats import spearmanr, theilslopes

    depth = np.array([x.depth for x in layers], dtype=np.float64)
    log_s = np.log([x.s for x in layers if x.s])
    if np.ptp(depth) == 0:
        return None
    slope, _, low, high = (float(x) for x in theilslopes(log_s, depth, 0.95))
    centre_depth, centre_log_s = float(np.median(depth)), float(np.median(log_s))
    line = centre_log_s + slope * (depth - centre_depth)
    total = float(np.sum((log_s - log_s.mean()) ** 2))
    constant = float(np.ptp(log_s)) == 0.0
    n = len(layers)
    return DepthFit(
        slope=slope,
        slope_low=low,
        slope_high=high,
        level=min(0.95, 1 - 2 / math.factorial(min(n, 10))),
        centre_depth=centre_depth,
        centre_log_s=centre_log_s,
        r2=None if constant else 1 - float(np.sum((log_s - line) ** 2)) / total,
        spearman=None if constant else float(spearmanr(depth, log_s).statistic),
        n=n,
        within_noise=constant or _homogeneous(layers, log_s),
    )


def _homogeneous(layers: Sequence[LayerSensitivity], log_s: NDArray[np.float64]) -> bool:
    """Cochran's Q test at 5 %: could all log s be one number, given their standard errors?

    Cochran, *The combination of estimates from different experiments*, Biometrics 1954.
    The error of log s is that of s divided by s.
    """
    from scipy.stats import chi2

    errors = [x.s_stderr / x.s if x.s and x.s_stderr else 0.0 for x in layers]
    if not all(0 < e < math.inf for e in errors):
        return False
    weights = 1 / np.square(errors)
    mean = np.average(log_s, weights=weights)
    q = float(np.sum(weights * (log_s - mean) ** 2))
    return bool(chi2.sf(q, len(layers) - 1) > 0.05)
