"""Results, verdict and advice of ``clcurv spectrum`` -> its report, and the L2-ER document."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from clcurv.report.document import ModelInfo, finite
from clcurv.report.l2er_document import L2erDocument
from clcurv.report.parts import (
    Setting,
    clean,
    clean_all,
    clean_settings,
    model_info,
    optional,
    timestamp,
    tool_info,
    unique,
    versions,
)
from clcurv.report.spectrum_document import (
    BandInfo,
    CheckpointInfo,
    CollapseInfo,
    EpsRanks,
    L2erInfo,
    ObjectiveInfo,
    ReferenceInfo,
    SignalInfo,
    SpectrumDocument,
    SpectrumEstimatorInfo,
    StreamInfo,
    StreamTaskInfo,
    TaskInfo,
)
from clcurv.report.spectrum_tasks import histogram, task_info

if TYPE_CHECKING:
    from clcurv.diagnostics.spectrum import (
        SpectrumResult,
    )
    from clcurv.inputs.architecture import LoadedModel
    from clcurv.inputs.checkpoint import Weights
    from clcurv.recommend.l2er import L2erAdvice, Verdict


def spectrum_document(
    *,
    result: SpectrumResult,
    verdict: Verdict,
    advice: L2erAdvice | None,
    model: LoadedModel | ModelInfo,
    stream: Mapping[str, Any] | StreamInfo,
    stream_spec: str | None = None,
    data_path: str | None = None,
    weights: Weights | None = None,
    model_path: str | None = None,
    checkpoints: Sequence[tuple[str, str]] = (),
    paper_smoothing: bool = False,
    command: str | Sequence[str] | None = None,
    settings: Mapping[str, Setting] | None = None,
    warnings: Sequence[str] = (),
    complete: bool = True,
    created: datetime | None = None,
) -> SpectrumDocument:
    """Put everything that was found into one validated document.

    Args:
        result: What was measured.
        verdict: From `clcurv.recommend.l2er.judge(result)`.
        advice: From `clcurv.recommend.l2er.recommend_l2er`; None where there is none (a partial
            run).
        model: The loaded model, or a `ModelInfo` for a live one.
        stream: `Stream.resolved()`.
        stream_spec, data_path, model_path: As the user wrote them.
        weights: Where the first checkpoint's tensors came from.
        checkpoints: Path and digest of each, in the stream's order.
        paper_smoothing: Whether to add the ε-ranks of the published pipeline.
        command: The command line, as a string or its words.
        settings: Further options that explain the numbers, e.g. ``{"head": "fresh"}``.
        warnings: Sentences; those that follow from the numbers are added.
        complete: False for what an interrupted run left.
        created: Default: now.

    Raises:
        pydantic.ValidationError: The parts do not go together (a fault of the caller).
    """
    tasks = tuple(task_info(x, paper_smoothing) for x in result.tasks)
    own_reference = result.reference_kind != "first-task"
    return SpectrumDocument(
        tool=tool_info(),
        created=timestamp(created),
        complete=complete,
        command=optional(
            command if command is None or isinstance(command, str) else shlex.join(command)
        ),
        model=model_info(model, weights, model_path),
        checkpoints=tuple(CheckpointInfo(path=clean(p), digest=d) for p, d in checkpoints),
        stream=_stream(stream, stream_spec, data_path),
        estimator=_estimator(result, settings or {}),
        verdict=CollapseInfo(
            value=verdict.verdict,
            evidence=clean(verdict.evidence),
            signals=tuple(
                SignalInfo(
                    name=clean(x.name),
                    value=finite(x.value),
                    reference=finite(x.reference),
                    ratio=finite(x.ratio),
                    direction=x.direction,
                    agrees=x.agrees,
                    reason=clean(x.reason),
                )
                for x in verdict.signals
            ),
            late=verdict.late,
        ),
        l2er=None if advice is None else L2erInfo(**_coefficients(advice)),
        reference=ReferenceInfo(
            kind=result.reference_kind,
            task=task_info(result.reference, paper_smoothing) if own_reference else None,
        ),
        tasks=tasks,
        warnings=unique([*warnings, *result.notes, *_warnings(tasks)]),
    )


def l2er_document(
    *,
    advice: L2erAdvice,
    verdict: Verdict,
    arch: str,
    stream: str,
    command: str | None = None,
    created: datetime | None = None,
) -> L2erDocument:
    """The recommendation as a document of its own, for `clcurv.training.L2ER`.

    Args:
        advice: The coefficients.
        verdict: What they follow from.
        arch: The network they were measured on.
        stream: The stream's name.
        command: The command line.
        created: Default: now.
    """
    return L2erDocument(
        tool=tool_info(),
        created=timestamp(created),
        command=optional(command),
        verdict=verdict.verdict,
        evidence=clean(verdict.evidence),
        arch=clean(arch),
        stream=clean(stream),
        **_coefficients(advice),
    )


def _coefficients(advice: L2erAdvice) -> dict[str, Any]:
    return {
        "weight_decay": advice.weight_decay,
        "er_lr": advice.er_lr,
        "er_every": advice.er_every,
        "er_layers": clean_all(advice.er_layers),
        "window": advice.window,
        "order": clean_all(advice.order),
        "lr": advice.lr,
        "objective": ObjectiveInfo(lambda_=advice.lam, beta=advice.beta),
        "derivation": clean(advice.derivation),
    }


def _stream(
    stream: Mapping[str, Any] | StreamInfo, spec: str | None, data: str | None
) -> StreamInfo:
    if isinstance(stream, StreamInfo):
        return stream
    return StreamInfo(
        spec=optional(spec),
        data=optional(data),
        name=clean(str(stream.get("name", ""))),
        scenario=clean(str(stream.get("scenario") or "")),
        modality=clean(str(stream.get("modality") or "")),
        origin=clean(str(stream.get("origin") or "")),
        seed=stream.get("seed"),
        notes=unique(stream.get("notes", ())),
        tasks=tuple(
            StreamTaskInfo(
                name=clean(str(task["name"])),
                train=optional(task.get("train")),
                split=optional(task.get("split")),
                t=_label(task.get("t")),
                transform=task.get("transform"),
                n=task.get("n"),
                classes=tuple(_label(x) for x in task.get("classes") or ()),
                label_histogram=histogram(task.get("label_histogram") or {}),
                digest=task.get("digest") or "",
            )
            for task in stream.get("tasks", ())
        ),
    )


def _label(label: Any) -> Any:
    return clean(label) if isinstance(label, str) else label


def _estimator(result: SpectrumResult, settings: Mapping[str, Setting]) -> SpectrumEstimatorInfo:
    bands = [x.spectrum.rank_fast for x in result.tasks if x.spectrum and x.spectrum.rank_fast]
    return SpectrumEstimatorInfo(
        operator=result.operator,
        loss=result.loss,
        dtype=result.dtype,
        device=result.device,
        seed=result.seed,
        lr=finite(result.lr),
        steps=result.steps,
        momentum=result.momentum,
        gamma=result.gamma,
        eps_fast=BandInfo(lower=bands[0].eps, upper=finite(bands[0].upper)) if bands else None,
        cost_gradients=finite(sum(x.cost_gradients for x in result.tasks)),
        seconds=finite(result.seconds),
        versions=versions(),
        settings=clean_settings(settings),
        notes=unique(result.notes),
    )


def _warnings(tasks: Sequence[TaskInfo]) -> list[str]:
    """Sentences about what should not be taken at face value."""
    said = [f"task {t.index} ({t.name}) failed: {t.reason}" for t in tasks if t.status == "failed"]
    few = [t for t in tasks if any(not x.enough for x in t.features)]
    if few:
        layer = next(x for x in few[0].features if not x.enough)
        said.append(
            f"effective rank: {layer.n} rows for the {layer.d} features of layer {layer.name} "
            f"(task {few[0].index}) are less than five times as many; compare only with equal n"
        )
    for label, pick in (("ε_fast", "fast"), ("ε relative to the largest |λ|", "relative")):
        ranks = [(t.index, getattr(t.eps_rank, pick)) for t in tasks if t.eps_rank]
        for status in ("not-resolved", "below-resolution"):
            where = [index for index, rank in ranks if rank is not None and rank.status == status]
            if where:
                said.append(
                    f"ε-rank for {label} is {status.replace('-', ' ')} in "
                    f"{_count_of_tasks(where)}: more --lanczos-steps, --method dense, or "
                    "--operator ggn --method gram"
                )
    paper = [t.index for t in tasks if t.eps_rank and _kernel_limited(t.eps_rank)]
    if paper:
        said.append(
            f"paper smoothing: kernel-limited in {_count_of_tasks(paper)}: the kernel is wider "
            "than ε, so the figure is the kernel's"
        )
    return said


def _kernel_limited(ranks: EpsRanks) -> bool:
    return any(x.status == "kernel-limited" for x in ranks.paper)


def _count_of_tasks(indices: Sequence[int]) -> str:
    if len(indices) == 1:
        return f"task {indices[0]}"
    shown = ", ".join(map(str, indices[:5]))
    return f"{len(indices)} tasks ({shown}{', ...' if len(indices) > 5 else ''})"
