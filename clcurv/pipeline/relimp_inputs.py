"""What `relimp` reads and compares before time is spent on measuring and training."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clcurv.curvature.batchwise import check_compat, convention_batch
from clcurv.curvature.importance import Importance
from clcurv.curvature.objective import Objective
from clcurv.curvature.user_objective import UserObjective
from clcurv.diagnostics.importance_file import load_importance
from clcurv.diagnostics.importance_kind import check_fits, check_same_kind
from clcurv.errors import ClcurvError, DataError, InputError, UsageError
from clcurv.inputs.checkpoint import Weights
from clcurv.inputs.dataset import Samples
from clcurv.inputs.layers import Layer, discover_layers, left_out
from clcurv.inputs.loaded import LoadedModel
from clcurv.inputs.new_classes import GUESSED, class_names, load_new_task
from clcurv.inputs.probe import linear_probe
from clcurv.inputs.sampling import draw_rows, sample_digest
from clcurv.pipeline.options import RelimpOptions
from clcurv.pipeline.prepare import (
    Checkpoint,
    Progress,
    columns_of,
    data_of,
    device_of,
    load_checkpoint,
    objective_of,
    read_samples,
    shown,
)
from clcurv.pipeline.relimp_options import check_options, following, training_options
from clcurv.training.fit import split_validation
from clcurv.training.options import LookAheadOptions
from clcurv.training.schedule import LayerSchedule, load_schedule


@dataclasses.dataclass(frozen=True)
class RelimpInputs:
    """Everything a run needs, known to go together.

    Attributes:
        asked: The options, with the importance file's settings where none were given.
        training: Of the look-ahead and the search's trials.
        loaded, weights: The network, and the file it came from.
        objective: The loss.
        file: Importance of the tasks so far; None without one.
        past, current: Samples; None where there are none.
        layers: What is measured.
        factors: Parameter name -> λ_ℓ of the κ schedule; None without one.
        warnings: Sentences for the report.
    """

    asked: RelimpOptions
    training: LookAheadOptions
    device: str
    loaded: LoadedModel
    weights: Weights | None
    objective: Objective
    file: Importance | None
    past: Samples | None
    current: Samples | None
    layers: list[Layer]
    factors: dict[str, float] | None
    warnings: tuple[str, ...]

    @property
    def samples(self) -> Samples:
        """Of either task."""
        samples = self.current if self.current is not None else self.past
        assert samples is not None
        return samples


def read_inputs(checkpoint: Checkpoint, asked: RelimpOptions, tell: Progress) -> RelimpInputs:
    """Reads all there is and refuses what does not go together.

    Raises:
        ClcurvError: See `clcurv.errors`.
    """
    check_options(asked)
    check_compat(asked.compat or "per-sample", asked.estimator or "mas")
    training = training_options(asked)
    device = device_of(asked)
    file = _file(asked, tell)
    asked = following(asked, file)
    schedule = None if asked.schedule is None else load_schedule(asked.schedule)
    tell("reading the checkpoint", 0, 0)
    with _flag("--past"):
        loaded, weights = load_checkpoint(checkpoint, asked, asked.past)
    if loaded.task == "backbone" and asked.head == "model":
        raise DataError(
            f"{shown(checkpoint)}: a backbone without a head has no task to remember",
            hint="--head linear-probe fits a head on labelled --past",
        )
    objective = objective_of(loaded, asked)
    _check_measurable(objective, asked)
    past = _read_past(asked, loaded, objective, tell)
    if asked.head == "linear-probe" and past is not None:
        tell("fitting the linear probe", 0, 0)
        loaded = linear_probe(loaded, past, seed=asked.seed)
    current = _read_current(asked, loaded, objective, tell)
    tasks = {"the past": past, "the current task": current}
    warnings = [f"{name}: {text}" for name, x in tasks.items() if x for text in x.warnings]
    if current is not None:
        split_validation(current, fraction=training.validation, seed=training.seed)
        width = loaded.num_classes
        if width is not None and any(i >= width for i in current.class_counts):
            warnings += [note for note in current.notes if "new to the head" in note]
        warnings += [f"--current: {note}" for note in current.notes if note.startswith(GUESSED)]
    if file is None and past is not None and current is not None and not asked.samples_may_differ:
        past, current = _of_one_size(past, current, asked.seed, warnings)
    tell("finding the layers", 0, 0)
    layers = _layers(asked, loaded, current if past is None else past, warnings)
    if file is not None:
        _check_file(file, asked, loaded, layers, objective, past, current)
    return RelimpInputs(
        asked=asked,
        training=training,
        device=device,
        loaded=loaded,
        weights=weights,
        objective=objective,
        file=file,
        past=past,
        current=current,
        layers=layers,
        factors=None if schedule is None else _factors(schedule, layers),
        warnings=tuple(warnings),
    )


def _check_measurable(objective: Objective, asked: RelimpOptions) -> None:
    """MAS looks at outputs alone; a Fisher is a likelihood's, which a function does not state."""
    estimator, compat = asked.estimator or "mas", asked.compat or "per-sample"
    if isinstance(objective, UserObjective) and (estimator, compat) != ("mas", "per-sample"):
        raise UsageError(
            f"{estimator} ({compat}) needs a loss that clcurv knows, and {objective.name} is yours",
            hint="--estimator mas",
        )


