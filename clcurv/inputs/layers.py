"""Parameters -> ordered, named layers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Layer:
    """A group of parameters whose Hessian block is measured as one.

    Attributes:
        name: Unique, e.g. ``blocks.3`` or ``layer1.0.conv1.weight``.
        param_names: Names as in ``model.named_parameters()``; tied names follow
            in `tied_names`.
        depth: 0-based order of first execution among the layers.
        is_head: The classifier, left out of κ and of the fit unless asked.
        tied_names: Further names of the same tensors.
    """

    name: str
    param_names: tuple[str, ...]
    depth: int
    is_head: bool = False
    tied_names: tuple[str, ...] = ()
