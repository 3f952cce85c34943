"""Empirical Fisher blocks: the mean over loss terms of g_n g_nᵀ, with the labels given.

The exact Fisher needs no code of its own: for cross-entropy with a softmax, and for squared
error read as a Gaussian's likelihood, it equals the generalised Gauss-Newton matrix (Martens
2020, section 9.2). The square of a batch's mean gradient is no Fisher at all.
"""

from __future__ import annotations

from torch import Tensor

from clcurv.curvature.ggn import GGNGraph


class EmpiricalFisherGraph(GGNGraph):
    """F_ℓℓ v = Σ_n g_n (g_n·v): the Jacobian is of the loss terms, H_L the identity."""

    def _outputs(self, rows: Tensor) -> Tensor:
        return self._objective.per_term(rows, self._targets)

    def _curve(self, jv: Tensor, batched: bool) -> Tensor:
        return jv
