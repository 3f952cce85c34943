"""Which importances may be compared, with each other and with a model; several tasks in one."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from clcurv.curvature.importance import Importance
from clcurv.errors import MismatchError

_SETTINGS = {
    "estimator": "--estimator",
    "compat": "--compat",
    "mode": "--compat",
    "loss": "--loss",
    "batch_size": "--batch-size",
    "n_samples": "--samples",
}


def check_same_kind(
    past: Importance, current: Importance, *, samples_may_differ: bool = False
) -> None:
    """Refuses two importances that were not taken the same way from the same network.

    Importances of different estimators, batches or sample counts differ by factors of 2 to 50
    and in their order; their ratio means nothing.

    Args:
        past, current: Heads may have more rows in `current`.
        samples_may_differ: Allow other sample counts, for tasks that have no more data.

    Raises:
        MismatchError: With both values.
    """
    for name, flag in _SETTINGS.items():
        a, b = getattr(past, name), getattr(current, name)
        if a == b or (name == "n_samples" and samples_may_differ):
            continue
        raise MismatchError(
            f"importances of two kinds: {name.replace('_', ' ')} {a} for the past, {b} for the "
            "current task",
            hint=f"measure both with the same {flag} (the past has {a})",
        )
    check_fits(past, {n: tuple(t.shape) for n, t in current.tensors.items()})


def check_fits(
    importance: Importance, shapes: Mapping[str, tuple[int, ...]], *, where: str = "the importance"
) -> None:
    """Refuses an importance of another model.

    Args:
        importance: Of the past.
        shapes: The model's parameters (or those of them that are to be measured).
        where: What to call it, e.g. the file's name.

    Raises:
        MismatchError: A name is missing on either side, or a shape differs other than in
            further rows of the head.
    """
    mine = importance.tensors
    for names, text in (
        (sorted(mine.keys() - shapes.keys()), "of which the model has none"),
        (sorted(shapes.keys() - mine.keys()), "which it lacks"),
    ):
        if names:
            raise MismatchError(
                f"{where} is of another model: {len(names)} tensors differ, such as {names[0]!r} "
                + text,
                hint="give the importance file that was measured on this network and --layers",
            )
    for name, tensor in mine.items():
        old, new = tuple(tensor.shape), tuple(shapes[name])
        grown = name in importance.head and old[1:] == new[1:] and old[:1] <= new[:1]
        if old != new and not grown:
            raise MismatchError(
                f"{where} is of another model: {name!r} has shape {list(old)}, the model's has "
                f"{list(new)}",
                hint="give the importance file that was measured on this network",
            )


def padded(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """With zeros for the rows that were not there yet."""
    if tuple(tensor.shape) == tuple(shape):
        return tensor
    out = tensor.new_zeros(shape)
    out[: len(tensor)] = tensor
    return out


def accumulate(
    past: Importance, new: Importance, *, how: Literal["mean", "max"] = "mean"
) -> Importance:
    """One importance for all tasks so far, from the raw importances of each.

    Mean: α_k = (α_new + t·α_{k−1})/(t+1) with t the tasks in `past`; max: the larger. Rows of the
    head that the past does not know count as zero there. Loss and accuracy become means over the
    tasks; standard errors are combined for the mean and dropped for the maximum.

    Raises:
        MismatchError: See `check_same_kind`; sample counts may differ.
    """
    check_same_kind(past, new, samples_may_differ=True)
    t = past.accumulated

    def mean(a: float | None, b: float | None) -> float | None:
        return None if a is None or b is None else (b + t * a) / (t + 1)

    tensors = {}
    for name, b in new.tensors.items():
        a = padded(past.tensors[name], tuple(b.shape))
        tensors[name] = torch.maximum(a, b) if how == "max" else (b + t * a) / (t + 1)
    errors = {}
    if how == "mean":
        errors = {
            layer: math.hypot(new.layer_stderr[layer], t * error) / (t + 1)
            for layer, error in past.layer_stderr.items()
            if layer in new.layer_stderr
        }
    return replace(
        new,
        tensors=tensors,
        n_samples=min(past.n_samples, new.n_samples),
        digest=hashlib.sha256(f"{past.digest}\0{new.digest}".encode()).hexdigest(),
        accumulated=t + 1,
        layer_stderr=errors,
        mean_loss=mean(past.mean_loss, new.mean_loss),
        accuracy=mean(past.accuracy, new.accuracy),
        chance=mean(past.chance, new.chance),
    )
