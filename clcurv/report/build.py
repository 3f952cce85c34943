"""Results and advice -> the report document."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from typing import TYPE_CHECKING, Any

from clcurv.report.document import (
    CrossCheckInfo,
    DataInfo,
    Defaults,
    EstimatorInfo,
    Group,
    KappaDocument,
    KappaInfo,
    ModelInfo,
    ScheduleInfo,
    ToolInfo,
    finite,
)

if TYPE_CHECKING:
    from clcurv.diagnostics.kappa import KappaResult, LayerSensitivity
    from clcurv.inputs.architecture import LoadedModel
    from clcurv.inputs.checkpoint import Weights
    from clcurv.inputs.dataset import Samples
    from clcurv.recommend.schedule import GroupAdvice, Schedule

CROSS_CHECK_LIMIT = 0.02
_PACKAGES = ("torch", "timm", "transformers", "numpy", "scipy")


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
        tool=ToolInfo(version=_version("clcurv") or "unknown"),
        created=(created or datetime.now(UTC)).astimezone(UTC).isoformat(timespec="seconds"),
        complete=complete,
        command=_optional(
            command if command is None or isinstance(command, str) else shlex.join(command)
        ),
        model=_model_info(model, weights, model_path),
        data=_data_info(result, samples, data_path),
        estimator=_estimator_info(result, granularity, settings or {}),
        kappa=_kappa_info(result),
        schedule=_schedule_info(schedule),
        defaults=Defaults(lambda_=schedule.default_lambda, lr_scale=schedule.default_lr_scale),
        groups=tuple(_group(i, x, advice[x.name]) for i, x in enumerate(result.layers)),
        cross_check=tuple(
            CrossCheckInfo(
                name=_clean(x.name),
                s=finite(x.s),
                s_pyhessian=finite(x.s_pyhessian),
                relative_difference=finite(x.relative_difference),
            )
            for x in result.cross_check
        ),
        warnings=_unique(
            [*warnings, *schedule.warnings, *_near_chance(result), *_disagreements(result)]
        ),
    )


def _model_info(
    model: LoadedModel | ModelInfo, weights: Weights | None, path: str | None
) -> ModelInfo:
    if isinstance(model, ModelInfo):
        return model
    notes = [*(weights.notes if weights else ()), *model.notes]
    return ModelInfo(
        path=_optional(path or (str(weights.path) if weights else None)),
        arch=_clean(model.arch),
        arch_source=model.arch_source,
        format=weights.format if weights else None,
        key=_optional(weights.key) if weights else None,
        prefix=_clean(weights.prefix) if weights else "",
        digest=weights.digest if weights else "",
        num_params=sum(p.numel() for p in model.model.parameters()),
        num_classes=model.num_classes,
        task=model.task,
        missing=_clean_all(model.missing),
        unexpected=_clean_all(model.unexpected),
        matched_fraction=model.matched_fraction,
        candidates=_clean_all(model.candidates),
        notes=_unique(notes),
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
        return DataInfo(source="given", path=_optional(path), **measured)
    return DataInfo(
        path=_optional(path),
        source=samples.source,
        label_source=samples.label_source,
        format=samples.format,
        available=samples.available,
        class_counts={str(k): int(v) for k, v in sorted(samples.class_counts.items())},
        digest=samples.digest,
        seed=samples.seed,
        skipped=_clean_all(samples.skipped),
        notes=_unique(samples.notes),
        **measured,
    )


def _estimator_info(
    result: KappaResult,
    granularity: str,
    settings: Mapping[str, str | int | float | bool | None],
) -> EstimatorInfo:
    versions = {"python": ".".join(map(str, sys.version_info[:3]))}
    for package in _PACKAGES:
        if version := _version(package):
            versions[package] = version
    return EstimatorInfo(
        operator=result.operator,
        loss=result.loss,
        dtype=result.dtype,
        device=result.device,
        attention=result.attention,
        tol=result.tol,
        max_steps=result.max_steps,
        seed=result.seed,
        granularity=_clean(granularity),
        cost_gradients=finite(result.cost_gradients),
        seconds=finite(result.seconds),
        versions=versions,
        settings={
            k: finite(v) if isinstance(v, float) else _clean(v) if isinstance(v, str) else v
            for k, v in settings.items()
        },
        notes=_unique(result.notes),
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
        reason=_clean(reason),
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
        advice=_clean(schedule.advice),
        normalisation=schedule.normalisation,
    )


def _group(layer_id: int, layer: LayerSensitivity, advice: GroupAdvice) -> Group:
    non_finite = layer.status == "ok" and finite(layer.s) is None
    return Group(
        name=_clean(layer.name),
        layer_id=layer_id,
        depth=layer.depth,
        is_head=layer.is_head,
        param_names=_clean_all(layer.param_names),
        tied_names=_clean_all(layer.tied_names),
        numel=layer.numel,
        s=finite(layer.s),
        s_stderr=finite(layer.s_stderr),
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
        reason=_clean(advice.reason),
    )


def _near_chance(result: KappaResult) -> list[str]:
    accuracy, chance = result.accuracy, result.chance
    if accuracy is None or chance is None or accuracy > chance + 0.1 * (1 - chance):
        return []
    return [
        f"accuracy {accuracy:.1%} is near chance ({chance:.1%}): are the weights, the labels "
        "and the preprocessing the right ones?"
    ]


def _disagreements(result: KappaResult) -> list[str]:
    return [
        f"cross-check: {x.name}: s {x.s:.4g}, PyHessian {x.s_pyhessian:.4g}, "
        f"{x.relative_difference:.1%} apart"
        for x in result.cross_check
        if not abs(x.relative_difference) <= CROSS_CHECK_LIMIT
    ]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _command(command: str | Sequence[str] | None) -> str | None:
    words = command if command is None or isinstance(command, str) else shlex.join(command)
    return _optional(words)


def _clean(text: str) -> str:
    """Lone surrogates, which names in hostile files may hold, have no UTF-8: spell them out."""
    return text.encode("utf-8", "backslashreplace").decode()


def _optional(text: str | None) -> str | None:
    return None if text is None else _clean(text)


def _clean_all(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(_clean(x) for x in texts)


def _unique(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_clean_all(texts)))
