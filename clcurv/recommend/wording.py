"""The sentences of a schedule: one reason a layer, one of advice, and its warnings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clcurv.diagnostics.kappa import LayerSensitivity
    from clcurv.recommend.fit import DepthFit

LITERAL_LOSS = "weights taken literally from s lost 4 to 14 % absolute against uniform"


def gamma_text(fit: DepthFit) -> str:
    """γ and its interval, as a clause that ends in a comma."""
    low, high = f"{fit.gamma_low:.3g}", f"{fit.gamma_high:.3g}"
    return f"γ {fit.gamma:.3g}, {100 * fit.level:.0f} % interval {low} to {high},"


def group_reason(
    layer: LayerSensitivity,
    mode: str,
    *,
    value: float,
    ends: tuple[float | None, float | None],
    extremes: Sequence[float],
    outside: bool,
    in_rule: bool,
    median: float | None,
) -> str:
    """One line about one layer: what was measured, its λ with its range, and why."""
    measured = _measured(layer, median)
    if outside:
        return (
            f"{measured}; head: replaced per task, so outside the schedule, λ {value:.3g}, "
            "give it its own learning rate"
        )
    if mode == "uniform":
        return f"{measured}; uniform schedule, λ {value:.3g}"
    if not in_rule:
        return f"{measured}; not in the {mode} rule, λ {value:.3g}"
    spread = f"layers span {min(extremes):.3g} to {max(extremes):.3g}"
    if mode == "geometric":
        low, high = f"{ends[0]:.3g}", f"{ends[1]:.3g}"
        over = f" ({low} to {high} over γ's interval)" if low != high else ""
        return f"{measured}; λ {value:.3g} from the fit{over}, {spread}"
    return f"{measured}; λ {value:.3g} by the {mode} rule, {spread}"


def _measured(layer: LayerSensitivity, median: float | None) -> str:
    if layer.status != "ok" or layer.s is None or not math.isfinite(layer.s):
        status = "non-finite" if layer.status == "ok" else layer.status
        return f"{status}{f' ({layer.reason})' if layer.reason else ''}: s not used"
    text = f"s {layer.s:.3g}"
    if layer.interval is not None:
        low, high = layer.interval
        text += f" (95 % {max(low, 0.0):.3g} to {high:.3g})"
    if median:
        text += f", {_factor(layer.s / median, 2)}× the median"
    return text


def _factor(value: float, digits: int) -> str:
    """``6010`` for 6013 at three digits; exponents only from a million on."""
    text = f"{value:.{digits}g}"
    return f"{float(text):.0f}" if "e+" in text and value < 1e6 else text


def advice_sentence(
    applied: str,
    requested: str,
    fit: DepthFit | None,
    why_uniform: str,
    span: float,
    limited: bool,
) -> str:
    """What to do, in one sentence."""
    if applied == "uniform":
        return f"Use the same λ and learning rate in every layer: {why_uniform}."
    assert fit is not None
    if fit.direction == "flat":
        return (
            f"The {requested} rule spans {span:.2g}×, but no trend over depth is clear "
            f"({gamma_text(fit).rstrip(',')}): uniform is the safer choice."
        )
    where, other = ("early", "late") if fit.direction == "early" else ("late", "early")
    shrunk = ", the limit" if limited else ""
    return (
        f"Protect {where} layers more and let {other} layers learn faster: "
        f"{gamma_text(fit)} and λ by the {requested} rule spans {span:.2g}×{shrunk}."
    )


def schedule_warnings(
    applied: str,
    fit: DepthFit | None,
    limited_by: float,
    logs: Mapping[str, float],
    max_range: float,
    power: float,
) -> list[str]:
    """What a reader of the schedule must also know."""
    notes = []
    if fit and fit.level < 0.945:
        notes.append(
            f"with {fit.n} layers the interval of γ covers {100 * fit.level:.0f} %, not 95 %"
        )
    if limited_by < 1:
        span = math.exp(min(max(logs.values()) - min(logs.values()), 700.0))  # stays finite
        notes.append(
            f"λ would span {_factor(span, 3)}×; exponents shrunk by {limited_by:.3g} "
            f"to keep it within {max_range:.3g}×"
        )
    if applied == "literal" or (applied == "power" and power >= 1):
        notes.append(f"{LITERAL_LOSS} in the paper (arXiv 2608.15901); forced")
    return notes
