"""Generalised Gauss-Newton blocks JᵀH_L J, with J the Jacobian of the rows (logits)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from clcurv.curvature.lean import lean_graphs
from clcurv.curvature.objective import Objective, forward
from clcurv.curvature.operators import LayerParams, checked_sum, gradients_by_layer, pullback
from clcurv.inputs.dataset import Batch


class GGNGraph:
    """G_ℓℓ v = J_ℓᵀ H_L J_ℓ v (Schraudolph 2002).

    J_ℓ v comes from differentiating u ↦ J_ℓᵀu, which is linear, at any u: the graph of that
    vector-Jacobian product is kept instead of the gradient's.
    """

    def __init__(
        self, model: nn.Module, batch: Batch, objective: Objective, layers: LayerParams
    ) -> None:
        with lean_graphs():
            output = forward(model, batch)
        rows, targets = objective.rows(output, batch.targets)
        checked_sum(objective.per_term(rows.detach(), targets))
        self._objective, self._targets = objective, targets
        self._keep(self._outputs(rows), layers)

    def _outputs(self, rows: Tensor) -> Tensor:
        """What the Jacobian is of."""
        self._rows = rows.detach()
        return rows

    def _curve(self, jv: Tensor, batched: bool) -> Tensor:
        """H_L times jv, H_L the Hessian of the summed loss in its rows."""
        z = self._rows.clone().requires_grad_(True)
        loss = self._objective.per_term(z, self._targets).sum()
        (slope,) = torch.autograd.grad(loss, z, create_graph=True)
        (out,) = torch.autograd.grad(slope, z, jv, is_grads_batched=batched)
        return out

    def _keep(self, outputs: Tensor, layers: LayerParams) -> None:
        self._layers, self._out = layers, outputs
        self._u = torch.zeros_like(outputs, requires_grad=True)
        self._pulled = gradients_by_layer(outputs, layers, self._u)

    def product(
        self, layer: str, vector: Sequence[Tensor], *, batched: bool = False
    ) -> Sequence[Tensor | None]:
        params = self._layers[layer]
        (jv,) = pullback(self._pulled[layer], vector, [self._u], batched=batched)
        if jv is None:
            return [None] * len(params)
        return pullback([self._out], [self._curve(jv, batched)], params, batched=batched)
