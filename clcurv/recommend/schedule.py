"""Per-layer sensitivities -> a regularisation and learning-rate schedule, with its reasons.

The rule is that of *Layers Matter* (Moser et al., arXiv 2608.15901): the best weight of
layer ℓ is proportional to its sensitivity s_ℓ, but measured values used one by one do worse
than a uniform weight; a smooth geometric schedule λ_ℓ = c·γ^ℓ keeps the direction, which is
where the gain is.

Signs are written both ways in the field, so only these two are ever reported:

* ``gamma`` is λ_{ℓ+1}/λ_ℓ, the ratio from one depth to the next;
* ``direction`` is ``early`` where λ is larger in the early layers (γ < 1), ``late`` where it
  is larger in the late layers (γ > 1), ``flat`` where the data cannot tell.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from clcurv.errors import UsageError
from clcurv.recommend.fit import DepthFit, Direction, fit_depth
from clcurv.recommend.regret import measured_regret, regret_bound
from clcurv.recommend.wording import (
    LITERAL_LOSS,
    advice_sentence,
    gamma_text,
    group_reason,
    schedule_warnings,
)

if TYPE_CHECKING:
    from clcurv.diagnostics.kappa import KappaResult, LayerSensitivity

Mode = Literal["geometric", "power", "literal", "isotonic", "uniform"]

MIN_LAYERS = 3
LR_SCALE_LIMITS = (0.1, 10.0)
NORMALISATION = (
    "parameter-weighted mean of lambda over the measured backbone is the given lambda; "
    "lr_scale is proportional to 1/lambda with parameter-weighted mean 1, then clipped to "
    "[0.1, 10]"
)
_Floats = NDArray[np.float64]


@dataclass(frozen=True)
class GroupAdvice:
    """What to do with one layer.

    Attributes:
        name: The layer's name.
        lambda_: Weight of its penalty, relative (see `Schedule.normalisation`).
        lambda_low, lambda_high: `lambda_` over the 95 % interval of γ; None where it does
            not come from the geometric fit.
        lr_scale: Factor on its learning rate.
        reason: One line: the value, its interval, its range, and why.
    """

    name: str
    lambda_: float
    lambda_low: float | None
    lambda_high: float | None
    lr_scale: float
    reason: str


@dataclass(frozen=True)
class Schedule:
    """Advice for all layers, in the order of the result.

    Attributes:
        mode: The rule that the λ follow.
        requested: The rule asked for; differs from `mode` where the advice is uniform.
        direction: ``early`` (λ larger in early layers, γ < 1) | ``late`` (γ > 1) | ``flat``.
        gamma: Fitted ratio λ_{ℓ+1}/λ_ℓ = exp(Theil–Sen slope of log s on depth).
        gamma_low, gamma_high: Its 95 % interval.
        gamma_applied: The ratio the emitted λ have: `gamma` after the range limit in a
            geometric schedule, 1 in a uniform one, None in the others.
        level: Coverage of the interval; below 0.95 with fewer than five layers.
        fit_depth, fit_s: A point of the fitted line: s(d) = fit_s·γ^(d − fit_depth).
        r2: 1 − residual/total sum of squares of log s about the line (negative where the
            line is worse than the mean).
        spearman: Rank correlation of s with depth.
        n_fitted: Layers in the fit.
        range: Largest over smallest λ among the layers of the schedule.
        range_limited: The range was brought down to the limit.
        regret_bound: Largest possible loss by a uniform λ at equal forgetting, as a fraction
            of the oracle's gain: 1 − 2√κ/(1+κ). None without κ.
        regret_measured: The same for the new task's gradient, where given.
        advice: One sentence.
        normalisation: How λ and lr_scale are scaled.
        default_lambda, default_lr_scale: For parameters in no group, e.g. new heads.
        groups: One entry a layer.
        warnings: Sentences for the report.
    """

    mode: Mode
    requested: Mode
    direction: Direction
    gamma: float | None
    gamma_low: float | None
    gamma_high: float | None
    gamma_applied: float | None
    level: float | None
    fit_depth: float | None
    fit_s: float | None
    r2: float | None
    spearman: float | None
    n_fitted: int
    range: float
    range_limited: bool
    regret_bound: float | None
    regret_measured: float | None
    advice: str
    normalisation: str
    default_lambda: float
    default_lr_scale: float
    groups: tuple[GroupAdvice, ...]
    warnings: tuple[str, ...] = ()


def recommend_schedule(
    result: KappaResult,
    *,
    mode: Mode = "geometric",
    lam: float = 1.0,
    power: float = 0.5,
    max_range: float = 10.0,
    force: bool = False,
    include_head: bool = False,
) -> Schedule:
    """Turn measured sensitivities into λ_ℓ and lr_scale_ℓ.

    Modes, for the layers whose status is ``ok`` (y = log s):

    * ``geometric``: λ_ℓ ∝ γ^depth with γ from a Theil–Sen fit; uniform where the 95 %
      interval of γ holds 1.
    * ``power``: λ_ℓ ∝ (s_ℓ/median s)^power.
    * ``literal``: power 1. Needs `force`: it does worse than uniform.
    * ``isotonic``: the monotone profile nearest to y, in the direction of Spearman's sign.
    * ``uniform``: all alike.

    Where λ would span more than `max_range`, log λ is shrunk about its mean until it does
    not: the order and, in a geometric schedule, the constant ratio stay. With fewer than
    three usable layers, or where κ was refused, the schedule is uniform and says why.
    A layer whose status is not ``ok`` takes its λ from the geometric fit, or 1 in the other
    modes. Heads are outside (they are replaced per task) unless `include_head`.

    Args:
        result: From `clcurv.diagnostics.kappa`.
        mode: See above.
        lam: Overall strength; λ has this parameter-weighted mean.
        power: Exponent β of mode ``power``, in [0, 1).
        max_range: Largest λ over smallest λ, at most.
        force: Allow ``literal``.
        include_head: Let heads take part in the fit and the schedule.

    Raises:
        UsageError: An option is out of range, or ``literal`` without `force`.
    """
    _check_options(mode, lam=lam, power=power, max_range=max_range, force=force)
    scheduled = [x for x in result.layers if include_head or not x.is_head]
    usable = [x for x in scheduled if x.status == "ok" and x.s and 0 < x.s < math.inf]
    fit = fit_depth(usable) if len(usable) >= MIN_LAYERS else None
    why_uniform = _why_uniform(result, mode, usable, fit)
    applied: Mode = "uniform" if why_uniform else mode

    logs = _log_lambda(applied, scheduled, usable, fit, power)
    limited, limited_by = _limit_range(logs, max_range)
    numel = {x.name: float(x.numel) for x in scheduled}
    lambdas = _normalise(limited, numel)
    scales = {
        name: float(np.clip(value, *LR_SCALE_LIMITS))
        for name, value in _normalise({k: -v for k, v in limited.items()}, numel).items()
    }
    ends = _gamma_ends(fit, scheduled, max_range, numel) if applied == "geometric" else {}
    span = max(lambdas.values()) / min(lambdas.values()) if lambdas else 1.0

    groups = []
    for layer in result.layers:
        low, high = ends.get(layer.name, (None, None))
        value = lam * lambdas.get(layer.name, 1.0)
        groups.append(
            GroupAdvice(
                name=layer.name,
                lambda_=value,
                lambda_low=None if low is None else lam * low,
                lambda_high=None if high is None else lam * high,
                lr_scale=scales.get(layer.name, 1.0),
                reason=group_reason(
                    layer,
                    applied,
                    value=value,
                    ends=(low and lam * low, high and lam * high),
                    extremes=[lam * x for x in lambdas.values()],
                    outside=layer.is_head and not include_head,
                    in_rule=layer.name in lambdas,
                    median=float(np.median([x.s for x in usable if x.s])) if usable else None,
                ),
            )
        )
    gamma_applied = None
    if applied == "uniform":
        gamma_applied = 1.0
    elif applied == "geometric" and fit:
        gamma_applied = math.exp(fit.slope * limited_by)
    return Schedule(
        mode=applied,
        requested=mode,
        direction=fit.direction if fit and result.status == "ok" else "flat",
        gamma=fit.gamma if fit else None,
        gamma_low=fit.gamma_low if fit else None,
        gamma_high=fit.gamma_high if fit else None,
        gamma_applied=gamma_applied,
        level=fit.level if fit else None,
        fit_depth=fit.centre_depth if fit else None,
        fit_s=math.exp(fit.centre_log_s) if fit else None,
        r2=fit.r2 if fit else None,
        spearman=fit.spearman if fit else None,
        n_fitted=len(usable) if fit else 0,
        range=span,
        range_limited=limited_by < 1,
        regret_bound=None if result.kappa is None else regret_bound(result.kappa),
        regret_measured=measured_regret(usable, result.new_task_grad_sq),
        advice=advice_sentence(applied, mode, fit, why_uniform, span, limited_by < 1),
        normalisation=NORMALISATION,
        default_lambda=lam,
        default_lr_scale=1.0,
        groups=tuple(groups),
        warnings=tuple(schedule_warnings(applied, fit, limited_by, logs, max_range, power)),
    )


def _check_options(mode: str, *, lam: float, power: float, max_range: float, force: bool) -> None:
    if mode not in get_args(Mode):
        raise UsageError(f"unknown schedule {mode!r}", hint=f"one of {', '.join(get_args(Mode))}")
    if not (math.isfinite(lam) and lam > 0):
        raise UsageError(f"lambda must be a positive number, not {lam}")
    if not max_range >= 1:
        raise UsageError(f"the range of lambda must be at least 1, not {max_range}")
    if not (math.isfinite(power) and power >= 0):
        raise UsageError(f"the power must be at least 0, not {power}")
    if (mode == "literal" or (mode == "power" and power >= 1)) and not force:
        raise UsageError(
            f"refusing the literal schedule: {LITERAL_LOSS} in the paper (arXiv 2608.15901)",
            hint="use --schedule geometric, or add --force",
        )


def _why_uniform(
    result: KappaResult, mode: Mode, usable: Sequence[LayerSensitivity], fit: DepthFit | None
) -> str:
    """The reason for a uniform schedule; empty where the mode applies."""
    if mode == "uniform":
        return "asked for"
    if result.status != "ok":
        return f"κ was refused ({result.reason})"
    if fit is None and len(usable) >= MIN_LAYERS:
        return "all layers have one depth"
    if fit is None:
        return f"only {len(usable)} of {MIN_LAYERS} layers that a trend needs could be measured"
    if mode != "geometric":
        return ""
    if fit.within_noise:
        return "the layers differ by no more than their standard errors"
    if fit.direction == "flat":
        return f"no clear trend over depth: {gamma_text(fit)} contains 1"
    return ""


def _log_lambda(
    mode: Mode,
    scheduled: Sequence[LayerSensitivity],
    usable: Sequence[LayerSensitivity],
    fit: DepthFit | None,
    power: float,
) -> dict[str, float]:
    """Unscaled log λ of every layer that the rule covers."""
    if mode == "uniform" or fit is None:
        return {x.name: 0.0 for x in scheduled}
    if mode == "geometric":
        return {x.name: fit.slope * x.depth for x in scheduled}
    log_s = np.log([x.s for x in usable if x.s])
    if mode == "isotonic":
        from scipy.optimize import isotonic_regression

        order = np.argsort([x.depth for x in usable], kind="stable")
        smooth: _Floats = np.empty_like(log_s)
        smooth[order] = isotonic_regression(log_s[order], increasing=(fit.spearman or 0) >= 0).x
        values = smooth
    else:
        values = (1.0 if mode == "literal" else power) * log_s
    return {x.name: float(v) for x, v in zip(usable, values, strict=True)}


def _limit_range(logs: Mapping[str, float], max_range: float) -> tuple[dict[str, float], float]:
    """Shrink log λ until the range fits; also the factor used (1: left as it was)."""
    span = max(logs.values(), default=0.0) - min(logs.values(), default=0.0)
    limit = math.log(max_range)
    factor = limit / span if span > limit * (1 + 1e-12) else 1.0
    return {name: value * factor for name, value in logs.items()}, factor


def _normalise(logs: Mapping[str, float], numel: Mapping[str, float]) -> dict[str, float]:
    """exp(log λ) scaled to a parameter-weighted mean of 1."""
    if not logs:
        return {}
    values = np.array(list(logs.values()))
    values = np.exp(values - values.max())
    weights = np.array([numel[name] for name in logs])
    values = values / np.average(values, weights=weights if weights.sum() > 0 else None)
    return {name: float(v) for name, v in zip(logs, values, strict=True)}


def _gamma_ends(
    fit: DepthFit | None,
    scheduled: Sequence[LayerSensitivity],
    max_range: float,
    numel: Mapping[str, float],
) -> dict[str, tuple[float, float]]:
    """Smallest and largest λ of each layer over both ends and the middle of γ's interval."""
    if fit is None:
        return {}
    profiles = [
        _normalise(_limit_range({x.name: g * x.depth for x in scheduled}, max_range)[0], numel)
        for g in (fit.slope_low, fit.slope, fit.slope_high)
    ]
    return {
        x.name: (min(p[x.name] for p in profiles), max(p[x.name] for p in profiles))
        for x in scheduled
    }
