"""Relative importance of every parameter, and the multipliers of the penalty that follow.

Suresh et al., arXiv 2608.00630: α_rel = α_past/(α_past + α_la + ε), with α_la the importance for
the current task of a look-ahead copy trained on it. Above a tensor's threshold τ a parameter is
protected (factor λ_up), below it is freed (λ_down); the penalty is λ/2 Σ α'(θ − θ*)².
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from clcurv.curvature.importance import Importance
from clcurv.diagnostics.agreement import TOP, Agreement, agreement
from clcurv.diagnostics.importance_kind import check_same_kind, padded
from clcurv.diagnostics.relimp import LayerImportance, TauMode, TensorImportance
from clcurv.errors import UsageError
from clcurv.inputs.layers import Layer

EPS = 1e-10
NEAR_ZERO = 1e-10
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
LAMBDA_UP_TAU = 0.05
# Slopes that are zero by symmetry (a key's bias in attention) come out as rounding, of which two
# make a ratio of one half: below this part of the network's mean importance there is none.
VANISHING = 1e-6
# Quantiles and medians of more elements than this are taken on a random draw of them.
EXACT = 1 << 22

Multiplier = Literal["paper", "code"]
LambdaUp = float | Callable[[float], float]


def relate(
    past: Importance,
    current: Importance,
    layers: Sequence[Layer],
    *,
    tau_mode: TauMode = "scaled-mean",
    lambda_up: LambdaUp | None = None,
    lambda_down: float = 1.0,
    multiplier: Multiplier = "paper",
    weights: Mapping[str, float] | None = None,
    seed: int = 0,
    samples_may_differ: bool = False,
) -> tuple[dict[str, Tensor], tuple[TensorImportance, ...], tuple[LayerImportance, ...]]:
    """Who a parameter matters to, and how strongly to hold on to it.

    ε is 1e-10 of the median of what is positive in α_past + α_la of the tensor. Rows of the head
    that the past does not know have past importance zero, so nothing holds them.

    Args:
        past: Importance for the past, accumulated over its tasks.
        current: Of the look-ahead copy on the current task, taken the same way.
        layers: Whose tensors to relate, with their order and names.
        tau_mode: ``scaled-mean`` (0.8 mean of α_rel), ``fixed`` (0.5), ``mean-plus-std``; per
            tensor.
        lambda_up: Factor above τ, or a function of τ (see `lambda_up_between`); default
            ⌈1/max(τ, 0.05)⌉.
        lambda_down: Factor below τ.
        multiplier: ``paper``: α' = λ_up·α_past above τ, λ_down·α_past below; ``code``: times
            α_rel as well.
        weights: Parameter name -> factor on α', e.g. λ_ℓ of a κ schedule.
        seed: Of the draws from large layers and of the bootstrap.
        samples_may_differ: See `check_same_kind`.

    Returns:
        Parameter name -> α' (float32, CPU); and the figures by tensor and by layer, in the
        layers' order.

    Raises:
        MismatchError: Importances of two kinds or networks.
        UsageError: An unknown mode, or factors that are negative or not finite.
    """
    check_same_kind(past, current, samples_may_differ=samples_may_differ)
    if tau_mode not in ("scaled-mean", "fixed", "mean-plus-std"):
        raise UsageError(f"unknown tau mode {tau_mode!r}")
    if multiplier not in ("paper", "code"):
        raise UsageError(f"unknown multiplier {multiplier!r}", hint="--multiplier paper | code")
    if not (math.isfinite(lambda_down) and lambda_down >= 0):
        raise UsageError(f"λ_down is {lambda_down}", hint="a number from 0 to 1")
    floor = _floor(past), _floor(current)
    multipliers: dict[str, Tensor] = {}
    tensors: list[TensorImportance] = []
    found: list[LayerImportance] = []
    for layer in layers:
        parts = []
        for name in dict.fromkeys(layer.param_names):
            if name not in current.tensors:
                continue
            b = current.tensors[name].reshape(-1)
            a = padded(past.tensors[name], tuple(current.tensors[name].shape)).reshape(-1)
            parts.append(
                _Tensor(
                    name,
                    a,
                    b,
                    vanishing=_mean(a) <= floor[0] and _mean(b) <= floor[1],
                    tau_mode=tau_mode,
                    lambda_up=lambda_up,
                    lambda_down=lambda_down,
                    factor=1.0 if weights is None else weights.get(name, 1.0),
                    multiplier=multiplier,
                    seed=seed,
                )
            )
        if not parts:
            continue
        for part in parts:
            shape = current.tensors[part.name].shape
            multipliers[part.name] = part.multipliers.reshape(shape)
        figures, layer_figures = _describe(layer, parts, past, current, seed)
        tensors += figures
        found.append(layer_figures)
    return multipliers, tuple(tensors), tuple(found)


def relative_importance(past: Tensor, current: Tensor, *, seed: int = 0) -> Tensor:
    """α_rel in [0, 1], same shape; zero where both are zero."""
    total = past + current
    eps = EPS * _median_positive(total, seed)
    return past / (total + eps) if eps > 0 else torch.zeros_like(total)


def threshold(relative: Tensor, mode: TauMode) -> float:
    """τ of one tensor's α_rel."""
    if mode == "fixed":
        return 0.5
    if mode == "scaled-mean":
        return 0.8 * float(relative.mean())
    return float(relative.mean() + relative.std(correction=0))


