"""What a spectrum along a stream would take: ``--dry-run``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clcurv.diagnostics.sensitivity import DTYPES
from clcurv.diagnostics.stream_spectrum import parameters_matching
from clcurv.pipeline.options import SpectrumOptions, checked
from clcurv.pipeline.prepare import Checkpoint, Progress, objective_of, shown
from clcurv.pipeline.spectrum_run import StreamRun


@dataclass(frozen=True)
class PlannedTask:
    """One task of a stream that has not been measured."""

    task: str
    checkpoint: str
    samples: int
    classes: tuple[Any, ...]
    labels: dict[str, int]


@dataclass(frozen=True)
class StreamPlan:
    """What `spectrum` would do (``--dry-run``)."""

    arch: str
    arch_source: str
    task: str
    num_classes: int | None
    parameters: int
    parameters_measured: int
    stream: str
    scenario: str
    loss: str
    operator: str
    method: str
    device: str
    dtype: str
    bytes_bases: int
    notes: tuple[str, ...]
    tasks: tuple[PlannedTask, ...]


def plan_spectrum(
    checkpoints: Checkpoint | Sequence[Checkpoint],
    *,
    progress: Progress | None = None,
    **options: Any,
) -> StreamPlan:
    """Resolves everything `spectrum` would, and measures nothing; takes and raises the same."""
    run = StreamRun(checkpoints, checked(SpectrumOptions, "spectrum", options), progress)
    run.check()
    first, asked = run.first, run.asked
    measured = sum(
        p.numel() for ps in parameters_matching(first.model, asked.layers).values() for p in ps
    )
    return StreamPlan(
        arch=first.arch,
        arch_source=first.arch_source,
        task=first.task,
        num_classes=first.num_classes,
        parameters=sum(p.numel() for p in first.model.parameters()),
        parameters_measured=measured,
        stream=run.stream.name,
        scenario=run.stream.scenario,
        loss=objective_of(first, asked).name,
        operator=asked.operator,
        method=asked.method,
        device=run.settings.device,
        dtype=asked.dtype,
        bytes_bases=measured * asked.lanczos_steps * DTYPES[asked.dtype].itemsize,
        notes=(*first.notes, *run.resolved["notes"]),
        tasks=tuple(
            PlannedTask(
                task=task["name"],
                checkpoint=shown(checkpoint),
                samples=min(asked.samples, task["n"]),
                classes=tuple(task["classes"]),
                labels=dict(task["label_histogram"]),
            )
            for task, checkpoint in zip(run.resolved["tasks"], run.paired, strict=True)
        ),
    )
