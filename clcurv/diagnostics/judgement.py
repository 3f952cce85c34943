"""From eigenvalues to statements: which s may be used, and κ over those that may."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

import numpy as np

from clcurv.curvature.lanczos import Extremes
from clcurv.diagnostics.intervals import log_ratio_interval, share_stderr
from clcurv.diagnostics.kappa import KappaStatus, LayerSensitivity, Status
from clcurv.inputs.layers import Layer

NOISE_MARGIN = 10.0


class Condition(TypedDict):
    """The part of `KappaResult` that compares layers."""

    kappa: float | None
    kappa_low: float | None
    kappa_high: float | None
    p90_p10: float | None
    status: KappaStatus
    reason: str


def layer_sensitivity(
    layer: Layer,
    *,
    numel: int,
    found: Extremes | None,
    weights: Sequence[float],
    unused: bool,
    noise: float,
    lambda_min: bool,
) -> LayerSensitivity:
    """What the solver found for a layer, judged.

    Args:
        layer: The layer.
        numel: Its number of parameters.
        found: The solver's last state; None when there is none.
        weights: Every micro-batch's part of the loss terms.
        unused: The loss does not depend on the layer.
        noise: Size of rounding in its products.
        lambda_min: Whether the smallest eigenvalue was pursued.
    """
    if found is None:
        reason = "the loss does not depend on it" if unused else "not reached before the end"
        return LayerSensitivity(
            name=layer.name,
            param_names=layer.param_names,
            depth=layer.depth,
            numel=numel,
            is_head=layer.is_head,
            s=None,
            s_stderr=None,
            lambda_min=None,
            residual=None,
            error_bound=None,
            steps=0,
            converged=False,
            status="unused" if unused else "unconverged",
            reason=reason,
            tied_names=layer.tied_names,
        )
    s = found.top.value
    status, reason = _judge(found, NOISE_MARGIN * max(noise, found.noise))
    return LayerSensitivity(
        name=layer.name,
        param_names=layer.param_names,
        depth=layer.depth,
        numel=numel,
        is_head=layer.is_head,
        s=s,
        s_stderr=share_stderr(found.shares.tolist(), weights),
        lambda_min=found.bottom.value if lambda_min and found.bottom_converged else None,
        residual=found.top.residual / abs(s) if s else None,
        error_bound=found.error,
        steps=found.steps,
        converged=found.top_converged,
        status=status,
        reason=reason,
        tied_names=layer.tied_names,
        n_batches=len(weights),
    )


def _judge(found: Extremes, floor: float) -> tuple[Status, str]:
    s = found.top.value
    scale = max(abs(s), abs(found.bottom.value))
    if scale <= floor or scale == 0.0:
        return "below-resolution", f"|s| ≤ {floor:.1e}, the size of rounding"
    if s <= 0 and not found.top_converged:
        return "unconverged", f"no upward curvature found in {found.steps} steps"
    if s <= 0:
        return "non-positive", f"largest eigenvalue {s:.3g}: curved downwards in every direction"
    if s <= floor:
        return "below-resolution", f"s = {s:.1e} ≤ {floor:.1e}, the size of rounding"
    if not found.top_converged:
        return "unconverged", f"error {found.error:.1%} after {found.steps} steps"
    return "ok", ""


def condition(
    layers: Sequence[LayerSensitivity],
    shares: Mapping[str, Sequence[float]],
    weights: Sequence[float],
    *,
    include_head: bool,
) -> Condition:
    """κ = max s / min s with its 95 % interval, and the ratio of the 90th to 10th percentile.

    κ is refused where a layer that counts has no positive s above rounding; the layer is named.
    """
    counted = [x for x in layers if include_head or not x.is_head]
    bad = [
        x
        for x in counted
        if x.status in ("non-positive", "below-resolution") or (x.s is not None and x.s <= 0)
    ]
    usable = [x for x in counted if x.s is not None and x.status in ("ok", "unconverged")]
    refused = Condition(
        kappa=None, kappa_low=None, kappa_high=None, p90_p10=None, status="refused", reason=""
    )
    if bad:
        refused["reason"] = f"layer {bad[0].name}: {bad[0].reason}"
        return refused
    missing = [x for x in counted if x.s is None and x.status != "unused"]
    if missing:
        refused["reason"] = f"layer {missing[0].name}: {missing[0].reason}"
        return refused
    if len(usable) < 2:
        refused["reason"] = f"κ compares layers, and {len(usable)} can be used"
        return refused
    largest = max(usable, key=lambda x: x.s or 0.0)
    smallest = min(usable, key=lambda x: x.s or 0.0)
    assert largest.s is not None
    assert smallest.s is not None
    interval = log_ratio_interval(
        shares[largest.name],
        shares[smallest.name],
        weights,
        solver_error=(largest.error_bound or 0.0) + (smallest.error_bound or 0.0),
    )
    high, low = np.percentile([x.s for x in usable if x.s is not None], [90, 10])
    return Condition(
        kappa=largest.s / smallest.s,
        kappa_low=max(1.0, interval[0]) if interval else None,
        kappa_high=interval[1] if interval else None,
        p90_p10=float(high / low),
        status="ok",
        reason="",
    )
