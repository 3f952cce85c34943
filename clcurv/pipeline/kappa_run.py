"""From a checkpoint and a data set to sensitivities, a schedule and their document."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clcurv.curvature.objective import Objective
from clcurv.diagnostics.kappa import KappaResult
from clcurv.diagnostics.sensitivity import (
    MAX_STEPS,
    PartialMeasurement,
    measure_kappa,
    plan_kappa,
)
from clcurv.diagnostics.survey import rounding_of
from clcurv.errors import DataError, NumericalError, UsageError
from clcurv.inputs.checkpoint import Weights
from clcurv.inputs.dataset import Samples
from clcurv.inputs.generated import generate_samples
from clcurv.inputs.layers import Layer, discover_layers, left_out
from clcurv.inputs.loaded import LoadedModel
from clcurv.inputs.probe import linear_probe
from clcurv.pipeline.options import KappaOptions, checked
from clcurv.pipeline.prepare import (
    Checkpoint,
    Progress,
    device_of,
    load_checkpoint,
    objective_of,
    read_samples,
    refuse_unsuited,
    shown,
)
from clcurv.recommend.schedule import Schedule, recommend_schedule
from clcurv.report.build import kappa_document

if TYPE_CHECKING:
    from clcurv.report.kappa_document import KappaDocument


@dataclass(frozen=True)
class KappaReport:
    """What was measured, what follows from it, and the document that says both.

    Attributes:
        document: Validated, ready for JSON; see `clcurv.report.document`.
        result: The numbers.
        schedule: The advice.
    """

    document: KappaDocument
    result: KappaResult
    schedule: Schedule


@dataclass(frozen=True)
class KappaPlan:
    """What a measurement would do (``--dry-run``).

    Attributes:
        bytes_graph: Of one micro-batch's graph.
        bytes_bases: Of the Lanczos bases.
        bytes_at_peak: Of everything, beside the model and the sample.
        graphs_kept: How many micro-batches' graphs stay in memory between passes.
    """

    checkpoint: str
    arch: str
    arch_source: str
    task: str
    num_classes: int | None
    parameters: int
    data: str
    samples: int
    loss: str
    operator: str
    device: str
    dtype: str
    micro_batches: int
    batch_size: int
    graphs_kept: int
    bytes_graph: int
    bytes_bases: int
    bytes_at_peak: int
    notes: tuple[str, ...]
    layers: tuple[PlannedLayer, ...]


@dataclass(frozen=True)
class PlannedLayer:
    name: str
    numel: int
    is_head: bool


@dataclass(frozen=True)
class _Prepared:
    """Everything a measurement needs."""

    loaded: LoadedModel
    weights: Weights | None
    samples: Samples
    layers: list[Layer]
    objective: Objective
    device: str
    warnings: list[str] = field(default_factory=list)


def kappa(
    checkpoint: Checkpoint,
    *,
    progress: Progress | None = None,
    **options: Any,
) -> KappaReport:
    """Measures s_ℓ and κ of a checkpoint (or a live module) and recommends a schedule.

    Args:
        checkpoint: A weights file, a timm or Hugging Face folder, or a module.
        progress: Called with (stage, done, total).
        **options: Fields of `KappaOptions`.

    Raises:
        ClcurvError: See `clcurv.errors`; each kind has an exit code.
        KeyboardInterrupt: With a partial `document` attribute once there is something to tell.
    """
    asked = _options(options)
    tell = progress or (lambda stage, done, total: None)
    ready = _prepare(checkpoint, asked, tell)
    new_task = None
    if asked.new_data is not None:
        tell("reading the new task", 0, 0)
        new_task = read_samples(asked.new_data, ready.loaded, asked, ready.objective.name)
        ready.warnings.extend(f"the new task: {text}" for text in new_task.warnings)
    try:
        result = measure_kappa(
            ready.loaded.model,
            ready.layers,
            ready.samples,
            ready.objective,
            cross_check=asked.cross_check,
            lambda_min=asked.lambda_min,
            include_head=asked.include_head,
            max_steps=asked.max_steps or MAX_STEPS,
            new_task=new_task,
            progress=progress,
            **_measuring(asked, ready),
        )
    except PartialMeasurement as partial:
        report = _report(checkpoint, partial.result, ready, asked, complete=False)
        partial.document = report.document
        raise
    ready.warnings.extend(_check_resolution(result))
    return _report(checkpoint, result, ready, asked)


def plan(
    checkpoint: Checkpoint,
    *,
    progress: Progress | None = None,
    **options: Any,
) -> KappaPlan:
    """Resolves everything `kappa` would, tries one small product, and measures nothing.

    Takes and raises what `kappa` does.
    """
    asked = _options(options)
    ready = _prepare(checkpoint, asked, progress or (lambda stage, done, total: None))
    layout = plan_kappa(
        ready.loaded.model, ready.layers, ready.samples, ready.objective, **_measuring(asked, ready)
    )
    numel = {name: p.numel() for name, p in ready.loaded.model.named_parameters()}
    loaded, samples = ready.loaded, ready.samples
    return KappaPlan(
        checkpoint=shown(checkpoint),
        arch=loaded.arch,
        arch_source=loaded.arch_source,
        task=loaded.task,
        num_classes=loaded.num_classes,
        parameters=sum(numel.values()),
        data=samples.source if asked.data is None else f"{shown(asked.data)} ({samples.format})",
        samples=len(samples),
        loss=ready.objective.name,
        operator=asked.operator,
        device=ready.device,
        dtype=asked.dtype,
        micro_batches=layout.n_chunks,
        batch_size=layout.chunk,
        graphs_kept=layout.kept,
        bytes_graph=layout.bytes_graph,
        bytes_bases=layout.bytes_basis,
        bytes_at_peak=layout.bytes_total,
        notes=(*loaded.notes, *samples.notes, *ready.warnings),
        layers=tuple(
            PlannedLayer(x.name, sum(numel[n] for n in x.param_names), x.is_head)
            for x in ready.layers
        ),
    )


def _options(options: dict[str, Any]) -> KappaOptions:
    asked = checked(KappaOptions, "kappa", options)
    if asked.schedule == "literal" and not asked.force:
        # Before hours of measuring, not after.
        raise UsageError(
            "the literal schedule (λ ∝ s) loses 4 to 14 % accuracy against a uniform one",
            hint="--schedule geometric, or --force if you mean it",
        )
    return asked


def _prepare(checkpoint: Checkpoint, asked: KappaOptions, tell: Progress) -> _Prepared:
    device = device_of(asked)
    tell("reading the checkpoint", 0, 0)
    loaded, weights = load_checkpoint(checkpoint, asked, asked.data)
    if loaded.task == "backbone" and asked.head == "model":
        raise DataError(
            f"{shown(checkpoint)}: a backbone without a head has no loss to measure",
            hint="--head linear-probe fits a head on labelled --data",
        )
    objective = objective_of(loaded, asked)
    refuse_unsuited(objective, operator=asked.operator)
    warnings: list[str] = []
    if asked.data is None:
        if asked.head == "linear-probe":
            raise DataError("a linear probe is fitted on data", hint="add --data PATH")
        tell("generating inputs", 0, 0)
        samples = generate_samples(loaded, n=asked.samples, seed=asked.seed)
    else:
        tell("reading the data", 0, 0)
        samples = read_samples(asked.data, loaded, asked, objective.name)
        warnings += samples.warnings
    if asked.head == "linear-probe":
        tell("fitting the linear probe", 0, 0)
        loaded = linear_probe(loaded, samples, seed=asked.seed)
    tell("finding the layers", 0, 0)
    how = asked.layers
    layers = discover_layers(
        loaded.model,
        samples.split(2)[0],
        granularity=how if isinstance(how, str) else "block",
        groups=None if isinstance(how, str) else how,
        head_params=loaded.head_params,
    )
    missing = left_out(loaded.model, layers)
    if missing:
        warnings.append(
            f"{len(missing)} parameter tensors are in no layer and were not measured "
            f"({', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''})"
        )
    if asked.operator == "fisher":
        warnings.append(
            f"the exact Fisher equals the Gauss-Newton matrix for {objective.name}, and was "
            "computed as such"
        )
    return _Prepared(loaded, weights, samples, layers, objective, device, warnings)


def _check_resolution(result: KappaResult) -> list[str]:
    """Whether there was any curvature to measure; warnings where there hardly was.

    Raises:
        NumericalError: The loss is constant.
    """
    if all(x.status in ("below-resolution", "unused") for x in result.layers):
        raise NumericalError(
            f"the loss is constant around these weights (mean loss {result.mean_loss:.4g}): no "
            "layer has any curvature above rounding",
            hint="check the checkpoint and --loss; --dtype float64 resolves smaller curvature",
        )
    rounding = rounding_of(result.mean_loss, result.loss, result.dtype)
    if rounding <= result.tol:
        return []
    return [
        f"the mean loss {result.mean_loss:.2g} is so small that rounding in {result.dtype} may "
        f"change s by {rounding:.1%}"
    ]


def _measuring(asked: KappaOptions, ready: _Prepared) -> dict[str, Any]:
    return {
        "operator": asked.operator,
        "dtype": asked.dtype,
        "device": ready.device,
        "tol": asked.tol,
        "seed": asked.seed,
        "batch_size": asked.batch_size,
        "memory": asked.memory,
    }


def _report(
    checkpoint: object,
    result: KappaResult,
    ready: _Prepared,
    asked: KappaOptions,
    *,
    complete: bool = True,
) -> KappaReport:
    advice = recommend_schedule(
        result,
        mode=asked.schedule,
        lam=1.0 if asked.lambda_ is None else asked.lambda_,
        force=asked.force,
        include_head=asked.include_head,
    )
    document = kappa_document(
        result=result,
        schedule=advice,
        model=ready.loaded,
        samples=ready.samples,
        granularity=asked.layers if isinstance(asked.layers, str) else "given",
        weights=ready.weights,
        model_path=shown(checkpoint),
        data_path=None if asked.data is None else shown(asked.data),
        settings={"head": asked.head, "lambda_min": asked.lambda_min},
        warnings=[*ready.warnings, *result.notes],
        complete=complete,
    )
    return KappaReport(document=document, result=result, schedule=advice)
