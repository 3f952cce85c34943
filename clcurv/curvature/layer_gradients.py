"""Per-sample gradients of a module's parameters from its input and the slope of its output.

For one call y = module(x) with batch first and G = ∂(Σ_n scalar_n)/∂y, sample n's gradient needs
x_n and G_n alone: Gᵀx for linear layers, the same on patches for convolutions, G∘x̂ for
normalisations, rows of G for embeddings (Rochette et al. 2019; Dangel et al. 2020).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SUPPORTED = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.Embedding,
)


def supported(module: nn.Module) -> bool:
    """Whether `Use` knows the module; subclasses may compute anything, so none is taken."""
    if isinstance(module, nn.Conv1d | nn.Conv2d):
        plain = module.padding_mode == "zeros" and not isinstance(module.padding, str)
        return plain and type(module) in SUPPORTED
    if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
        return module.running_mean is not None and type(module) in SUPPORTED
    if isinstance(module, nn.Embedding):
        return (
            type(module) is nn.Embedding
            and module.max_norm is None
            and not module.scale_grad_by_freq
            and not module.sparse
        )
    return type(module) in SUPPORTED or is_transposed(module)


def is_transposed(module: nn.Module) -> bool:
    """GPT-2's linear layer with a (inputs, outputs) weight; told without loading transformers."""
    kind = type(module)
    return (kind.__module__, kind.__name__) == ("transformers.pytorch_utils", "Conv1D")


@dataclass(frozen=True)
class Use:
    """One call of a module, seen from one of its parameters.

    Attributes:
        module: A supported one.
        role: ``weight`` | ``bias``.
        x, g: Input and slope of the output, batch first.
    """

    module: nn.Module
    role: str
    x: Tensor
    g: Tensor

    def outer(self) -> tuple[Tensor, Tensor] | None:
        """(n, rows), (n, columns) whose outer products are the gradients; None if none are."""
        if self.role != "weight" or self.x.ndim != 2:
            return None
        if isinstance(self.module, nn.Linear):
            return self.g, self.x
        return (self.x, self.g) if is_transposed(self.module) else None

    def lookups(self) -> tuple[Tensor, Tensor] | None:
        """(n, t) rows looked up and (n, t, d) slopes, of an embedding; what is padding is zero."""
        if not isinstance(self.module, nn.Embedding):
            return None
        n = len(self.x)
        index, g = self.x.reshape(n, -1), self.g.reshape(n, -1, self.g.shape[-1])
        if self.module.padding_idx is not None:
            g = g * (index != self.module.padding_idx)[..., None]
        return index, g

    def dense(self, rows: slice) -> Tensor:
        """(m, *shape of the parameter) of the samples in `rows`."""
        module, x, g = self.module, self.x[rows], self.g[rows]
        n = len(g)
        if isinstance(module, nn.Linear) or is_transposed(module):
            g = g.reshape(n, -1, g.shape[-1])
            if self.role == "bias":
                return g.sum(1)
            x = x.reshape(n, -1, x.shape[-1])
            a, b = (g, x) if isinstance(module, nn.Linear) else (x, g)
            return torch.bmm(a.transpose(1, 2), b)
        if isinstance(module, nn.Embedding):
            index, values = Use(module, self.role, x, g).lookups() or (x, g)
            out = g.new_zeros(n, *module.weight.shape)
            for i in range(n):
                out[i].index_add_(0, index[i], values[i])
            return out
        if isinstance(module, nn.LayerNorm):
            width = len(module.normalized_shape)
            if self.role == "weight":
                g = g * F.layer_norm(x, module.normalized_shape, eps=module.eps)
            return g.reshape(n, -1, *g.shape[g.ndim - width :]).sum(1)
        if isinstance(module, nn.GroupNorm | nn.BatchNorm1d | nn.BatchNorm2d):
            if self.role == "weight":
                g = g * _normalised(module, x)
            return g.reshape(n, g.shape[1], -1).sum(2)
        assert isinstance(module, nn.Conv1d | nn.Conv2d)
        if self.role == "bias":
            return g.reshape(n, g.shape[1], -1).sum(2)
        return _convolution(module, x, g)


def _normalised(module: nn.GroupNorm | nn.BatchNorm1d | nn.BatchNorm2d, x: Tensor) -> Tensor:
    if isinstance(module, nn.GroupNorm):
        return F.group_norm(x, module.num_groups, eps=module.eps)
    return F.batch_norm(x, module.running_mean, module.running_var, eps=module.eps)


def _convolution(module: nn.Conv1d | nn.Conv2d, x: Tensor, g: Tensor) -> Tensor:
    shape = module.weight.shape
    assert not isinstance(module.padding, str)
    if isinstance(module, nn.Conv1d):
        x = x[:, :, None]
        g = g[:, :, None]
    pairs = [
        (1, *option) if isinstance(module, nn.Conv1d) else option
        for option in (module.kernel_size, module.dilation, module.stride)
    ]
    padding = (0, *module.padding) if isinstance(module, nn.Conv1d) else module.padding
    n, groups = len(x), module.groups
    patches = F.unfold(x, pairs[0], dilation=pairs[1], padding=padding, stride=pairs[2])
    patches = patches.reshape(n * groups, -1, patches.shape[-1])
    slopes = g.reshape(n * groups, -1, patches.shape[-1])
    return torch.bmm(slopes, patches.transpose(1, 2)).reshape(n, *shape)
