"""The look-ahead: a temporary copy of the network, trained on the current task alone.

Suresh et al., *Relative Parameter Importance in Task-Agnostic Replay-Free Continual Learning*
(arXiv 2608.00630): from θ_{k−1} a copy learns the new task without any penalty, at the training
job's own learning rate; what the copy then needs, α^la, is what the new task will need.
"""

from __future__ import annotations

import copy
import dataclasses

from torch import nn

from clcurv.curvature.objective import Objective
from clcurv.diagnostics.relimp import LookAhead
from clcurv.errors import ArchitectureError
from clcurv.inputs.dataset import Samples
from clcurv.inputs.heads import fresh_head, grow_head
from clcurv.inputs.loaded import LoadedModel
from clcurv.training.fit import Fit, Progress, fit, scored_classes
from clcurv.training.options import LookAheadOptions, load_look_ahead_options

__all__ = ["LookAheadOptions", "load_look_ahead_options", "look_ahead", "ready_copy"]


def look_ahead(
    loaded: LoadedModel,
    samples: Samples,
    objective: Objective,
    options: LookAheadOptions | None = None,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    progress: Progress | None = None,
) -> tuple[LoadedModel, LookAhead]:
    """Train a temporary copy on the current task alone, without penalty.

    Classes that the head does not have yet get rows of their own (`grow_head`); a backbone gets
    a linear head. The given model is not touched. See `clcurv.training.fit.fit` for train mode,
    validation and early stopping.

    Args:
        loaded: The network after the past tasks.
        samples: Of the current task; labels may lie outside the head.
        objective: The current task's loss.
        options: How; None takes the defaults.
        device, dtype: Where the copy is trained, and ``float32`` or ``float64``.
        progress: Called with (``look-ahead``, steps done, most steps).

    Returns:
        The copy in eval mode, in `dtype`, on the given model's device, and how it was trained.

    Raises:
        DataError: The sample is empty or too small.
        NumericalError: The training diverged.
        ResourceError: Out of memory.
        UsageError: All parameters are frozen.
    """
    options = options or LookAheadOptions()
    target, added = ready_copy(loaded, samples, objective, seed=options.seed)
    done = fit(
        target.model, samples, objective, options, device=device, dtype=dtype, progress=progress
    )
    target.model.to(next(loaded.model.parameters()).device)
    note = f"look-ahead: trained on {done.trained_on} samples for {done.steps} steps"
    target = dataclasses.replace(target, notes=(*target.notes, note))
    return target, described(done, options, added)


def ready_copy(
    loaded: LoadedModel, samples: Samples, objective: Objective, *, seed: int
) -> tuple[LoadedModel, int]:
    """A copy with a head for every class of the sample, and how many rows are new."""
    needed = scored_classes(samples, objective)
    width = loaded.num_classes or 0
    if loaded.task == "backbone" and needed:
        return fresh_head(loaded, num_classes=needed, seed=seed), needed
    if needed > width and loaded.task == "classification":
        return grow_head(loaded, needed, seed=seed), needed - width
    return dataclasses.replace(loaded, model=_copy(loaded.model)), 0


def described(done: Fit, options: LookAheadOptions, new_classes: int) -> LookAhead:
    """As reports say it."""
    return LookAhead(
        optimizer=options.optimizer,
        lr=options.lr,
        epochs=options.epochs,
        batch_size=options.batch_size,
        weight_decay=options.weight_decay,
        momentum=options.momentum if options.optimizer == "sgd" else 0.0,
        steps=done.steps,
        stopped_early=done.stopped_early,
        score_before=done.score_before,
        score_after=done.score_after,
        loss_before=done.loss_before,
        loss_after=done.loss_after,
        history=done.history,
        new_classes=new_classes,
    )


def _copy(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except (RuntimeError, TypeError) as error:
        raise ArchitectureError(
            f"{type(model).__name__} cannot be copied for the look-ahead "
            f"({str(error).splitlines()[0] if str(error) else type(error).__name__})",
            hint="parametrisations of the old kind (weight_norm) must be removed first",
        ) from error
