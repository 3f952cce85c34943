"""First-order passes over a sample: the loss as it is, and a new task's gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from clcurv.curvature.objective import IGNORE_INDEX, Objective
from clcurv.curvature.operators import LayerParams, first_bad_module, out_of_memory
from clcurv.errors import NumericalError, ResourceError
from clcurv.inputs.dataset import Batch, Samples
from clcurv.inputs.execution import forward_faults
from clcurv.inputs.loss_names import LOG_LIKELIHOODS

SURVEY_BATCH = 32

_Result = TypeVar("_Result")
_Tell = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Survey:
    """One forward pass over the sample.

    Attributes:
        mean_loss: Over all terms.
        accuracy: Part of the terms predicted correctly; None for regression.
        chance: Accuracy of always guessing the commonest class; None for regression.
        n_terms: Terms of the loss.
        scores: (n,) every sample's share in the loss' curvature, see
            `Objective.curvature_scores`.
    """

    mean_loss: float
    accuracy: float | None
    chance: float | None
    n_terms: int
    scores: Tensor


def within_memory(work: Callable[[int], _Result], size: int) -> _Result:
    """`work(size)`, tried again with half the samples after every time memory runs out.

    Raises:
        ResourceError: Out of memory with a single sample.
    """
    while True:
        try:
            return work(size)
        except (ResourceError, RuntimeError) as error:
            if not (isinstance(error, ResourceError) or out_of_memory(error)):
                raise
        # Outside of the handler, whose traceback holds on to what filled the memory.
        if size == 1:
            raise ResourceError(
                "out of memory with a single sample",
                hint="smaller inputs, or --layers with a part of the layers",
            )
        size = (size + 1) // 2


def survey(model: nn.Module, samples: Samples, objective: Objective, tell: _Tell) -> Survey:
    """What one forward pass tells.

    Raises:
        NumericalError: A loss that is not finite, or no scored term.
        ResourceError: Out of memory with a single sample.
    """
    return within_memory(
        lambda size: _survey(model, samples.split(size), objective, tell), SURVEY_BATCH
    )


def _survey(
    model: nn.Module, batches: Sequence[Batch], objective: Objective, tell: _Tell
) -> Survey:
    scores, total, terms = [], 0.0, 0
    hits: int | None = 0
    with forward_faults():
        objective.check(model, batches[0])
    for i, batch in enumerate(batches):
        with forward_faults():
            score, loss, correct = objective.curvature_scores(model, batch)
        if not bool(loss.isfinite().all()):
            where = first_bad_module(model, batch)
            first = int((~loss.isfinite()).nonzero()[0]) + i * len(batches[0])
            raise NumericalError(
                f"the loss is not finite on sample {first} of micro-batch {i}{where}",
                hint="clcurv reads the weights as they are: check the checkpoint and the inputs",
            )
        scores.append(score)
        total += float(loss.sum())
        hits = None if hits is None or correct is None else hits + correct
        terms += objective.terms(batch.targets)
        tell("forward pass", i + 1, len(batches))
    if terms == 0:
        raise NumericalError("no term of the loss is scored: every target is ignored")
    targets = torch.cat([b.targets.reshape(-1) for b in batches])
    known = hits is not None and not targets.is_floating_point()
    chance = None
    if known:
        counted = targets[targets != IGNORE_INDEX]
        chance = float(torch.unique(counted, return_counts=True)[1].max()) / len(counted)
    return Survey(
        mean_loss=total / terms,
        accuracy=hits / terms if known and hits is not None else None,
        chance=chance,
        n_terms=terms,
        scores=torch.cat(scores),
    )


def rounding_of(mean_loss: float, loss: str, dtype: str) -> float:
    """Relative size of rounding in a classifier's curvature.

    A confident network's residuals p − y are about as large as its loss, and p is known to eps.

    Args:
        mean_loss: Of the sample.
        loss: As in `Objective`; 0 where curvature does not vanish with the loss (``mse``) or
            nothing is known of it (the user's own).
        dtype: ``float32`` | ``float64``.
    """
    if loss not in LOG_LIKELIHOODS:
        return 0.0
    eps = torch.finfo(torch.float64 if dtype == "float64" else torch.float32).eps
    return eps / max(mean_loss, 1e-300)


def refuse_certainty(mean_loss: float, loss: str, dtype: str) -> None:
    """Raises before the work where rounding is all there would be to measure.

    Raises:
        NumericalError: The mean loss is below ten times what rounding leaves of it.
    """
    if rounding_of(mean_loss, loss, dtype) >= 0.1:
        raise NumericalError(
            f"the mean loss {mean_loss:.2g} is so small that rounding in {dtype} is all that is "
            "left of its curvature: the network is certain of everything",
            hint="--dtype float64, or data that it has not been trained on",
        )


def gradient_squares(
    model: nn.Module, params: LayerParams, samples: Samples, size: int, objective: Objective
) -> dict[str, float]:
    """‖g_ℓ‖² of the mean loss on another sample, in micro-batches of at most `size`.

    Raises:
        ResourceError: Out of memory with a single sample.
    """
    return within_memory(
        lambda fits: _gradient_squares(model, params, samples.split(fits), objective), size
    )


def _gradient_squares(
    model: nn.Module, params: LayerParams, batches: Sequence[Batch], objective: Objective
) -> dict[str, float]:
    total = {n: [torch.zeros_like(p) for p in ps] for n, ps in params.items()}
    flat = [p for ps in params.values() for p in ps]
    terms = 0
    for batch in batches:
        terms += objective.terms(batch.targets)
        loss = objective.loss_sum(model, batch)
        if not loss.requires_grad:
            raise NumericalError(
                "the loss does not depend on any of the parameters",
                hint="is the output detached, or computed without gradients?",
            )
        grads = iter(torch.autograd.grad(loss, flat, allow_unused=True))
        for sums in total.values():
            for s in sums:
                g = next(grads)
                if g is not None:
                    s += g
    return {
        n: sum(float((s / terms).double().square().sum()) for s in sums)
        for n, sums in total.items()
    }
