"""What a uniform λ costs against the oracle at an equal forgetting budget."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clcurv.diagnostics.kappa import LayerSensitivity


def regret_bound(kappa: float) -> float:
    """Largest relative regret of a uniform λ: 1 − 2√κ/(1+κ) (Kantorovich's inequality).

    Args:
        kappa: max s / min s, at least 1.
    """
    if math.isinf(kappa):
        return 1.0
    root = math.sqrt(kappa)
    # (1 − √κ)²/(1+κ): the same number without cancellation near κ = 1.
    return (1 - root) ** 2 / (1 + kappa)


def measured_regret(
    layers: Sequence[LayerSensitivity], grad_sq: Mapping[str, float] | None
) -> float | None:
    """Relative regret for one new task: 1 − G/√(S·R).

    G = Σ‖g_ℓ‖², S = Σ s_ℓ‖g_ℓ‖², R = Σ‖g_ℓ‖²/s_ℓ, over the given layers.

    Args:
        layers: Layers with a usable (positive) `s`.
        grad_sq: Layer name -> ‖g_ℓ‖² of the new task's mean loss.

    Returns:
        A number in [0, 1), or None without gradients.
    """
    if not grad_sq:
        return None
    pairs = [(x.s, grad_sq[x.name]) for x in layers if x.s and x.name in grad_sq]
    pairs = [(s, g) for s, g in pairs if math.isfinite(g) and g > 0]
    if not pairs:
        return None
    top = max(g for _, g in pairs)
    centre = math.exp(sum(math.log(s) for s, _ in pairs) / len(pairs))
    # Units cancel; scaling first keeps products of tiny gradients from vanishing.
    scaled = [(s / centre, g / top) for s, g in pairs]
    g_sum = sum(g for _, g in scaled)
    s_sum = sum(s * g for s, g in scaled)
    r_sum = sum(g / s for s, g in scaled)
    return max(0.0, 1 - g_sum / math.sqrt(s_sum * r_sum))
