"""A part of the sample for the scout, and whether it meets all that the curvature comes from.

Where a layer's gradient is exactly zero on a part of the data (an embedding's rows of words that
do not occur there, units that are off), so are its products, and a Krylov space that starts there
may never leave: the blocks of such parameters can be exactly decoupled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from clcurv.curvature.objective import Objective
from clcurv.curvature.operators import LayerParams
from clcurv.inputs.dataset import Batch, Samples

# Of the largest energy of a parameter in the layer. Rare words and units lie far below it.
UNMET = 0.1
SCOUT_FRACTION = 8
SCOUT_LEAST = 16


def part_of(samples: Samples, scores: Tensor) -> Samples | None:
    """A part of the sample that stands for all of it; None where the sample is too small.

    Where few samples carry most of the loss' curvature (a fitted network) half of it is
    those; the others are the first ones of the sample, which is in random order. The
    heaviest alone may never meet what the rest has in common, an embedding's commonest
    rows for one, and a search that starts without a direction may never find it.

    Args:
        samples: All of them.
        scores: How heavy each one is, ``(n,)``.
    """
    n = max(SCOUT_LEAST, math.ceil(len(samples) / SCOUT_FRACTION))
    if len(samples) < 4 * n:
        return None
    rows = torch.arange(n, device=scores.device)
    if float(scores.topk(n).values.sum()) > float(scores.sum()) / 2:
        heaviest = scores.topk(n // 2).indices
        others = torch.ones_like(scores, dtype=torch.bool)
        others[heaviest] = False
        rows = torch.cat([heaviest, others.nonzero()[: n - n // 2, 0]]).sort().values
    inputs = samples.inputs
    return Samples(
        inputs[rows] if isinstance(inputs, Tensor) else {k: v[rows] for k, v in inputs.items()},
        samples.targets[rows],
    )


def unmet_layers(
    model: nn.Module,
    params: LayerParams,
    part: Sequence[Batch],
    whole: Sequence[Batch],
    objective: Objective,
) -> tuple[frozenset[str], bool]:
    """Layers with parameters that the part never meets and that matter on the whole.

    The energy of a parameter is the sum over micro-batches of its squared gradient. Costs a
    gradient over the part, and one over the whole where some layer has zeros on the part.

    Args:
        model: In eval mode, on the device of the batches.
        params: Layer name -> parameters.
        part, whole: Micro-batches of some and of all samples.
        objective: The loss.

    Returns:
        Their names, and whether the whole was read.
    """
    met = _energies(model, params, part, objective)
    doubtful = {n: params[n] for n, parts in met.items() if any((e == 0).any() for e in parts)}
    found = set()
    for name, parts in _energies(model, doubtful, whole, objective).items():
        largest = max(float(e.max()) for e in parts)
        unmet = max(
            float(torch.where(seen == 0, e, 0).max())
            for e, seen in zip(parts, met[name], strict=True)
        )
        if unmet > UNMET * largest:
            found.add(name)
    return frozenset(found), bool(doubtful)


def _energies(
    model: nn.Module, params: LayerParams, batches: Sequence[Batch], objective: Objective
) -> dict[str, list[Tensor]]:
    found = {n: [torch.zeros_like(p) for p in ps if p.numel()] for n, ps in params.items()}
    flat = [p for ps in params.values() for p in ps if p.numel()]
    sums = [e for parts in found.values() for e in parts]
    if not flat:
        return found
    for batch in batches:
        grads = torch.autograd.grad(objective.loss_sum(model, batch), flat, allow_unused=True)
        for energy, g in zip(sums, grads, strict=True):
            if g is not None:
                energy += g.square()
    return found
