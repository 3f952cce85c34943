"""From a checkpoint and a data set to a report: all that the commands do, as functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from clcurv.curvature.objective import LossName, Objective
from clcurv.diagnostics.kappa import KappaResult
from clcurv.diagnostics.sensitivity import (
    DTYPES,
    MAX_STEPS,
    PartialMeasurement,
    measure_kappa,
    plan_kappa,
)
from clcurv.errors import DataError, NumericalError, UsageError
from clcurv.inputs.architecture import load_model
from clcurv.inputs.checkpoint import Weights, load_weights
from clcurv.inputs.dataset import Samples, load_samples
from clcurv.inputs.generated import generate_samples
from clcurv.inputs.layers import Layer, discover_layers, left_out
from clcurv.inputs.live import wrap_module
from clcurv.inputs.loaded import LoadedModel
from clcurv.inputs.probe import linear_probe
from clcurv.recommend.schedule import Schedule, recommend_schedule
from clcurv.report.build import kappa_document

if TYPE_CHECKING:
    from clcurv.report.document import KappaDocument

Progress = Callable[[str, int, int], None]

_LOSSES: dict[str, LossName] = {
    "classification": "cross-entropy",
    "causal-lm": "next-token",
    "masked-lm": "masked-lm",
    "regression": "mse",
}


_SURE_OF_THEIR_TASK = ("hf:", "timm:", "torchvision:")


@dataclass(frozen=True, kw_only=True)
class KappaOptions:
    """What `kappa` can be asked for; the command's options carry the same names.

    Attributes:
        data: The old task: a path, or what `clcurv.inputs.dataset.load_samples` takes. None
            generates inputs from the model.
        new_data: The next task, for the measured cost of a uniform schedule.
        split, image_column, text_column, label_column, skip_bad: See `load_samples`.
        samples: Size of the class-balanced sample.
        batch_size: Samples in a micro-batch; None chooses.
        arch, key, match_by_order, trust_code: See `clcurv.inputs.architecture.load_model`.
        head: ``model`` | ``linear-probe``.
        loss: ``auto`` | ``cross-entropy`` | ``mse`` | ``next-token`` | ``masked-lm``.
        layers: ``block`` | ``module`` | ``tensor`` | a regular expression, or a mapping
            of layer names to parameter names.
        operator: ``hessian`` | ``ggn`` | ``fisher`` | ``empirical-fisher``.
        device: A torch device; None takes a GPU where there is one.
        dtype: ``float32`` | ``float64``.
        tol: Relative error allowed on every s.
        max_steps: Products with all the data a layer may take; None is 60.
        seed: Of the sample, and of the starting vectors.
        memory: Bytes for kept graphs; None is half of what is free.
        lambda_min: Whether to pursue the smallest eigenvalues too.
        cross_check: Whether to ask PyHessian too.
        include_head: Whether heads take part in κ and in the fit.
        schedule: ``geometric`` | ``power`` | ``literal`` | ``isotonic`` | ``uniform``.
        lambda_: Parameter-weighted mean of λ; None is 1.
        force: Allows ``literal``.
    """

    data: Any = None
    new_data: Any = None
    split: str | None = None
    image_column: str | None = None
    text_column: str | None = None
    label_column: str | None = None
    samples: int = 512
    batch_size: int | None = None
    skip_bad: bool = False
    arch: str | None = None
    key: str | None = None
    match_by_order: bool = False
    trust_code: bool = False
    head: str = "model"
    loss: str = "auto"
    layers: Any = "block"
    operator: str = "hessian"
    device: str | None = None
    dtype: str = "float32"
    tol: float = 1e-2
    max_steps: int | None = None
    seed: int = 0
    memory: int | None = None
    lambda_min: bool = True
    cross_check: bool = False
    include_head: bool = False
    schedule: Any = "geometric"
    lambda_: float | None = None
    force: bool = False


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
    checkpoint: str | Path | nn.Module | LoadedModel,
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
        new_task = _read(asked.new_data, ready.loaded, asked, ready.objective.name)
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
    checkpoint: str | Path | nn.Module | LoadedModel,
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
        checkpoint=_shown(checkpoint),
        arch=loaded.arch,
        arch_source=loaded.arch_source,
        task=loaded.task,
        num_classes=loaded.num_classes,
        parameters=sum(numel.values()),
        data=samples.source if asked.data is None else f"{_shown(asked.data)} ({samples.format})",
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
    known = {f.name for f in fields(KappaOptions)}
    unknown = sorted(set(options) - known)
    if unknown:
        raise UsageError(
            f"kappa has no option {unknown[0]!r}", hint=f"there are: {', '.join(sorted(known))}"
        )
    asked = KappaOptions(**options)
    if asked.schedule == "literal" and not asked.force:
        # Before hours of measuring, not after.
        raise UsageError(
            "the literal schedule (λ ∝ s) loses 4 to 14 % accuracy against a uniform one",
            hint="--schedule geometric, or --force if you mean it",
        )
    if asked.head not in ("model", "linear-probe"):
        raise UsageError(f"unknown head {asked.head!r}", hint="--head model or linear-probe")
    return asked


def _prepare(
    checkpoint: str | Path | nn.Module | LoadedModel, asked: KappaOptions, tell: Progress
) -> _Prepared:
    device = _device(asked)
    tell("reading the checkpoint", 0, 0)
    loaded, weights = _load(checkpoint, asked)
    if loaded.task == "backbone" and asked.head == "model":
        raise DataError(
            f"{_shown(checkpoint)}: a backbone without a head has no loss to measure",
            hint="--head linear-probe fits a head on labelled --data",
        )
    loss = _loss(loaded, asked)
    warnings: list[str] = []
    if asked.data is None:
        if asked.head == "linear-probe":
            raise DataError("a linear probe is fitted on data", hint="add --data PATH")
        tell("generating inputs", 0, 0)
        samples = generate_samples(loaded, n=asked.samples, seed=asked.seed)
    else:
        tell("reading the data", 0, 0)
        samples = _read(asked.data, loaded, asked, loss)
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
            f"{len(missing)} parameters are in no layer and were not measured "
            f"({', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''})"
        )
    if asked.operator == "fisher":
        warnings.append(
            f"the exact Fisher equals the Gauss-Newton matrix for {loss}, and was computed as such"
        )
    return _Prepared(loaded, weights, samples, layers, Objective(loss), device, warnings)


def _load(
    checkpoint: str | Path | nn.Module | LoadedModel, asked: KappaOptions
) -> tuple[LoadedModel, Weights | None]:
    if isinstance(checkpoint, LoadedModel):
        return checkpoint, None
    if isinstance(checkpoint, nn.Module):
        return wrap_module(checkpoint, arch=asked.arch), None
    weights = load_weights(checkpoint, key=asked.key)

    def labelled(candidate: LoadedModel) -> float:
        loss = _loss(candidate, asked)
        samples = _read(
            asked.data, candidate, replace(asked, samples=min(asked.samples, 128)), loss
        )
        return _mean_loss(candidate.model, samples, Objective(loss))

    loaded = load_model(
        weights,
        arch=asked.arch,
        match_by_order=asked.match_by_order,
        trust_code=asked.trust_code,
        labelled=None if asked.data is None or asked.head != "model" else labelled,
    )
    return loaded, weights


@torch.no_grad()
def _mean_loss(model: nn.Module, samples: Samples, objective: Objective) -> float:
    batches = samples.split(32)
    total = sum(float(objective.loss_sum(model, b)) for b in batches)
    return total / max(1, sum(objective.terms(b.targets) for b in batches))


def _read(data: Any, loaded: LoadedModel, asked: KappaOptions, loss: str) -> Samples:
    named = {
        "image": asked.image_column,
        "text": asked.text_column,
        "label": asked.label_column,
    }
    return load_samples(
        data,
        loaded,
        n=asked.samples,
        seed=asked.seed,
        split=asked.split,
        columns={name: column for name, column in named.items() if column is not None} or None,
        skip_bad=asked.skip_bad,
        loss=loss,
    )


def _loss(loaded: LoadedModel, asked: KappaOptions) -> LossName:
    usual: LossName = "cross-entropy" if loaded.task == "backbone" else _LOSSES[loaded.task]
    if asked.loss == "auto":
        return usual
    loss = Objective(asked.loss).name  # type: ignore[arg-type]
    suited = {usual} | ({"mse"} if usual == "cross-entropy" else set())
    # What the head of other modules does was only inferred: there the user knows better.
    if loaded.arch.startswith(_SURE_OF_THEIR_TASK) and loss not in suited:
        raise UsageError(
            f"--loss {loss} does not suit {loaded.arch}, whose task is {loaded.task}",
            hint=f"--loss {' or '.join(sorted(suited))}",
        )
    return loss


def _device(asked: KappaOptions) -> str:
    if asked.device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        # A value must come back: the device "meta" has none.
        torch.zeros(1, device=asked.device).item()
    except (RuntimeError, AssertionError, NotImplementedError):
        there = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
        there += ["mps"] if torch.backends.mps.is_available() else []
        raise UsageError(
            f"--device {asked.device}: this machine and this torch have no such device",
            hint=f"--device {' or '.join(['cpu', *there])}",
        ) from None
    return asked.device


def _check_resolution(result: KappaResult) -> list[str]:
    """Whether there was any curvature to measure; warnings where there hardly was.

    Raises:
        NumericalError: The loss is constant, or so small that its curvature is rounding.
    """
    if all(x.status in ("below-resolution", "unused") for x in result.layers):
        raise NumericalError(
            f"the loss is constant around these weights (mean loss {result.mean_loss:.4g}): no "
            "layer has any curvature above rounding",
            hint="check the checkpoint and --loss; --dtype float64 resolves smaller curvature",
        )
    if result.loss == "mse":
        return []
    # A confident network's residuals p - y are about as large as its loss, and p is known to eps.
    rounding = torch.finfo(DTYPES[result.dtype]).eps / max(result.mean_loss, 1e-300)
    told = f"the mean loss {result.mean_loss:.2g} is so small that rounding in {result.dtype}"
    if rounding >= 0.1:
        raise NumericalError(
            f"{told} is all that is left of its curvature: the network is certain of everything",
            hint="--dtype float64, or data that it has not been trained on",
        )
    return [f"{told} may change s by {rounding:.1%}"] if rounding > result.tol else []


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
        model_path=_shown(checkpoint),
        data_path=None if asked.data is None else _shown(asked.data),
        settings={"head": asked.head, "lambda_min": asked.lambda_min},
        warnings=[*ready.warnings, *result.notes],
        complete=complete,
    )
    return KappaReport(document=document, result=result, schedule=advice)


def _shown(value: object) -> str:
    return str(value) if isinstance(value, str | Path) else type(value).__name__
