"""Hessian blocks by double backward."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from clcurv.curvature.lean import lean_graphs
from clcurv.curvature.objective import Objective
from clcurv.curvature.operators import LayerParams, checked_sum, gradients_by_layer, pullback
from clcurv.inputs.dataset import Batch


class HessianGraph:
    """First-order graph of one micro-batch: H_ℓℓ v = ∂(g_ℓ·v)/∂θ_ℓ (Pearlmutter 1994).

    Cost: building it about one gradient with its graph; a product the double backward of
    the layers above ℓ.
    """

    def __init__(
        self, model: nn.Module, batch: Batch, objective: Objective, layers: LayerParams
    ) -> None:
        with lean_graphs():
            output = objective.output(model, batch)
        total = checked_sum(objective.losses(output, batch.targets))
        self._params = layers
        self.gradients = gradients_by_layer(total, layers)

    def product(
        self, layer: str, vector: Sequence[Tensor], *, batched: bool = False
    ) -> Sequence[Tensor | None]:
        return pullback(self.gradients[layer], vector, self._params[layer], batched=batched)
