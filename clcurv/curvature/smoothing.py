"""Smoothed spectra: densities for plots, and the ε-rank as it was published."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clcurv.errors import UsageError

_Floats = NDArray[np.float64]
PAPER_POINTS = 10_000
PAPER_VARIANCE = 1e-5  # of the range
PAPER_MARGIN = 0.01
WIDTH = 0.01  # of the range, of a density for plots


class HasNodes(Protocol):
    """Nodes and weights of one probe."""

    @property
    def nodes(self) -> ArrayLike: ...
    @property
    def weights(self) -> ArrayLike: ...


@dataclass(frozen=True)
class Density:
    """A smoothed spectrum.

    Attributes:
        x: (n,) where.
        y: (n,) density; it integrates to 1 over the line.
        width: Standard deviation of the Gaussian kernel: nothing narrower is to be seen.
    """

    x: _Floats
    y: _Floats
    width: float


@dataclass(frozen=True)
class SmoothedRank:
    """The ε-rank of a smoothed density.

    Attributes:
        fraction: Of the density's mass, beyond ±ε.
        width: Standard deviation of the kernel.
        kernel_limited: `width` exceeds ε: the figure measures the kernel, not the spectrum.
    """

    fraction: float
    width: float
    kernel_limited: bool


def density(rules: Sequence[HasNodes], *, points: int = 512, width: float | None = None) -> Density:
    """Mean over the probes of their nodes under a Gaussian kernel.

    Args:
        rules: One a probe.
        points: Of the grid, which reaches three widths beyond the outermost nodes.
        width: Standard deviation of the kernel; default a hundredth of the range.

    Raises:
        UsageError: No probe, fewer than two points, or a width that is not positive.
    """
    low, high = _range(rules)
    if width is None:
        width = WIDTH * (high - low) or WIDTH * abs(high) or WIDTH
    if points < 2 or not width > 0:
        raise UsageError("a density needs two points and a width above 0")
    x = np.linspace(low - 3 * width, high + 3 * width, points)
    return Density(x, _smoothed(rules, x, width), width)


def paper_rank(rules: Sequence[HasNodes], eps: float) -> SmoothedRank:
    """The ε-rank as published: of a density smoothed on a grid.

    10,000 points from the mean smallest to the mean largest node and 0.01 beyond, kernel variance
    1e-5 · max(1, range), normalised on the grid (the pipeline around PyHessian's densities, which
    Prakash et al. 2025, arXiv 2509.22335, use). Kept to compare with published figures: where the
    spectrum is wide the kernel is wider than ε.

    Raises:
        UsageError: No probe.
    """
    _range(rules)
    low = float(np.mean([np.min(r.nodes) for r in rules])) - PAPER_MARGIN
    high = float(np.mean([np.max(r.nodes) for r in rules])) + PAPER_MARGIN
    width = math.sqrt(PAPER_VARIANCE * max(1.0, high - low))
    x = np.linspace(low, high, PAPER_POINTS)
    y = _smoothed(rules, x, width)
    mass = float(y.sum())
    beyond = float(y[np.abs(x) > eps].sum()) / mass if mass > 0 else 0.0
    return SmoothedRank(fraction=beyond, width=width, kernel_limited=width > eps)


def _range(rules: Sequence[HasNodes]) -> tuple[float, float]:
    if not rules:
        raise UsageError("a density needs the nodes of a probe")
    return (
        min(float(np.min(r.nodes)) for r in rules),
        max(float(np.max(r.nodes)) for r in rules),
    )


def _smoothed(rules: Sequence[HasNodes], x: _Floats, width: float) -> _Floats:
    y = np.zeros(len(x))
    for rule in rules:
        for node, weight in zip(np.asarray(rule.nodes), np.asarray(rule.weights), strict=True):
            y += weight * np.exp(-0.5 * ((x - node) / width) ** 2)
    scaled: _Floats = y / (len(rules) * width * math.sqrt(2 * math.pi))
    return scaled
