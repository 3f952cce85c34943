"""What a checkpoint is, and what the commands would make of it; nothing is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from clcurv.diagnostics.survey import Survey, survey
from clcurv.errors import InputError, NumericalError, ResourceError
from clcurv.inputs.checkpoint import Weights
from clcurv.inputs.dataset import Samples
from clcurv.inputs.layers import Layer
from clcurv.inputs.loaded import LoadedModel
from clcurv.inputs.user_code import is_code
from clcurv.pipeline.hollow import hollow
from clcurv.pipeline.inspect_evidence import candidates_of
from clcurv.pipeline.inspect_file import describe_file, format_of, plain_values
from clcurv.pipeline.inspect_layers import find_layers, input_faults
from clcurv.pipeline.inspect_match import compare, match_of
from clcurv.pipeline.inspect_next import next_steps
from clcurv.pipeline.options import InspectOptions, checked
from clcurv.pipeline.prepare import (
    Progress,
    find_model,
    local_path,
    objective_of,
    read_samples,
    read_weights,
)
from clcurv.report.inspect_build import inspect_document
from clcurv.report.inspect_document import CandidateInfo, FileInfo, InspectDocument, MatchInfo

Refusal = InputError | NumericalError | ResourceError
Stage = Literal["reading", "architecture", "data", "layers"]


@dataclass(frozen=True)
class InspectReport:
    """What was found.

    Attributes:
        document: Validated, ready for JSON; see `clcurv.report.inspect_document`.
        refusal: Why the other commands would refuse the checkpoint; None where they would not.
        weights: The tensors; None where they could not be read.
    """

    document: InspectDocument
    refusal: Refusal | None
    weights: Weights | None


@dataclass
class _Found:
    """What is known so far."""

    stage: Stage = "reading"
    weights: Weights | None = None
    loaded: LoadedModel | None = None
    losses: dict[str, float] = field(default_factory=dict)
    samples: Samples | None = None
    seen: Survey | None = None
    layers: list[Layer] | None = None
    refusal: Refusal | None = None
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def inspect(
    checkpoint: str | Path, *, progress: Progress | None = None, **options: Any
) -> InspectReport:
    """Tells what a checkpoint is: format, architecture, tensors, layers, and what to run next.

    It goes the way that the other commands go, up to the measurement, so what it says is what
    they do. A checkpoint that they refuse is no error here: the report says what is known of it,
    and `InspectReport.refusal` holds the error they raise.

    Args:
        checkpoint: A file or folder.
        progress: Called with (stage, done, total).
        **options: Fields of `clcurv.pipeline.options.InspectOptions`.

    Raises:
        InputError: It does not exist or cannot be opened.
        UsageError: Options that are unknown or do not go together.
    """
    asked = checked(InspectOptions, "inspect", options)
    tell = progress or (lambda stage, done, total: None)
    path = Path(local_path(checkpoint, asked))
    describe_file(path, kind=None, checksums=False)  # is it there at all?
    found = _Found()
    try:
        _follow(path, asked, found, tell)
    except (InputError, NumericalError, ResourceError) as error:
        found.refusal = error
    tell("computing checksums", 0, 0)
    file = describe_file(
        path,
        kind=found.weights.format if found.weights else format_of(path),
        # Not of what is too large to be read, nor of a folder that holds no model.
        checksums=not isinstance(found.refusal, ResourceError)
        and (path.is_file() or found.weights is not None),
    )
    tell("writing the report", 0, 0)
    return InspectReport(
        document=_document(file, str(checkpoint), asked, found),
        refusal=found.refusal,
        weights=found.weights,
    )


def _follow(path: Path, asked: InspectOptions, found: _Found, tell: Progress) -> None:
    """The way of every command, each step recorded as it is taken."""
    tell("reading the checkpoint", 0, 0)
    found.weights = read_weights(path, asked)
    found.stage = "architecture"
    tell("finding the architecture", 0, 0)
    if asked.data is None and _without_memory(asked, found):
        return
    found.loaded = find_model(
        found.weights,
        asked,
        asked.data,
        told=lambda candidate, loss: found.losses.update({candidate.arch: loss}),
    )
    found.warnings += input_faults(found.loaded)
    if asked.data is not None:
        found.stage = "data"
        tell("reading the data", 0, 0)
        objective = objective_of(found.loaded, asked)
        found.samples = read_samples(asked.data, found.loaded, asked, objective.name)
        if found.loaded.task != "backbone":
            found.seen = survey(found.loaded.model, found.samples, objective, tell)
    found.stage = "layers"
    tell("finding the layers", 0, 0)
    batch = None if found.samples is None else found.samples.split(2)[0]
    found.layers = find_layers(found.loaded, asked.layers, batch)
    if found.layers is None:
        found.notes.append("nothing states what the inputs look like: --data shows the layers")


def _closest(weights: Weights, candidates: Sequence[CandidateInfo]) -> MatchInfo | None:
    """Tensors against a refused architecture, which shows why, or against one of those that fit."""
    for candidate in sorted(candidates, key=lambda candidate: candidate.status != "refused")[:4]:
        match = compare(weights, candidate.name)
        fits = candidate.status == "fits"
        # A tower inside a larger model fits under other names: nothing to list then.
        if match and not (fits and (match.backbone.missing or match.backbone.different)):
            return match
    return None


def _without_memory(asked: InspectOptions, found: _Found) -> bool:
    """Tries all the rest with a model of shapes only; False where values are needed after all.

    They are where outputs have to be compared. Whatever fails here is judged by the real model.
    """
    assert found.weights is not None
    if found.weights.module is not None or is_code(asked.arch or ""):
        return False  # the user's own code may do anything while it is built
    try:
        with hollow():
            loaded = find_model(found.weights, asked)
            layers = find_layers(loaded, asked.layers, None)
    except Exception:
        return False
    if layers is None:
        return False
    found.stage, found.loaded, found.layers = "layers", loaded, layers
    found.warnings += input_faults(loaded)
    return True


def _document(file: FileInfo, given: str, asked: InspectOptions, found: _Found) -> InspectDocument:
    weights, loaded = found.weights, found.loaded
    metadata, left_out = (
        plain_values(weights.metadata, weights.config) if weights is not None else ({}, 0)
    )
    candidates = (
        candidates_of(weights, loaded, found.losses, asked=asked.arch, refusal=found.refusal)
        if weights is not None
        else ()
    )
    match = match_of(loaded) if loaded is not None else None
    if weights is not None and loaded is None:
        match = _closest(weights, candidates)
    return inspect_document(
        file=file,
        weights=weights,
        metadata=metadata,
        metadata_left_out=left_out,
        loaded=loaded,
        candidates=candidates,
        match=match,
        layers=found.layers or (),
        layers_by=asked.layers if isinstance(asked.layers, str) else "given",
        samples=found.samples,
        seen=found.seen,
        data_path=None if asked.data is None else str(asked.data),
        stage=found.stage,
        refusal=found.refusal,
        notes=found.notes,
        warnings=found.warnings,
        steps=next_steps(
            given,
            asked,
            weights=weights,
            loaded=loaded,
            candidates=candidates,
            stage=found.stage,
            refusal=found.refusal,
            has_head=match is None or match.head.matched > 0,
        ),
    )
