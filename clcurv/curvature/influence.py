"""Standard errors over the data by the infinitesimal jackknife.

A statistic T(w) of data with weights w (all 1) changes by the influence ∂T/∂w_s when sample s
counts for a little more, and the variance over data sets is about Σ_s (∂T/∂w_s)² for a T that does
not depend on the scale of w (Efron 1982, "The Jackknife, the Bootstrap and Other Resampling
Plans", chapter 6). It takes one eigendecomposition, where the jackknife takes one per sample.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

_Floats = NDArray[np.float64]


def stderr_of(influences: ArrayLike, counts: Sequence[int] | None = None) -> float | None:
    """√Σ_s I_s²; None for fewer than two samples.

    Args:
        influences: (n,) of every sample, or of every row where a sample has several.
        counts: Rows of each sample, in order; None takes every row for a sample.
    """
    each = np.asarray(influences, dtype=np.float64)
    if counts is not None:
        ends = np.cumsum(counts)
        sums = np.concatenate(([0.0], np.cumsum(each)))
        each = sums[ends] - sums[ends - np.asarray(counts)]
    if len(each) < 2:
        return None
    error = float(np.sqrt((each**2).sum()))
    return error if math.isfinite(error) else None


def effective_rank_slope(squares: ArrayLike) -> _Floats:
    """∂/∂λ_i of the effective rank of σ = √λ: erank · −(log p_i + H)/(2 σ_i Σσ), p = σ/Σσ.

    A row a of the matrix then has the influence Σ_i slope_i (a·v_i)² on its effective rank.

    Args:
        squares: (k,) eigenvalues λ of the second moment, ≥ 0; zeros have no slope.
    """
    values = np.asarray(squares, dtype=np.float64)
    slope = np.zeros_like(values)
    inside = values > 0
    if not inside.any():
        return slope
    sigma = np.sqrt(values[inside])
    p = sigma / sigma.sum()
    entropy = -float((p * np.log(p)).sum())
    slope[inside] = -math.exp(entropy) * (np.log(p) + entropy) / (2 * sigma * sigma.sum())
    return slope


def share_influence(values: Tensor, vectors: Tensor, start: Tensor, inside: Tensor) -> Tensor:
    """Influence of every entry on ‖P s‖²/‖s‖², P the projector on some eigenvectors of G.

    An entry's weight scales its s by its root, and its row and column of G. To first order in it
    P turns by Σ (v_iv_jᵀ + v_jv_iᵀ)(v_iᵀ dG v_j)/(μ_i − μ_j) over i inside and j outside; which
    eigenvalues are inside is taken as given.

    Args:
        values, vectors: (k,) and (k, k), of G.
        start: s, (k,).
        inside: (k,) booleans.

    Returns:
        (k,), which sum to zero.
    """
    energy = start.square()
    total = energy.sum()
    ours, others = vectors[:, inside], vectors[:, ~inside]
    a, b = ours.T @ start, others.T @ start
    direct = start * (ours @ a)
    mu, nu = values[inside][:, None], values[~inside][None]
    turned = (((ours * a) @ ((mu + nu) / (mu - nu))) * (others * b)).sum(1)
    return (direct + turned) / total - a.square().sum() / total * (energy / total)