def lambda_up_between(m: float, *, upper: float) -> Callable[[float], float]:
    """λ_up = lo + m·(hi − lo) as a function of τ: lo = ⌈1/max(τ, 0.05)⌉, hi = max(upper, lo).

    Args:
        m: From 1 (largest) down to 0.
        upper: LU/λ, the largest product of weight and factor over the penalty's weight.
    """

    def of(tau: float) -> float:
        low = lowest_lambda_up(tau)
        return low + m * (max(upper, low) - low)

    return of


def lowest_lambda_up(tau: float) -> float:
    return float(math.ceil(1 / max(tau, LAMBDA_UP_TAU)))


def lambda_ceiling(multipliers: Mapping[str, Tensor], learning_rate: float) -> float | None:
    """λ_max = 1/(η·max α'): a larger weight makes a step of SGD overshoot θ*; None where free."""
    largest = max((float(m.max()) for m in multipliers.values() if m.numel()), default=0.0)
    product = learning_rate * largest
    return 1 / product if product > 0 and math.isfinite(1 / product) else None


def near_zero_share(importance: Importance, *, seed: int = 0) -> float:
    """Part of all elements below 1e-10 of the median of the positive ones."""
    flat = torch.cat([t.reshape(-1) for t in importance.tensors.values()])
    return _near_zero(flat, seed)


def overall_agreement(
    past: Importance, current: Importance, layers: Sequence[Layer], *, seed: int = 0
) -> Agreement:
    """Over all tensors outside the head."""
    names = [n for x in layers if not x.is_head for n in x.param_names if n in current.tensors]
    names = [n for n in dict.fromkeys(names) if n not in current.head]
    if not names:
        return Agreement()
    a = torch.cat([past.tensors[n].reshape(-1) for n in names])
    b = torch.cat([current.tensors[n].reshape(-1) for n in names])
    return agreement(a, b, seed=seed)


class _Tensor:
    """One tensor's elements, flat, and what follows for them."""

    def __init__(
        self,
        name: str,
        past: Tensor,
        current: Tensor,
        *,
        vanishing: bool,
        tau_mode: TauMode,
        lambda_up: LambdaUp | None,
        lambda_down: float,
        factor: float,
        multiplier: Multiplier,
        seed: int,
    ) -> None:
        self.name, self.past, self.current = name, past, current
        self.vanishing = vanishing
        self.relative = (
            torch.zeros_like(past) if vanishing else relative_importance(past, current, seed=seed)
        )
        self.tau = threshold(self.relative, tau_mode) if past.numel() else 0.0
        if lambda_up is None:
            self.up = lowest_lambda_up(self.tau)
        else:
            self.up = float(lambda_up(self.tau)) if callable(lambda_up) else float(lambda_up)
        if not (math.isfinite(self.up) and self.up >= 0):
            raise UsageError(f"λ_up of {name} is {self.up}", hint="a number from 1")
        self.down = lambda_down
        self.above = self.relative > self.tau
        held = torch.where(self.above, self.up * factor, self.down * factor).to(past) * past
        self.multipliers = (held * self.relative if multiplier == "code" else held).float()


