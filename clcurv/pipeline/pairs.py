"""Which network meets which task, and that all of them are one architecture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from clcurv.errors import MismatchError
from clcurv.inputs.loaded import LoadedModel
from clcurv.inputs.stream import order_checkpoints, pair_checkpoints
from clcurv.pipeline.prepare import Checkpoint, shown

_SHOWN_PAIRS = 3


def listed(checkpoints: Checkpoint | Sequence[Checkpoint]) -> list[Checkpoint]:
    """One or several, files in their order; see `clcurv.inputs.stream.order_checkpoints`."""
    if isinstance(checkpoints, str | Path | nn.Module | LoadedModel):
        checkpoints = [checkpoints]
    if all(isinstance(x, str | Path) for x in checkpoints):
        return list(order_checkpoints([str(x) for x in checkpoints]))
    return list(checkpoints)


def paired(checkpoints: list[Checkpoint], n_tasks: int) -> list[Checkpoint]:
    """One a task, see `clcurv.inputs.stream.pair_checkpoints`."""
    names = [x for x in checkpoints if isinstance(x, str)]
    if len(names) == len(checkpoints):
        return list(pair_checkpoints(names, n_tasks))
    places = pair_checkpoints([str(i) for i in range(len(checkpoints))], n_tasks)
    return [checkpoints[int(i)] for i in places]


def pairs_told(tasks: Sequence[str], checkpoints: Sequence[Checkpoint]) -> list[str]:
    """Which network meets which task, the middle of a long stream left out."""
    names = [shown(checkpoint) for checkpoint in checkpoints]
    if len({id(x) if not isinstance(x, str) else x for x in checkpoints}) == 1:
        return [f"{names[0]} meets all {len(tasks)} tasks"]
    lines = [
        f"task {i} ({t}) meets {c}" for i, (t, c) in enumerate(zip(tasks, names, strict=True), 1)
    ]
    if len(lines) > 2 * _SHOWN_PAIRS + 1:
        between = f"... {len(lines) - 2 * _SHOWN_PAIRS} more in natural order ..."
        lines = [*lines[:_SHOWN_PAIRS], between, *lines[-_SHOWN_PAIRS:]]
    return lines


def same_architecture(first: LoadedModel, other: LoadedModel, name: str, path: str) -> None:
    """Heads may differ: they grow along a stream.

    Raises:
        MismatchError: Anything else does.
    """
    here, there = (
        {
            n: tuple(p.shape)
            for n, p in x.model.named_parameters()
            if n not in (*first.head_params, *other.head_params)
        }
        for x in (first, other)
    )
    if here == there:
        return
    odd = sorted(n for n in here.keys() | there.keys() if here.get(n) != there.get(n))
    raise MismatchError(
        f"{path}: another network than {name} ({other.arch}, {first.arch}): {odd[0]} differs",
        hint="one stream is of one architecture; check the pattern of the checkpoints",
    )
