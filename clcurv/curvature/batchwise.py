"""MAS as other public implementations take it: absolute gradients of whole batches.

Formulas read in their code, nothing copied. With g_b the gradient over batch b of size B_b:

- ``reference`` (rahafaljundi/MAS-Memory-Aware-Synapses): Σ_b |∇Σ_{n∈b}‖f‖²| / N, eval mode.
- ``authors`` (of arXiv 2608.00630): the same times the batch size, a constant factor of 20 with
  their batches of 20.
- ``facil`` (mmasana/FACIL): Σ_b |∇ mean_{n∈b} ‖f‖|, not squared, over full batches, train mode.
- ``avalanche`` (ContinualAI/avalanche): as FACIL over all batches, each weighing the same, times
  3, the length of its batch tuple (x, y, task).

The exponential averages of the last two are about several tasks: they halve everything after the
first one, which no ratio notices, and are left out here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from clcurv.curvature.objective import forward
from clcurv.curvature.operators import out_of_memory, split_batch
from clcurv.curvature.output_seeds import Seeds, aligned
from clcurv.errors import ResourceError, UsageError
from clcurv.inputs.dataset import Batch

Compat = Literal["per-sample", "reference", "facil", "avalanche", "authors"]
AUTHORS_BATCH = 20
USUAL_BATCH = 32
AVALANCHE_TUPLE = 3
TRAINS = ("facil", "avalanche")


@dataclass(frozen=True)
class Share:
    """What one batch adds: importance = Σ grads / Σ weight.

    Attributes:
        grads: Parameter name -> |gradient|, scaled as the convention has it.
        rows, targets: Outputs (n, T, C) and the targets.
        weight: Of the batch in the denominator.
        first: Index of its first sample.
    """

    grads: dict[str, Tensor]
    rows: Tensor
    targets: Tensor
    weight: float
    first: int


def check_compat(compat: str, estimator: str) -> None:
    """Refuses what is no convention, or none of that estimator.

    Raises:
        UsageError: So it is.
    """
    if compat not in get_args(Compat):
        raise UsageError(f"unknown --compat {compat!r}", hint=" | ".join(get_args(Compat)))
    if compat != "per-sample" and estimator != "mas":
        raise UsageError(
            f"--compat {compat} is a convention of MAS, not of {estimator}",
            hint="--estimator mas, or --compat per-sample",
        )


def convention_batch(compat: str, asked: int | None, n: int) -> int:
    """The batch size that a convention's numbers depend on; at most the whole sample."""
    return min(n, asked or (AUTHORS_BATCH if compat == "authors" else USUAL_BATCH))


def batch_contributions(
    model: nn.Module,
    params: Mapping[str, nn.Parameter],
    seeds: Seeds,
    whole: Batch,
    *,
    compat: str,
    size: int,
) -> Iterator[Share]:
    """One share a batch of `size` samples, in order; switches to train mode where theirs does.

    Raises:
        ResourceError: Out of memory; a smaller batch gives other numbers, so none is tried.
    """
    model.train(compat in TRAINS)
    batches = split_batch(whole, size)
    if compat == "facil" and len(batches) > 1 and len(batches[-1]) < size:
        batches.pop()
    first = 0
    for batch in batches:
        try:
            grads, rows = _gradient(model, params, seeds, batch, norm=compat in TRAINS)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            raise ResourceError(
                f"out of memory with a batch of {size}", hint="--batch-size with fewer"
            ) from None
        n = len(batch)
        scale, weight = {
            "reference": (1.0, float(n)),
            "authors": (float(size), float(n)),
            "facil": (1.0, 1.0),
            "avalanche": (float(AVALANCHE_TUPLE), 1.0),
        }[compat]
        for g in grads.values():
            g.abs_().mul_(scale)
        yield Share(grads, rows, batch.targets, weight, first)
        first += n


def _gradient(
    model: nn.Module, params: Mapping[str, nn.Parameter], seeds: Seeds, batch: Batch, *, norm: bool
) -> tuple[dict[str, Tensor], Tensor]:
    rows, labels = aligned(seeds.objective, forward(model, batch), seeds.readable(batch.targets))
    fixed = rows.detach()
    # Scored rows only, see `Seeds`.
    w = torch.stack([next(seeds.of(r, y, r)) for r, y in zip(fixed, labels, strict=True)])
    if norm:
        # ∇‖f‖ = f/‖f‖, zero at zero.
        length = w.flatten(1).norm(dim=1).clamp(min=torch.finfo(w.dtype).tiny)
        w = w / (length * len(w))[:, None, None]
    found = torch.autograd.grad(rows, list(params.values()), w, allow_unused=True)
    grads = {
        name: torch.zeros_like(p) if g is None else g.clone()
        for (name, p), g in zip(params.items(), found, strict=True)
    }
    return grads, fixed