def _describe(
    layer: Layer, parts: Sequence[_Tensor], past: Importance, current: Importance, seed: int
) -> tuple[list[TensorImportance], LayerImportance]:
    a = torch.cat([p.past for p in parts])
    b = torch.cat([p.current for p in parts])
    relative = torch.cat([p.relative for p in parts])
    above = torch.cat([p.above for p in parts])
    matters_then, matters_now = _top(a, seed), _top(b, seed)
    shared = matters_then & matters_now
    protected = above & ~matters_now
    count = len(a)
    agreed = agreement(a, b, seed=seed)
    pieces = torch.split(shared, [len(p.past) for p in parts])
    figures = [
        TensorImportance(
            name=p.name,
            layer=layer.name,
            numel=len(p.past),
            tau=p.tau,
            protected=_share(p.above),
            shared=_share(piece),
            relative_mean=_mean(p.relative),
            relative_std=float(p.relative.std(correction=0)) if len(p.past) else 0.0,
            past_mean=_mean(p.past),
            current_mean=_mean(p.current),
            lambda_up=p.up,
            lambda_down=p.down,
            status="no-importance" if p.vanishing else "ok",
        )
        for p, piece in zip(parts, pieces, strict=True)
    ]
    q = np.quantile(_draw(relative, seed).numpy(), QUANTILES) if count else np.zeros(5)
    return figures, LayerImportance(
        name=layer.name,
        depth=layer.depth,
        numel=count,
        is_head=layer.is_head,
        protected=_share(protected),
        shared=_share(shared),
        free=_share(~(protected | shared)) if count else 1.0,
        quantiles=(float(q[0]), float(q[1]), float(q[2]), float(q[3]), float(q[4])),
        past_mean=_mean(a),
        past_stderr=past.layer_stderr.get(layer.name),
        current_mean=_mean(b),
        current_stderr=current.layer_stderr.get(layer.name),
        rank_correlation=agreed.rank,
        rank_low=agreed.rank_low,
        rank_high=agreed.rank_high,
        overlap=agreed.overlap,
        overlap_low=agreed.overlap_low,
        overlap_high=agreed.overlap_high,
        near_zero=_near_zero(a, seed),
        multiplier_max=max((float(p.multipliers.max()) for p in parts if len(p.past)), default=0.0),
    )


def _floor(importance: Importance) -> float:
    """Mean importance below which a tensor's is rounding."""
    total = sum(float(t.sum()) for t in importance.tensors.values())
    count = sum(t.numel() for t in importance.tensors.values())
    part = VANISHING if importance.estimator == "mas" else VANISHING**2
    return part * total / max(1, count)


def _draw(values: Tensor, seed: int) -> Tensor:
    """The values, or a random draw of `EXACT` of them."""
    if len(values) <= EXACT:
        return values
    generator = torch.Generator().manual_seed(seed)
    return values[torch.randint(len(values), (EXACT,), generator=generator)]


def _top(values: Tensor, seed: int) -> Tensor:
    """The largest tenth with all that equal its smallest; what is zero is never in it."""
    drawn = _draw(values, seed)
    if not len(drawn):
        return values > 0
    wanted = math.ceil(TOP * len(drawn))
    smallest = drawn.kthvalue(len(drawn) - wanted + 1).values
    return (values >= smallest) & (values > 0)


def _median_positive(values: Tensor, seed: int) -> float:
    drawn = _draw(values.reshape(-1), seed)
    positive = drawn[drawn > 0]
    return float(positive.median()) if len(positive) else float(values.max()) if len(drawn) else 0.0


def _near_zero(values: Tensor, seed: int) -> float:
    return _share(values <= NEAR_ZERO * _median_positive(values, seed))


def _share(mask: Tensor) -> float:
    return float(mask.sum()) / mask.numel() if mask.numel() else 0.0


def _mean(values: Tensor) -> float:
    return float(values.mean()) if values.numel() else 0.0
