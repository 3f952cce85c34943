"""What was found out about a checkpoint -> its document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from clcurv.report.document import finite
from clcurv.report.inspect_document import (
    ArchitectureInfo,
    CandidateInfo,
    FileInfo,
    InspectDocument,
    InspectedLayer,
    MatchInfo,
    NextStep,
    RefusalInfo,
    SkillInfo,
    TensorInfo,
    WeightsInfo,
)
from clcurv.report.parts import (
    clean,
    clean_all,
    near_chance,
    near_chance_text,
    optional,
    timestamp,
    tool_info,
    unique,
)

if TYPE_CHECKING:
    from clcurv.diagnostics.survey import Survey
    from clcurv.errors import ClcurvError
    from clcurv.inputs.checkpoint import Weights
    from clcurv.inputs.dataset import Samples
    from clcurv.inputs.layers import Layer
    from clcurv.inputs.loaded import LoadedModel

Value = str | int | float | bool | None
Stage = Literal["reading", "architecture", "data", "layers"]

_CLASSES = 10


def inspect_document(
    *,
    file: FileInfo,
    weights: Weights | None,
    metadata: Mapping[str, Value],
    metadata_left_out: int,
    loaded: LoadedModel | None,
    candidates: Sequence[CandidateInfo],
    match: MatchInfo | None,
    layers: Sequence[Layer],
    layers_by: str,
    samples: Samples | None,
    seen: Survey | None,
    data_path: str | None,
    stage: Stage,
    refusal: ClcurvError | None,
    notes: Sequence[str],
    warnings: Sequence[str],
    steps: Sequence[NextStep],
) -> InspectDocument:
    """Put together what is known; see `InspectDocument` for each part.

    Args:
        file: What lies on the disk.
        weights: None where they could not be read.
        metadata: Plain values beside the weights.
        metadata_left_out: How many more there were.
        loaded: The model; None where none fits.
        candidates: Architectures and what speaks for them.
        match: Tensors against the model's.
        layers: Empty where they are not known.
        layers_by: ``block``, an expression, ...
        samples: Of the data given.
        seen: The model on them.
        data_path: As given.
        stage: Where it ended.
        refusal: Why.
        notes: Further sentences.
        warnings: Those that should not be overlooked.
        steps: What to run next.
    """
    skill = _skill(samples, seen, data_path)
    told = loaded.notes if loaded is not None else weights.notes if weights is not None else ()
    warnings = list(warnings)
    if skill is not None and skill.near_chance:
        warnings.append(
            f"{near_chance_text(skill.accuracy, skill.chance)}: the architecture, the labels or "
            "the preprocessing may be wrong"
        )
    return InspectDocument(
        tool=tool_info(),
        created=timestamp(),
        warnings=unique(warnings),
        file=file,
        weights=None if weights is None else _weights(weights),
        metadata=dict(metadata),
        metadata_left_out=metadata_left_out,
        candidates=tuple(candidates),
        architecture=None if loaded is None else _architecture(loaded),
        match=match,
        tensors=() if weights is None else _tensors(weights),
        layers=() if loaded is None else _layers(loaded, layers),
        layers_by=clean(layers_by),
        data=skill,
        refusal=None if refusal is None else _refusal(refusal, stage),
        notes=unique([*told, *notes]),
        next=tuple(steps),
    )


def _weights(weights: Weights) -> WeightsInfo:
    tensors = weights.tensors.values()
    kinds: Counter[str] = Counter()
    for tensor in tensors:
        kinds[_dtype(tensor)] += tensor.numel()
    return WeightsInfo(
        key=optional(weights.key),
        other_keys=clean_all(weights.other_keys),
        prefix=clean(weights.prefix),
        n_tensors=len(weights.tensors),
        n_elements=sum(kinds.values()),
        size_bytes=sum(t.numel() * t.element_size() for t in tensors),
        dtypes=dict(kinds.most_common()),
        digest=weights.digest,
        aside=clean_all(weights.aside),
    )


def _tensors(weights: Weights) -> tuple[TensorInfo, ...]:
    return tuple(
        TensorInfo(
            name=clean(weights.original_names.get(name, name)),
            shape=tuple(tensor.shape),
            dtype=_dtype(tensor),
        )
        for name, tensor in weights.tensors.items()
    )


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _architecture(loaded: LoadedModel) -> ArchitectureInfo:
    labels = [loaded.id2label[i] for i in sorted(loaded.id2label)[:_CLASSES]]
    return ArchitectureInfo(
        name=clean(loaded.arch),
        source=loaded.arch_source,
        task=loaded.task,
        modality=loaded.modality,
        num_classes=loaded.num_classes,
        n_parameters=sum(p.numel() for p in loaded.model.parameters()),
        matched_fraction=loaded.matched_fraction,
        classes=clean_all(map(str, labels)),
        preprocess={clean(str(k)): clean(str(v)) for k, v in loaded.preprocess.items()},
    )


def _layers(loaded: LoadedModel, layers: Sequence[Layer]) -> tuple[InspectedLayer, ...]:
    numel = {name: p.numel() for name, p in loaded.model.named_parameters()}
    return tuple(
        InspectedLayer(
            name=clean(layer.name),
            depth=layer.depth,
            numel=sum(numel[name] for name in layer.param_names),
            is_head=layer.is_head,
            param_names=clean_all(layer.param_names),
            tied_names=clean_all(layer.tied_names),
        )
        for layer in layers
    )


def _skill(samples: Samples | None, seen: Survey | None, data_path: str | None) -> SkillInfo | None:
    if samples is None:
        return None
    return SkillInfo(
        path=optional(data_path),
        n_samples=len(samples),
        accuracy=None if seen is None else finite(seen.accuracy),
        chance=None if seen is None else finite(seen.chance),
        mean_loss=None if seen is None else finite(seen.mean_loss),
        near_chance=seen is not None and near_chance(seen.accuracy, seen.chance),
        notes=unique(samples.notes),
    )


def _refusal(error: ClcurvError, stage: Stage) -> RefusalInfo:
    return RefusalInfo(
        kind=type(error).__name__,
        stage=stage,
        message=clean(str(error)),
        hint=optional(error.hint),
        exit_code=error.exit_code,
    )
