"""Does a part of the sample meet all that a layer's curvature may come from?

Where a layer's gradient is exactly zero on a part of the data (an embedding's rows of words that
do not occur there, units that are off), so are its products, and a Krylov space that starts there
may never leave: the blocks of such parameters can be exactly decoupled.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from clcurv.curvature.objective import Objective
from clcurv.curvature.operators import LayerParams
from clcurv.inputs.dataset import Batch

# Of the largest energy of a parameter in the layer. Rare words and units lie far below it.
UNMET = 0.1


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
