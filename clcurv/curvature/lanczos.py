"""Extreme eigenvalues of many symmetric blocks at once, one step of each a pass over the data.

Every block keeps an orthonormal basis V and its products W = HV, and grows it by residuals of
the Ritz pairs it is after: Rayleigh-Ritz in a growing subspace. From one start vector this
*is* the Lanczos method with full re-orthogonalisation; unlike it, it may start from several
vectors at once. All blocks advance in lock-step; those that are done drop out.

A small residual only proves that *an* eigenvalue is near, not that it is the largest one.
Two guards: pairs near the top one are pursued with it, and the estimate of the error uses the
gap to the next Ritz value, treating values too close to tell apart as one cluster (Kato-Temple:
for a gap g the error is at most residual²/g; Parlett, The Symmetric Eigenvalue Problem,
ch. 10-11).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from clcurv.curvature.products import Products, project

# On real networks the error came out up to 1.3 times the estimate below.
MARGIN = 1.5
RUNNERS_UP = 4
LARGEST_CLUSTER = 3

ProductsOf = Callable[[Mapping[str, Tensor], Mapping[str, Tensor]], Mapping[str, Products]]


@dataclass(frozen=True)
class Pair:
    """A Ritz pair: value, unit vector (d,), residual ‖Hv − θv‖ (absolute)."""

    value: float
    vector: Tensor
    residual: float


@dataclass(frozen=True)
class Extremes:
    """Both ends of one block's spectrum.

    Attributes:
        top: Largest eigenvalue.
        bottom: Smallest one; converged only if it was asked for.
        ritz: All Ritz values, descending, of the last subspace.
        runners_up: The next pairs after the top one, at most `RUNNERS_UP`.
        error: Estimated error of the top value, relative to it.
        bottom_error: Residual of the bottom pair, relative to the spectrum's scale. Its
            neighbours are many and near, so there is no gap to speak of.
        steps: Products taken.
        top_converged, bottom_converged: Each error is within its tolerance.
        shares: (n_chunks,) what every chunk of the data contributes to the top value.
        noise: Largest |vᵀHw − wᵀHv| seen between basis vectors: what rounding leaves.
    """

    top: Pair
    bottom: Pair
    ritz: tuple[float, ...]
    runners_up: tuple[Pair, ...]
    error: float
    bottom_error: float
    steps: int
    top_converged: bool
    bottom_converged: bool
    shares: Tensor
    noise: float


@dataclass(frozen=True)
class Start:
    """Where a block's search begins, and what is already known of its spectrum.

    Attributes:
        vectors: (m, d) starting vectors, any length and angle.
        ratios: Expected λ_2/λ_1, λ_3/λ_1, ...; used for the gap beside the Ritz values.
    """

    vectors: Tensor
    ratios: tuple[float, ...] = ()


def random_start(like: Tensor, m: int, generator: torch.Generator) -> Start:
    """m Gaussian vectors, the same on every device for one seed."""
    v = torch.randn(m, len(like), generator=generator, dtype=torch.float32)
    return Start(v.to(dtype=like.dtype, device=like.device))


def lockstep_extremes(
    products: ProductsOf,
    starts: Mapping[str, Start],
    *,
    tol: float,
    max_steps: int,
    pursue: int = 1,
    near: float | None = None,
    runner_tol: float = 0.1,
    bottom: bool = False,
    bottom_tol: float | None = None,
    bottom_patience: int = 4,
    residual_tol: float | None = None,
    doubt: float | None = None,
    on_pass: Callable[[Mapping[str, Extremes], int], None] | None = None,
) -> dict[str, Extremes]:
    """Largest (and smallest) eigenvalue of every block.

    Args:
        products: Block products for the layers in its first argument, see
            `clcurv.curvature.operators.BlockOperator.products`.
        starts: Layer -> where to start.
        tol: Largest estimated error of the top value, relative to it.
        max_steps: Products a block may take.
        pursue: How many of the largest Ritz pairs to grow the subspace by.
        near: If given, the runners-up whose value is at least this part of the top's are pursued
            too: in a cluster the first to converge need not be the largest.
        runner_tol: Residual that is enough for them, relative to the top value.
        bottom: Whether to pursue the smallest eigenvalue too.
        bottom_tol: Its error relative to the spectrum's scale; default `tol`.
        bottom_patience: Over so many passes the smallest Ritz value must not have fallen by
            more than that. A small residual alone says nothing here: any vector has one where
            most eigenvalues are near zero.
        residual_tol: If given, the top pair's residual, relative to its value, must be
            within it too.
        doubt: If given, the chance left that an eigenvalue further out than the tolerances allow
            stays unseen; needs one Gaussian start a block. See `unseen`.
        on_pass: Called after each pass with every layer's state and how many are done.

    Cost: one product a vector, for the layers still active; memory 2 k d numbers a layer.
    """
    spaces = {name: _Subspace(start) for name, start in starts.items()}
    states: dict[str, Extremes] = {}
    while spaces:
        pending = {name: space.pending for name, space in spaces.items()}
        bases = {name: space.basis_with_pending() for name, space in spaces.items()}
        for name, product in products(pending, bases).items():
            space = spaces[name]
            space.absorb(product)
            state = states[name] = space.extremes(
                tol, bottom_tol or tol, bottom_patience, residual_tol
            )
            if doubt is not None:
                state = states[name] = space.beyond_doubt(state, tol, bottom_tol or tol, doubt)
            wanted = [] if state.top_converged else list(range(min(pursue, state.steps)))
            if near is not None:
                wanted += _unsettled(state, near, runner_tol)
            if bottom and not state.bottom_converged:
                wanted.append(state.steps - 1)
            if doubt is not None and wanted:
                wanted = [space.outward]  # residuals from one start are parallel: the longest
            room = min(max_steps, space.dimension) - state.steps
            if not space.grow(wanted, room):
                if bottom and room > 0 and not state.bottom_converged:
                    # Nothing but rounding is left of its residual.
                    states[name] = replace(state, bottom_converged=True)
                if doubt is not None and room > 0:
                    states[name] = replace(state, top_converged=True, bottom_converged=bottom)
                del spaces[name]
        if on_pass is not None:
            on_pass(states, len(starts) - len(spaces))
    return states


def _unsettled(state: Extremes, near: float, runner_tol: float) -> list[int]:
    """Which pairs after the top one are near it and not resolved."""
    top = state.top.value
    return [
        i
        for i, pair in enumerate(state.runners_up, start=1)
        if top > 0 and pair.value >= near * top and pair.residual > runner_tol * top
    ]


def unseen(
    x: float, values: Sequence[float], log_betas: float, dimension: int, doubt: float
) -> bool:
    """Whether an eigenvalue as far out as x is ruled out, but for a chance of `doubt`.

    The Lanczos vector to come is p(H) times the start, p(x) = Π(x − θ_i)/Π β_i, and has unit
    length. So an eigenvalue x whose eigenvector has the component c in the start obeys
    |p(x)| ≤ 1/|c|; and a Gaussian start's |c| is below doubt · √(π/2d) with probability `doubt`
    (van Dorsselaer, Hochstenbach & van der Vorst 2000, section 3).

    Args:
        x: Beyond all Ritz values, above or below.
        values: Ritz values θ_i.
        log_betas: Σ log β_i.
        dimension: d of the block.
        doubt: The chance.
    """
    grown = sum(math.log(abs(x - v)) for v in values) - log_betas
    return grown >= -math.log(doubt * math.sqrt(math.pi / (2 * dimension)))


def temple_error(
    values: Sequence[float], residuals: Sequence[float], ratios: Sequence[float] = ()
) -> float:
    """Estimated error of the largest Ritz value.

    The smallest of the residual itself and, for j = 1, 2, ..., (r_1² + ... + r_j²)/gap with
    the gap between the largest value and the (j+1)-th: j > 1 takes the first j values as one
    cluster, for which the single gap would promise nothing. A neighbour counts as near as the
    nearer of its Ritz value and its expected ratio to the largest says.

    Args:
        values: Ritz values, descending.
        residuals: Of the first few of them.
        ratios: Expected λ_2/λ_1, λ_3/λ_1, ...
    """
    best, square = residuals[0], 0.0
    for j, residual in enumerate(residuals):
        square += residual**2
        known = [*values[j + 1 : j + 2], *(values[0] * q for q in ratios[j : j + 1])]
        if known and values[0] > max(known):
            best = min(best, square / (values[0] - max(known)))
    return best


class _Subspace:
    """One block's basis V (k, d), its products W = HV, and VᵀH_cV for every chunk c."""

    def __init__(self, start: Start) -> None:
        self._basis = start.vectors[:0]
        self._products = start.vectors[:0]
        self._shares = torch.zeros(0, 0, 0, dtype=torch.float64)
        self._ratios = start.ratios
        self._noise = 0.0
        self._lows: list[float] = []
        self._log_betas = 0.0
        self.outward = 0
        self.dimension = start.vectors.shape[1]
        self.pending = self._orthonormal(start.vectors)

    def basis_with_pending(self) -> Tensor:
        return torch.cat([self._basis, self.pending])

    def absorb(self, new: Products) -> None:
        """Takes the pending vectors into the basis with their products."""
        old, k = len(self._basis), len(self._basis) + len(self.pending)
        columns = new.projections
        shares = torch.zeros(len(columns), k, k, dtype=torch.float64)
        if old:
            shares[:, :old, :old] = self._shares
        shares[:, :, old:] = columns
        shares[:, old:, :old] = columns[:, :old].transpose(1, 2)
        inner = columns[:, old:]
        shares[:, old:, old:] = (inner + inner.transpose(1, 2)) / 2
        # Symmetry costs one small product to check: what is left of it is rounding.
        total = columns.sum(dim=0)
        skew = total[old:] - total[old:].T
        across = total[:old] - project(self._products, self.pending)
        left = [float(a.abs().max()) for a in (skew, across) if a.numel()]
        self._noise = max([self._noise, *left])
        self._shares = shares
        self._basis = self.basis_with_pending()
        self._products = torch.cat([self._products, new.vectors])
        self.pending = self.pending[:0]

    def extremes(
        self, tol: float, bottom_tol: float, patience: int, residual_tol: float | None
    ) -> Extremes:
        values, rotation = torch.linalg.eigh(self._shares.sum(dim=0))
        values, rotation = values.flip(0), rotation.flip(1)
        ritz = values.tolist()
        tops = [self._pair(ritz[i], rotation[:, i]) for i in range(min(1 + RUNNERS_UP, len(ritz)))]
        low = self._pair(ritz[-1], rotation[:, -1])
        scale = max(abs(ritz[0]), abs(ritz[-1]))
        error = MARGIN * temple_error(
            ritz, [p.residual for p in tops[:LARGEST_CLUSTER]], self._ratios
        )
        relative = error / (ritz[0] if ritz[0] > 0 else scale) if scale > 0 else 0.0
        bottom_relative = low.residual / scale if scale > 0 else 0.0
        self._lows.append(low.value)
        fallen = self._lows[max(0, len(self._lows) - 1 - patience)] - low.value
        settled = scale == 0 or (len(self._lows) > patience and fallen <= bottom_tol * scale)
        exhausted = len(self._basis) == self.dimension
        sharp = residual_tol is None or tops[0].residual <= residual_tol * scale
        self._values, self._rotation = ritz, rotation
        return Extremes(
            top=tops[0],
            bottom=low,
            ritz=tuple(ritz),
            runners_up=tuple(tops[1:]),
            error=relative,
            bottom_error=bottom_relative,
            steps=len(self._basis),
            top_converged=exhausted or (relative <= tol and sharp),
            bottom_converged=exhausted or (settled and bottom_relative <= bottom_tol),
            shares=torch.einsum("i,cij,j->c", rotation[:, 0], self._shares, rotation[:, 0]),
            noise=self._noise,
        )

    def beyond_doubt(
        self, state: Extremes, tol: float, bottom_tol: float, doubt: float
    ) -> Extremes:
        """The state, not converged where something further out may be unseen; once a pass."""
        scale = max(abs(state.top.value), abs(state.bottom.value))
        last = self._rotation[-1].abs()
        self.outward = int(last.argmax())
        _, residual = self._residual(self._values[self.outward], self._rotation[:, self.outward])
        beta = float(residual.double().norm() / last[self.outward])
        tiny = torch.finfo(self._basis.dtype).eps * scale
        if beta <= tiny or state.steps == self.dimension:
            return state
        self._log_betas += math.log(beta)

        def ruled_out(x: float) -> bool:
            return unseen(x, self._values, self._log_betas, self.dimension, doubt)

        top = ruled_out(state.top.value + tol * (abs(state.top.value) or scale))
        bottom = ruled_out(state.bottom.value - bottom_tol * scale)
        return replace(state, top_converged=top, bottom_converged=bottom)

    def grow(self, wanted: Sequence[int], room: int) -> bool:
        """Makes residuals of the wanted Ritz pairs pending; False when nothing new is in them."""
        tiny = torch.finfo(self._basis.dtype).eps * max(map(abs, self._values))
        residuals = []
        for i in dict.fromkeys(wanted):
            direction = self._residual(self._values[i], self._rotation[:, i])[1]
            if float(direction.double().norm()) > tiny:
                residuals.append(direction)
        if residuals and room > 0:
            self.pending = self._orthonormal(torch.stack(residuals[:room]))
        return len(self.pending) > 0

    def _pair(self, value: float, coefficients: Tensor) -> Pair:
        vector, residual = self._residual(value, coefficients)
        return Pair(value, vector, float(residual.double().norm()))

    def _residual(self, value: float, coefficients: Tensor) -> tuple[Tensor, Tensor]:
        """The Ritz vector and its residual Hv − θv."""
        c = coefficients.to(self._basis)
        vector = c @ self._basis
        return vector, c @ self._products - value * vector

    def _orthonormal(self, vectors: Tensor) -> Tensor:
        """The vectors made orthonormal, to the basis too; those that vanish are left out."""
        kept = self._basis
        for v in vectors:
            length = float(v.double().norm())
            if length == 0.0:
                continue
            v = v / length
            for _ in range(2):  # twice is enough (Giraud et al. 2005)
                if len(kept):
                    v = v - project(kept, v[None])[:, 0].to(v) @ kept
                left = float(v.double().norm())
                if left < 1e-2 * torch.finfo(v.dtype).eps ** 0.5:
                    break
                v = v / left
            else:
                kept = torch.cat([kept, v[None]])
        return kept[len(self._basis) :]
