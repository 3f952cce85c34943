"""Results and advice of ``clcurv kappa`` -> its report."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from clcurv.report.document import ModelInfo, finite
from clcurv.report.kappa_document import (
    CrossCheckInfo,
    DataInfo,
    Defaults,
    EstimatorInfo,
    Group,
    KappaDocument,
    KappaInfo,
    ScheduleInfo,
)
from clcurv.report.parts import (
    clean,
    clean_all,
    clean_settings,
    model_info,
    near_chance,
    near_chance_text,
    optional,
    timestamp,
    tool_info,
    unique,
    versions,
)

if TYPE_CHECKING:
    from clcurv.diagnostics.kappa import KappaResult, LayerSensitivity
    from clcurv.inputs.architecture import LoadedModel
    from clcurv.inputs.checkpoint import Weights
    from clcurv.inputs.dataset import Samples
    from clcurv.recommend.schedule import GroupAdvice, Schedule

CROSS_CHECK_LIMIT = 0.02


def kappa_document(
    *,
    result: KappaResult,
    schedule: Schedule,
    model: LoadedModel | ModelInfo,
    samples: Samples | None,
    granularity: str,
    weights: Weights | None = None,
    model_path: str | None = None,
    data_path: str | None = None,
    command: str | Sequence[str] | None = None,
    settings: Mapping[str, str | int | float | bool | None] | None = None,
    warnings: Sequence[str] = (),
    complete: bool = True,
    created: datetime | None = None,
) -> KappaDocument:
    """Put everything that was found into one validated document.

    Args:
        result: What was measured.
        schedule: From `clcurv.recommend.schedule.recommend_schedule(result)`.
        model: The loaded model, or a `ModelInfo` for a live one.
        samples: The sample; None for data that never was a `Samples` (a live loader).
        granularity: ``block`` | ``module`` | ``tensor`` | the regular expression.
        weights: Where the model's tensors came from; gives path, format, key, prefix, digest.
        model_path, data_path: As the user wrote them.
        command: The command line, as a string or its words.
        settings: Further options that explain the numbers, e.g. ``{"head": "linear-probe"}``.
        warnings: Sentences; those of the schedule and of the cross-check are added.
        complete: False for what an interrupted run left.
        created: Default: now.

    Raises:
        pydantic.ValidationError: The parts do not go together (a fault of the caller).
    """
    advice = {group.name: group for group in schedule.groups}
    return KappaDocument(
        tool=tool_info(),
        created=timestamp(created),
        complete=complete,
        command=optional(
            command if command is None or isinstance(command, str) else shlex.join(command)
        ),
        model=model_info(model, weights, model_path),
        data=_data_info(result, samples, data_path),
        estimator=_estimator_info(result, granularity, settings or {}),
        kappa=_kappa_info(result),
        schedule=_schedule_info(schedule),
        defaults=Defaults(lambda_=schedule.default_lambda, lr_scale=schedule.default_lr_scale),
        groups=tuple(_group(i, x, advice[x.name]) for i, x in enumerate(result.layers)),
        cross_check=tuple(
            CrossCheckInfo(
                name=clean(x.name),
                s=finite(x.s),
                s_pyhessian=finite(x.s_pyhessian),
                relative_difference=finite(x.relative_difference),
            )
            for x in result.cross_check
        ),
        warnings=unique(
            [
                *warnings,
                *schedule.warnings,
                *_near_chance(result, samples),
                *_unused(result),
                *_disagreements(result),
            ]
        ),
    )


def _data_info(result: KappaResult, samples: Samples | None, path: str | None) -> DataInfo:
    measured: dict[str, Any] = {
        "n_samples": result.n_samples,
        "n_terms": result.n_terms,
        "n_batches": result.n_batches,
        "batch_size": result.batch_size,
        "accuracy": finite(result.accuracy),
        "chance": finite(result.chance),
        "mean_loss": finite(result.mean_loss),
    }
    if samples is None:
        return DataInfo(source="given", path=optional(path), **measured)
    return DataInfo(
        path=optional(path),
        source=samples.source,
        label_source=samples.label_source,
        format=samples.format,
        available=samples.available,
        class_counts={str(k): int(v) for k, v in sorted(samples.class_counts.items())},
        digest=samples.digest,
        seed=samples.seed,
        skipped=clean_all(samples.skipped),
        notes=unique(samples.notes),
        **measured,
    )


def _estimator_info(
    result: KappaResult,
    granularity: str,
    settings: Mapping[str, str | int | float | bool | None],
) -> EstimatorInfo:
    return EstimatorInfo(
        operator=result.operator,
        loss=result.loss,
        dtype=result.dtype,
        device=result.device,
        attention=result.attention,
        tol=result.tol,
        max_steps=result.max_steps,
        seed=result.seed,
        granularity=clean(granularity),
        cost_gradients=finite(result.cost_gradients),
        seconds=finite(result.seconds),
        versions=versions(),
        settings=clean_settings(settings),
        notes=unique(result.notes),
    )


def _kappa_info(result: KappaResult) -> KappaInfo:
    value = finite(result.kappa)
    status, reason = result.status, result.reason
    if value is None and status == "ok":
        status, reason = "refused", reason or "κ is not a finite number"
    return KappaInfo(
        value=value,
        low=finite(result.kappa_low),
        high=finite(result.kappa_high),
        p90_p10=finite(result.p90_p10),
        status=status,
        reason=clean(reason),
        include_head=result.include_head,
    )


def _schedule_info(schedule: Schedule) -> ScheduleInfo:
    return ScheduleInfo(
        mode=schedule.mode,
        requested=schedule.requested,
        direction=schedule.direction,
        gamma=finite(schedule.gamma),
        gamma_low=finite(schedule.gamma_low),
        gamma_high=finite(schedule.gamma_high),
        gamma_applied=finite(schedule.gamma_applied),
        level=schedule.level,
        fit_depth=schedule.fit_depth,
        fit_s=finite(schedule.fit_s),
        r2=finite(schedule.r2),
        spearman=finite(schedule.spearman),
        n_fitted=schedule.n_fitted,
        range=schedule.range,
        range_limited=schedule.range_limited,
        regret_bound=finite(schedule.regret_bound),
        regret_measured=finite(schedule.regret_measured),
        advice=clean(schedule.advice),
        normalisation=schedule.normalisation,
    )


def _group(layer_id: int, layer: LayerSensitivity, advice: GroupAdvice) -> Group:
    non_finite = layer.status == "ok" and finite(layer.s) is None
    low, high = layer.interval or (None, None)
    return Group(
        name=clean(layer.name),
        layer_id=layer_id,
        depth=layer.depth,
        is_head=layer.is_head,
        param_names=clean_all(layer.param_names),
        tied_names=clean_all(layer.tied_names),
        numel=layer.numel,
        s=finite(layer.s),
        s_stderr=finite(layer.s_stderr),
        s_low=finite(low),
        s_high=finite(high),
        lambda_min=finite(layer.lambda_min),
        residual=finite(layer.residual),
        error_bound=finite(layer.error_bound),
        steps=layer.steps,
        converged=layer.converged,
        status="non-finite" if non_finite else layer.status,
        lambda_=advice.lambda_,
        lambda_low=finite(advice.lambda_low),
        lambda_high=finite(advice.lambda_high),
        lr_scale=advice.lr_scale,
        reason=clean(advice.reason),
    )


def _near_chance(result: KappaResult, samples: Samples | None) -> list[str]:
    # Labels drawn from the model itself say how certain it is, not how good.
    drawn = samples is not None and samples.label_source == "model"
    if drawn or not near_chance(result.accuracy, result.chance):
        return []
    return [
        f"{near_chance_text(result.accuracy, result.chance)}: are the weights, the labels and the "
        "preprocessing the right ones?"
    ]


def _unused(result: KappaResult) -> list[str]:
    names = [layer.name for layer in result.layers if layer.status == "unused"]
    if not names:
        return []
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return [
        f"the loss does not depend on {', '.join(map(clean, names[:3]))}{more}: not measured. "
        "Parts of the network that are not used, or cut off from the gradient (detach, item, "
        "checkpoint with use_reentrant=True)?"
    ]


def _disagreements(result: KappaResult) -> list[str]:
    return [
        f"cross-check: {x.name}: s {x.s:.4g}, PyHessian {x.s_pyhessian:.4g}, "
        f"{x.relative_difference:.1%} apart"
        for x in result.cross_check
        if not abs(x.relative_difference) <= CROSS_CHECK_LIMIT
    ]