def _file(asked: RelimpOptions, tell: Progress) -> Importance | None:
    given = asked.past_importance
    if given is None or isinstance(given, Importance):
        return given
    tell("reading the importance of the past", 0, 0)
    try:
        return load_importance(given, max_bytes=asked.max_bytes)
    except InputError as error:  # the readers think of checkpoints
        if "--save-importance" not in (error.hint or ""):
            error.hint = "--past-importance takes the file that --save-importance wrote"
        raise


def _read_past(
    asked: RelimpOptions, loaded: LoadedModel, objective: Objective, tell: Progress
) -> Samples | None:
    if asked.past is None:
        return None
    tell("reading the past's data", 0, 0)
    with _flag("--past"):
        return read_samples(asked.past, loaded, asked, objective.name)


def _read_current(
    asked: RelimpOptions, loaded: LoadedModel, objective: Objective, tell: Progress
) -> Samples | None:
    if asked.current is None:
        return None
    tell("reading the current task's data", 0, 0)
    named: dict[str, Any] = {
        "n": asked.samples,
        "split": asked.split,
        "columns": columns_of(asked),
    }
    with _flag("--current"):
        known = (
            {} if asked.past is None else class_names(data_of(asked.past, asked), loaded, **named)
        )
        return load_new_task(
            data_of(asked.current, asked),
            loaded,
            seed=asked.seed,
            max_length=asked.max_length,
            skip_bad=asked.skip_bad,
            loss=objective.name,
            known=known,
            **named,
        )


@contextmanager
def _flag(name: str) -> Iterator[None]:
    """Hints about the data name this command's flag."""
    try:
        yield
    except ClcurvError as error:
        if error.hint:
            error.hint = error.hint.replace("--data", name)
        raise


def _of_one_size(
    past: Samples, current: Samples, seed: int, warnings: list[str]
) -> tuple[Samples, Samples]:
    """As many samples for both tasks: of the larger a part is taken."""
    fewest = min(len(past), len(current))
    if len(past) != len(current):
        which = "past" if fewest == len(past) else "current"
        warnings.append(
            f"both tasks are measured on {fewest} samples, all that the {which} one has"
        )
    return _part(past, fewest, seed), _part(current, fewest, seed)


def _part(samples: Samples, n: int, seed: int) -> Samples:
    """A balanced part of a sample."""
    if n == len(samples):
        return samples
    targets = samples.targets
    classes = targets.tolist() if targets.ndim == 1 and not targets.is_floating_point() else None
    chosen = draw_rows(classes, len(samples), n, seed=seed)
    rows = torch.tensor(chosen)
    inputs = samples.inputs
    inputs = inputs[rows] if isinstance(inputs, Tensor) else {k: v[rows] for k, v in inputs.items()}
    counts = Counter(classes[row] for row in chosen) if classes is not None else Counter[int]()
    return dataclasses.replace(
        samples,
        inputs=inputs,
        targets=targets[rows],
        class_counts=dict(sorted(counts.items())) or samples.class_counts,
        digest=sample_digest(inputs, targets[rows]),
    )


def _layers(
    asked: RelimpOptions, loaded: LoadedModel, samples: Samples | None, warnings: list[str]
) -> list[Layer]:
    assert samples is not None
    how = asked.layers
    layers = discover_layers(
        loaded.model,
        samples.split(2)[0],
        granularity=how if isinstance(how, str) else "block",
        groups=None if isinstance(how, str) else how,
        head_params=loaded.head_params,
    )
    if missing := left_out(loaded.model, layers):
        warnings.append(
            f"{len(missing)} parameter tensors are in no layer: nothing is known about them, and "
            f"nothing holds them ({', '.join(missing[:3])}{', ...' if missing[3:] else ''})"
        )
    return layers


def _factors(schedule: LayerSchedule, layers: list[Layer]) -> dict[str, float]:
    """λ_ℓ by parameter."""
    names = {name: 1.0 for layer in layers for name in layer.param_names}
    return {name: float(value) for name, value in schedule.scale_importance(names).items()}


def _check_file(
    file: Importance,
    asked: RelimpOptions,
    loaded: LoadedModel,
    layers: list[Layer],
    objective: Objective,
    past: Samples | None,
    current: Samples | None,
) -> None:
    """Whether the importance file is of this network and of the kind to be measured.

    Raises:
        MismatchError: It is not.
    """
    names = {name for layer in layers for name in layer.param_names}
    shapes = {n: tuple(p.shape) for n, p in loaded.model.named_parameters() if n in names}
    given = asked.past_importance
    where = shown(given) if isinstance(given, str | Path) else "the importance of the past"
    check_fits(file, shapes, where=where)
    for samples in (current, past):
        if samples is None:
            continue
        n, batch = len(samples), file.batch_size
        if asked.compat != "per-sample":
            batch = convention_batch(asked.compat, asked.batch_size, n)  # type: ignore[arg-type]
        expected = dataclasses.replace(file, loss=objective.name, n_samples=n, batch_size=batch)
        # Tasks of any size are accumulated; the current one is compared with all of them.
        freely = samples is past or asked.samples_may_differ
        check_same_kind(file, expected, samples_may_differ=freely)
