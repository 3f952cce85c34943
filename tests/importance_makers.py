"""Importances made by hand."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from clcurv.curvature.importance import Importance, fingerprint_of
from clcurv.inputs.layers import Layer


def importance(tensors: dict[str, Tensor], head: tuple[str, ...] = (), **fields) -> Importance:
    made = Importance(
        tensors={n: t.double() for n, t in tensors.items()},
        estimator="mas",
        n_samples=64,
        digest="a" * 64,
        head=head,
        fingerprint=fingerprint_of({n: tuple(t.shape) for n, t in tensors.items()}, head),
        layer_stderr={"body": 0.25},
        mean_loss=0.5,
        accuracy=0.75,
        chance=0.5,
    )
    return replace(made, **fields)


def small(seed: int = 0, rows: int = 3) -> Importance:
    generator = torch.Generator().manual_seed(seed)
    return importance(
        {
            "body.weight": torch.rand(6, 5, generator=generator),
            "body.bias": torch.rand(6, generator=generator),
            "head.weight": torch.rand(rows, 6, generator=generator),
        },
        head=("head.weight",),
    )


LAYERS = (
    Layer("body", ("body.weight", "body.bias"), 0),
    Layer("head", ("head.weight",), 1, is_head=True),
)
