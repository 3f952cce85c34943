"""Stochastic Lanczos quadrature: nodes and weights of a spectrum from products alone.

m Lanczos steps from a unit vector v give a tridiagonal T whose eigenvalues θ_i and squared first
eigenvector components w_i are Gauss' quadrature for the measure of v's energy over the spectrum:
Σ w_i f(θ_i) = vᵀf(H)v for polynomials f of degree below 2m, and so estimates tr f(H)/P for
random v (Golub and Meurant 2010, ch. 6; Ubaru, Chen and Saad 2017).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import eigh_tridiagonal
from torch import Tensor

from clcurv.curvature.lanczos import unseen

_Floats = NDArray[np.float64]
ProductsWith = Callable[[Tensor], Tensor]
DOUBT = 1e-2  # chance of an eigenvalue left unseen beyond an end that is called converged


@dataclass(frozen=True)
class Rule:
    """Nodes (ascending) and weights (≥ 0, sum 1) of a Gauss quadrature."""

    nodes: _Floats
    weights: _Floats


@dataclass(frozen=True)
class Tridiagonal:
    """What Lanczos steps from one vector leave.

    Attributes:
        alphas: (m,) diagonal.
        betas: (m,); the first m − 1 are the off-diagonal, the last is the length of the vector
            to come, 0 where the Krylov space is invariant and the measure known exactly.
    """

    alphas: _Floats
    betas: _Floats

    @property
    def steps(self) -> int:
        return len(self.alphas)

    @property
    def exhausted(self) -> bool:
        return bool(self.betas[-1] == 0.0)

    def head(self, steps: int) -> Tridiagonal:
        """What fewer steps would have left."""
        return Tridiagonal(self.alphas[:steps], self.betas[:steps])

    def rule(self) -> Rule:
        values, vectors = self._eigen()
        weights = vectors[0] ** 2
        return Rule(values, weights / weights.sum())

    def rule_at(self, x: float) -> Rule:
        """Gauss-Radau: the quadrature of one node more, of which x is one.

        Its weights bound the energy below x from both sides: without and with the node at x
        (Chebyshev, Markov, Stieltjes; Golub 1973, section 7).
        """
        if self.exhausted:
            return self.rule()
        # Solve (T − xI) δ = β_m² e_m; the last diagonal entry is x + δ_m.
        m, beta = self.steps, float(self.betas[-1])
        pivot = float(self.alphas[0]) - x
        tiny = np.finfo(float).eps * (float(np.abs(self.alphas).max()) + beta)
        for i in range(1, m):
            pivot = float(self.alphas[i]) - x - float(self.betas[i - 1]) ** 2 / (pivot or tiny)
        last = x + beta**2 / (pivot or tiny)
        extended = Tridiagonal(np.append(self.alphas, last), np.append(self.betas, 0.0))
        return extended.rule()

    def ends(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """(λ_min, residual), (λ_max, residual) of the outermost Ritz pairs."""
        values, vectors = self._eigen()
        residuals = np.abs(vectors[-1]) * self.betas[-1]
        return (
            (float(values[0]), float(residuals[0])),
            (float(values[-1]), float(residuals[-1])),
        )

    def ruled_out(self, x: float, dimension: int) -> bool:
        """Whether an eigenvalue as far out as x would have shown, but for a chance of 1 %.

        See `clcurv.curvature.lanczos.unseen`; x lies beyond all nodes, the start was Gaussian.
        """
        if self.exhausted or self.steps >= dimension:
            return True
        logs = float(np.log(self.betas).sum())
        return unseen(x, self.rule().nodes.tolist(), logs, dimension, DOUBT)

    def _eigen(self) -> tuple[_Floats, _Floats]:
        if self.steps == 1:
            return self.alphas.copy(), np.ones((1, 1))
        values, vectors = eigh_tridiagonal(self.alphas, self.betas[:-1])
        return values, vectors


def probe_vectors(like: Tensor, seed: int, probes: Sequence[int]) -> Tensor:
    """(k, P) unit vectors uniform on the sphere, each by its own seed and index.

    The same on every device and whichever others are drawn with them. Not Rademacher: a Gaussian
    start misses no eigenvector, and the energy of a projector of rank r has a known distribution,
    see `clcurv.curvature.rank.count_interval`.
    """
    drawn = like.new_empty(len(probes), len(like))
    for row, i in zip(drawn, probes, strict=True):
        # torch's generator on the CPU takes 32 bits of a seed: the upper ones would be lost.
        g = torch.Generator().manual_seed(zlib.crc32(f"{seed}:probe:{i}".encode()))
        v = torch.randn(len(like), generator=g, dtype=torch.float32)
        row.copy_(v)
        row /= norm(row)
    return drawn


def lanczos(
    products: ProductsWith,
    starts: Tensor,
    steps: int,
    *,
    noise: float = 0.0,
    on_step: Callable[[int], None] | None = None,
) -> list[Tridiagonal]:
    """Lanczos from every start at once, each with a basis of its own.

    Coefficients in float64; every new vector is orthogonalised against the whole basis, and
    again where that took away much of its length ("twice is enough", Giraud et al. 2005).

    Args:
        products: (j, P) -> (j, P), H times every row; j falls as starts are exhausted.
        starts: (k, P), any length above 0.
        steps: At most this many; P ends it as well.
        noise: A vector to come that is no longer than this is rounding: the space is invariant.
        on_step: Told the number of steps taken.

    Cost: one product a start and step; memory steps·P numbers a start.
    """
    steps = min(steps, starts.shape[1])
    runs = [_Run(v, steps) for v in starts]
    active = list(runs)
    for done in range(steps):
        out = products(torch.stack([run.latest for run in active]))
        for run, w in zip(active, out, strict=True):
            run.absorb(w, noise)
        active = [run for run in active if not run.exhausted]
        if on_step is not None:
            on_step(done + 1)
        if not active:
            break
    return [run.tridiagonal() for run in runs]


def norm(v: Tensor) -> float:
    """Length of a vector, added up in float64."""
    return float(torch.linalg.vector_norm(v, dtype=torch.float64))


def dot(a: Tensor, b: Tensor, piece: int = 1 << 20) -> float:
    """a·b, added up in float64, a million entries at a time."""
    return sum(
        float(a[i : i + piece].double() @ b[i : i + piece].double())
        for i in range(0, len(a), piece)
    )


class _Run:
    """One start's basis and coefficients."""

    def __init__(self, start: Tensor, steps: int) -> None:
        self._basis = start.new_empty(steps, len(start))
        self._basis[0] = start / norm(start)
        self._alphas: list[float] = []
        self._betas: list[float] = []
        self.exhausted = False

    @property
    def latest(self) -> Tensor:
        return self._basis[len(self._alphas)]

    def absorb(self, w: Tensor, noise: float) -> None:
        """Takes the product with the latest vector and makes the next one."""
        j = len(self._alphas)
        q = self._basis[j]
        alpha = dot(q, w)
        w = w - alpha * q
        if j:
            w -= self._betas[-1] * self._basis[j - 1]
        self._alphas.append(alpha)
        beta = self._orthogonalised(w)
        scale = max(map(abs, self._alphas + self._betas))
        tiny = max(noise, 10 * torch.finfo(w.dtype).eps * scale)
        if beta <= tiny or j + 1 == len(w):
            self.exhausted = True
            beta = 0.0
        self._betas.append(beta)
        if not self.exhausted and j + 1 < len(self._basis):
            torch.div(w, beta, out=self._basis[j + 1])

    def _orthogonalised(self, w: Tensor) -> float:
        """Makes w orthogonal to the basis, in place; its length."""
        known = self._basis[: len(self._alphas)]
        before = norm(w)
        while True:
            w -= (known @ w) @ known
            after = norm(w)
            if after > 0.7 * before or after == 0.0:
                return after
            if after < 10 * torch.finfo(w.dtype).eps * before:
                return 0.0  # nothing of it was new
            before = after

    def tridiagonal(self) -> Tridiagonal:
        return Tridiagonal(np.array(self._alphas), np.array(self._betas))


def weighted_trace(rules: Sequence[Rule], dimension: int) -> tuple[float, float | None]:
    """P times the mean of Σ w θ over the probes, and its standard error (None of a single one)."""
    each = [dimension * float(r.weights @ r.nodes) for r in rules]
    error = float(np.std(each, ddof=1)) / math.sqrt(len(each)) if len(each) > 1 else None
    return float(np.mean(each)), error
