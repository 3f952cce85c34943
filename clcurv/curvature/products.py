"""Block products: what operators hand to solvers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Products:
    """Block products of one layer with k vectors.

    Attributes:
        vectors: (k, d) in the model's dtype, averaged over all terms.
        projections: (n_chunks, j, k) float64: for every chunk c of the data,
            ``basis_i · H_c v_k / N`` with ``H = Σ_c H_c / N``; rows as in the basis given.
    """

    vectors: Tensor
    projections: Tensor


def project(basis: Tensor, vectors: Tensor, piece: int = 1 << 20) -> Tensor:
    """basis @ vectors.T in float64, (j, k), a million columns at a time.

    The small products decide the eigenvalues: they are accumulated in float64 whatever the
    vectors are stored in.
    """
    out = torch.zeros(len(basis), len(vectors), dtype=torch.float64)
    if not len(basis):
        return out
    for start in range(0, basis.shape[1], piece):
        part = slice(start, start + piece)
        out += (basis[:, part].double() @ vectors[:, part].double().T).cpu()
    return out
