"""Where eigenvalues lie, from the nodes and weights in a report, on an axis that shows all.

The axis is u = asinh(λ/λ₀): linear for |λ| below λ₀, logarithmic beyond, for both signs. One
axis serves all tasks of a report, so that their densities can be laid over each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clcurv.report.spectrum_document import SpectrumInfo

DECADES = 4
"""λ₀ lies this many decades under the largest |λ|."""
WIDTH = 0.15
"""Standard deviation of the kernel on the axis: 15 % of λ far from zero, 0.15 λ₀ near it."""


@dataclass(frozen=True)
class Axis:
    """u = asinh(λ/λ₀) from `low` to `high`, both eigenvalues.

    Attributes:
        scale: λ₀.
    """

    low: float
    high: float
    scale: float

    @classmethod
    def over(cls, spectra: Sequence[SpectrumInfo]) -> Axis | None:
        """The axis that holds all nodes; None where nothing lies off zero."""
        ends = [x for s in spectra for q in s.quadrature for x in (min(q.nodes), max(q.nodes))]
        ends += [x for s in spectra for x in (s.lambda_min, s.lambda_max) if x is not None]
        if not ends or not any(ends):
            return None
        top = max(abs(x) for x in ends)
        scale = top * 10.0**-DECADES
        return cls(min(*ends, -2 * scale), max(*ends, 2 * scale), scale)

    def position(self, value: Any) -> Any:
        """u of eigenvalues."""
        return np.arcsinh(np.asarray(value, dtype=float) / self.scale)

    def value(self, position: Any) -> Any:
        """Eigenvalues at u."""
        return self.scale * np.sinh(np.asarray(position, dtype=float))

    def grid(self, n: int, *, margin: float = 0.0) -> Any:
        """n evenly spaced u."""
        ends = self.position([self.low, self.high])
        return np.linspace(ends[0] - margin, ends[1] + margin, n)


def counts(spectrum: SpectrumInfo, axis: Axis, cells: int) -> list[float]:
    """Eigenvalues in each of `cells` equal parts of the axis; they sum to P."""
    edges = axis.grid(cells + 1)
    edges[0], edges[-1] = -math.inf, math.inf
    total = np.zeros(cells)
    for one in spectrum.quadrature:
        total += np.histogram(axis.position(one.nodes), bins=edges, weights=one.weights)[0]
    found: list[float] = (total * spectrum.n_parameters / len(spectrum.quadrature)).tolist()
    return found


def smoothed(spectrum: SpectrumInfo, axis: Axis, grid: Any, *, width: float = WIDTH) -> Any:
    """Eigenvalues per unit of u at the grid's points, by a Gaussian kernel on the axis.

    Args:
        spectrum: With at least one quadrature.
        axis: Shared by all tasks.
        grid: u, ascending.
        width: The kernel's standard deviation in u.
    """
    total = np.zeros(len(grid))
    norm = width * math.sqrt(2 * math.pi)
    for one in spectrum.quadrature:
        # Thousands of exact eigenvalues: first to cells a tenth of the kernel wide.
        u = axis.position(one.nodes)
        n = int((u.max() - u.min()) / (0.1 * width)) + 2
        weight, edges = np.histogram(u, bins=n, weights=one.weights)
        centre = (edges[1:] + edges[:-1]) / 2
        total += np.exp(-0.5 * ((grid[:, None] - centre) / width) ** 2) @ weight / norm
    return total * spectrum.n_parameters / len(spectrum.quadrature)
