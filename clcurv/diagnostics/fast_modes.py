"""How much of the initial residual K steps of gradient descent can fit.

On the linearised loss the weighted residual obeys r_{k+1} = (I − ηG) r_k with the loss-weighted
Gram matrix G: every eigenvalue μ of G has its own rate, and a mode is fast when
|1 − ημ|^K ≤ γ.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clcurv.curvature.influence import share_influence, stderr_of
from clcurv.curvature.objective import Objective, forward
from clcurv.curvature.operators import pullback
from clcurv.curvature.quadrature import Rule, lanczos, norm
from clcurv.curvature.whole import gram, gram_rows, products_with, weighted_residual
from clcurv.diagnostics.spectrum import EstimateStatus, FastModes
from clcurv.diagnostics.survey import within_memory
from clcurv.diagnostics.task_spectrum import Method
from clcurv.diagnostics.workspace import Params, Progress, Work, prepared, resolution, wave_of
from clcurv.errors import NumericalError, UsageError
from clcurv.inputs.dataset import Batch, Samples

AGREED = 0.02  # of the share, m against m/2 steps
FEW = 0.05  # part of the terms


def fast_band(
    lr: float, steps: int, momentum: float = 0.0, gamma: float = 0.1
) -> tuple[float, float]:
    """Eigenvalues whose residual K steps shrink to the part γ: ((1 − γ^{1/K})/η, (1 + γ^{1/K})/η).

    Args:
        lr: η; with momentum m its effective value η/(1 − m) is used.
        steps: K.
        momentum: m.
        gamma: γ.

    Raises:
        UsageError: A value outside its range.
    """
    if not (lr > 0 and math.isfinite(lr)):
        raise UsageError(f"a learning rate of {lr} moves nothing", hint="--lr 0.01")
    if steps < 1:
        raise UsageError(f"{steps} steps fit nothing", hint="--steps 1000")
    if not 0 <= momentum < 1:
        raise UsageError(f"momentum lies between 0 and 1, not at {momentum}")
    if not 0 < gamma < 1:
        raise UsageError(f"γ lies between 0 and 1, not at {gamma}")
    rate, exponent = lr / (1 - momentum), math.log(gamma) / steps
    return -math.expm1(exponent) / rate, (1 + math.exp(exponent)) / rate


def measure_fast_modes(
    model: nn.Module,
    params: Params,
    samples: Samples,
    objective: Objective,
    *,
    lr: float,
    steps: int,
    momentum: float = 0.0,
    gamma: float = 0.1,
    lanczos_steps: int = 100,
    dtype: str = "float32",
    device: str = "cpu",
    batch_size: int | None = None,
    memory: int | None = None,
    method: Method = "auto",
    progress: Progress | None = None,
) -> FastModes:
    """Share of the initial weighted residual in fast modes.

    The residual is C^{1/2} r₀, see `clcurv.curvature.whole.weighted_residual`: its squared length
    is twice the loss that the second-order model promises to take away. By the Gram matrix'
    eigenvectors where it is small; otherwise Lanczos on the Gauss-Newton matrix AᵀA from the
    gradient Aᵀs/√T, whose energy in a mode is the residual's times μ/T: no probe noise.

    Args:
        model, params, samples, objective, dtype, device, batch_size, memory, progress: As for
            `measure_spectrum`.
        lr, steps, momentum, gamma: As for `fast_band`.
        lanczos_steps: At most.
        method: ``auto`` | ``gram`` | ``lanczos-quadrature``.

    Raises:
        UsageError, NumericalError, ArchitectureError, ResourceError: As `measure_spectrum`.
    """
    band = fast_band(lr, steps, momentum, gamma)
    if method == "dense":
        raise UsageError("fast modes come from the Gram matrix or from Lanczos steps")
    with prepared(
        model,
        params,
        samples,
        objective,
        operator="ggn",
        dtype=dtype,
        device=device,
        seed=0,
        batch_size=batch_size,
        memory=memory,
    ) as work:
        tell = progress or (lambda stage, done, total: None)
        if method == "gram" or (method == "auto" and work.gram_small):
            return _by_gram(work, band, tell)
        return _by_lanczos(work, band, lanczos_steps, tell)


def _by_gram(work: Work, band: tuple[float, float], tell: Progress) -> FastModes:
    tell("gram matrix", 0, 1)
    rows = gram_rows("ggn", work.model, work.parameters, work.chunks(), work.objective)
    values, vectors = torch.linalg.eigh(gram(rows))
    start, each = within_memory(lambda size: _residual(work, work.samples.split(size)), work.chunk)
    start = start.cpu()
    energies = (vectors.T @ start).square().numpy()
    mu = values.numpy()
    tell("gram matrix", 1, 1)
    total = float(each.sum())
    inside = (mu >= band[0]) & (mu <= band[1])
    slope = np.maximum(mu, 0.0) * energies
    noise = resolution(work, float(mu[-1]))
    status, reason = _judged(band[0], noise, total)
    error = None
    if total > 0:
        influence = share_influence(values, vectors, start, torch.from_numpy(inside))
        by_term = influence.reshape(len(each), -1).sum(1)
        error = stderr_of(by_term.numpy(), _terms_by_sample(work))
    return FastModes(
        lower=band[0],
        upper=band[1],
        share_stderr=error,
        share=float(energies[inside].sum()) / total if total > 0 else 0.0,
        count=float(inside.sum()),
        half_steps=None,
        status=status,
        method="gram",
        reason=reason,
        gradient_share=float(slope[inside].sum() / slope.sum()) if slope.sum() > 0 else 0.0,
        carrying_terms=_carrying(each),
        cost_gradients=work.gram_cost(),
        notes=_notes(each),
    )


def _by_lanczos(
    work: Work, band: tuple[float, float], lanczos_steps: int, tell: Progress
) -> FastModes:
    _, bases = wave_of(work, 1, min(lanczos_steps, work.dimension))
    full = work.operate(bases)
    _, each = within_memory(lambda size: _residual(work, work.samples.split(size)), work.chunk)
    gradient = within_memory(lambda size: _gradient(work, work.samples.split(size)), work.chunk)
    total, length = float(each.sum()), norm(gradient)
    if length == 0.0 or total == 0.0:
        share = half = slope = 0.0
        spread, noise = 0.0, work.noise
    else:
        (run,) = lanczos(
            lambda v: products_with(full, v),
            gradient[None],
            lanczos_steps,
            on_step=lambda step: tell("fast modes", step, lanczos_steps),
        )
        scale = length**2 * len(each) / total
        share, slope = _shares(run.rule(), band, scale)
        half, _ = _shares(run.head(max(1, lanczos_steps // 2)).rule(), band, scale)
        noise = resolution(work, float(run.rule().nodes[-1]))
        at = run.rule_at(band[0])
        edge = int(np.abs(at.nodes - band[0]).argmin())
        spread = 0.0 if run.exhausted else scale * float(at.weights[edge]) / band[0]
    full.release()
    status, reason = _judged(band[0], noise, total)
    if status == "ok" and max(abs(share - half), spread / 2) > AGREED:
        status = "not-resolved"
        reason = (
            f"{lanczos_steps} and {lanczos_steps // 2} Lanczos steps give {share:.3f} and "
            f"{half:.3f}, and the lower edge leaves {spread:.3f} open"
        )
    return FastModes(
        lower=band[0],
        upper=band[1],
        share=min(1.0, share),
        count=None,
        half_steps=min(1.0, half),
        status=status,
        method="lanczos",
        reason=reason,
        gradient_share=slope,
        carrying_terms=_carrying(each),
        # And a forward pass and a gradient.
        cost_gradients=work.cost(full) + 4 / 3,
        notes=(*_notes(each), *dict.fromkeys(full.notes)),
    )


def _terms_by_sample(work: Work) -> list[int]:
    targets = work.samples.targets
    return [work.objective.terms(targets[i : i + 1]) for i in range(len(targets))]


def _shares(rule: Rule, band: tuple[float, float], scale: float) -> tuple[float, float]:
    """Of the residual's and of the gradient's squared length, from the gradient's quadrature."""
    inside = (rule.nodes >= band[0]) & (rule.nodes <= band[1])
    weights: NDArray[np.float64] = rule.weights[inside]
    return float(scale * (weights / rule.nodes[inside]).sum()), float(weights.sum())


