"""What `relimp` would do (``--dry-run``)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from clcurv.pipeline.options import RelimpOptions, checked
from clcurv.pipeline.prepare import Checkpoint, Progress, shown
from clcurv.pipeline.relimp_inputs import RelimpInputs, read_inputs
from clcurv.training.fit import scored_classes, split_validation
from clcurv.training.options import LookAheadOptions

# Both importances in float64 and the multipliers in float32.
_BYTES = 8 + 8 + 4


@dataclass(frozen=True)
class PlannedLayer:
    name: str
    numel: int
    is_head: bool


@dataclass(frozen=True)
class RelimpPlan:
    """What a run would do (``--dry-run``).

    Attributes:
        bytes_importance: Of both importances and the multipliers, in main memory.
        training: The look-ahead in a line.
        steps: Most optimiser steps of one training.
        trainings: Most trainings: the look-ahead, and the search's trials.
    """

    checkpoint: str
    arch: str
    arch_source: str
    task: str
    num_classes: int | None
    parameters: int
    past: str
    current: str
    samples: int
    new_classes: int
    loss: str
    estimator: str
    compat: str
    device: str
    dtype: str
    training: str
    steps: int
    trainings: int
    bytes_importance: int
    notes: tuple[str, ...]
    layers: tuple[PlannedLayer, ...]


def plan_relimp(
    checkpoint: Checkpoint,
    *,
    past: Any = None,
    past_importance: Any = None,
    current: Any = None,
    progress: Progress | None = None,
    **options: Any,
) -> RelimpPlan:
    """Resolves everything `relimp` would, and measures nothing; takes and raises the same."""
    given = {"past": past, "past_importance": past_importance, "current": current}
    asked = checked(RelimpOptions, "relimp", {**options, **given})
    ready = read_inputs(checkpoint, asked, progress or (lambda stage, done, total: None))
    return _plan(checkpoint, ready)


def _plan(checkpoint: Checkpoint, ready: RelimpInputs) -> RelimpPlan:
    asked, loaded, training = ready.asked, ready.loaded, ready.training
    numel = {name: p.numel() for name, p in loaded.model.named_parameters()}
    steps = trainings = new = 0
    if ready.current is not None:
        width = scored_classes(ready.current, ready.objective)
        new = max(0, width - (loaded.num_classes or width))
        learn, _ = split_validation(ready.current, fraction=training.validation, seed=training.seed)
        steps = training.epochs * math.ceil(len(learn) / training.batch_size)
        trainings = 1 + (3 + 3 * asked.max_trials if asked.search else 0)
    past = [] if asked.past is None else [shown(asked.past)]
    if asked.past_importance is not None:
        past.append(f"importance in {shown(asked.past_importance)}")
    notes = [*loaded.notes, *ready.warnings]
    for part in (ready.past, ready.current):
        notes += part.notes if part is not None else ()
    return RelimpPlan(
        checkpoint=shown(checkpoint),
        arch=loaded.arch,
        arch_source=loaded.arch_source,
        task=loaded.task,
        num_classes=loaded.num_classes,
        parameters=sum(numel.values()),
        past=" and ".join(past),
        current="" if asked.current is None else shown(asked.current),
        samples=len(ready.samples),
        new_classes=new,
        loss=ready.objective.name,
        estimator=str(asked.estimator),
        compat=str(asked.compat),
        device=ready.device,
        dtype=asked.dtype,
        training=_in_a_line(training) if trainings else "",
        steps=steps,
        trainings=trainings,
        bytes_importance=_BYTES * sum(numel[n] for x in ready.layers for n in x.param_names),
        notes=tuple(dict.fromkeys(notes)),
        layers=tuple(
            PlannedLayer(x.name, sum(numel[n] for n in x.param_names), x.is_head)
            for x in ready.layers
        ),
    )


def _in_a_line(training: LookAheadOptions) -> str:
    stop = "" if training.patience is None else f", stops after {training.patience} worse ones"
    return (
        f"{training.optimizer}, lr {training.lr:g}, batches of {training.batch_size}, "
        f"{training.epochs} epochs{stop}, {training.validation:.0%} held out"
    )