@torch.no_grad()
def _residual(work: Work, chunks: list[Batch]) -> tuple[Tensor, NDArray[np.float64]]:
    """The weighted residual as one float64 vector, and its energy by term.

    Raises:
        NumericalError: A term that is so wrong that its energy is not finite.
    """
    parts = []
    for batch in chunks:
        rows, targets = work.objective.rows(forward(work.model, batch), batch.targets)
        parts.append(weighted_residual(rows, targets, work.objective))
    whole = torch.cat(parts)
    each: NDArray[np.float64] = whole.square().sum(1).cpu().numpy()
    if not bool(np.isfinite(each).all()):
        raise NumericalError(
            f"the residual of loss term {int(np.isfinite(each).argmin())} is not finite: the "
            "network is certain of something else there"
        )
    return whole.reshape(-1), each


def _gradient(work: Work, chunks: list[Batch]) -> Tensor:
    """∇L (P,)."""
    total = torch.zeros(work.dimension, dtype=torch.float64, device=work.parameters[0].device)
    terms = 0
    for batch in chunks:
        terms += work.objective.terms(batch.targets)
        loss = work.objective.loss_sum(work.model, batch)
        parts = pullback([loss], [torch.ones_like(loss)], work.parameters)
        total += torch.cat(
            [
                (torch.zeros_like(p) if g is None else g).reshape(-1)
                for p, g in zip(work.parameters, parts, strict=True)
            ]
        )
    return (total / terms).to(work.parameters[0].dtype)


def _judged(lower: float, noise: float, total: float) -> tuple[EstimateStatus, str]:
    if total == 0.0:
        return "below-resolution", "there is no residual left to fit"
    if lower <= noise:
        return "below-resolution", f"the lower edge {lower:.3g} lies under rounding ({noise:.3g})"
    return "ok", ""


def _carrying(each: NDArray[np.float64]) -> float:
    largest = each.max(initial=0.0)
    if largest == 0.0:
        return 0.0
    part = each / largest
    return float(part.sum() ** 2 / (part**2).sum())


def _notes(each: NDArray[np.float64]) -> tuple[str, ...]:
    carrying = _carrying(each)
    if not 0 < carrying < FEW * len(each):
        return ()
    return (
        f"{max(1, round(carrying))} of {len(each)} loss terms carry the residual: where the "
        "network is sure of a wrong answer, the second-order model overstates it",
    )
