"""Effective rank with a gradient: of a matrix, and of what a network's layers take in."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from clcurv.diagnostics.activations import as_rows, call, hooked, padding_mask
from clcurv.errors import MismatchError
from clcurv.inputs.dataset import Inputs
from clcurv.inputs.execution import plain_attention

_MAX_ROWS = 8192


def effective_rank(rows: Tensor) -> Tensor:
    """exp of the entropy of σ/Σσ (Roy and Vetterli 2007), with its gradient.

    Only singular values are taken, whose gradient U diag(∂/∂σ) Vᵀ is sound where values
    coincide; the gradient of singular vectors is not. Values under the rounding of the largest
    count as zero, for which the entropy has no slope: a rank-deficient matrix has a finite
    gradient that leaves the missing directions alone.

    Args:
        rows: (n, d); computed in float64 (in float32 on devices without).

    Returns:
        A scalar between 1 and min(n, d); 0 without gradient for a matrix of zeros, NaN for one
        that is not finite.
    """
    wide = rows if rows.device.type == "mps" else rows.double()
    if not bool(wide.isfinite().all()):
        return wide.new_full((), float("nan"))
    sigma = torch.linalg.svdvals(wide)
    largest = sigma.detach().max() if len(sigma) else sigma.new_zeros(())
    # The rows came in their own precision: below its rounding there is nothing to amplify.
    floor = largest * max(rows.shape) * torch.finfo(rows.dtype).eps
    kept = sigma[sigma.detach() > floor]
    if not len(kept):
        return wide.new_zeros(())
    p = kept / kept.sum()
    entropy: Tensor = torch.special.entr(p).sum()
    return entropy.exp()


def mean_effective_rank(
    model: nn.Module, inputs: Sequence[Inputs], layers: Collection[str]
) -> Tensor:
    """Mean over layers of the effective rank of their inputs on all batches together.

    Convolutions: channels are features, positions rows; padding tokens left out; at most 8192
    rows (or 5d) a layer, evenly spaced. The model keeps its mode, but dropout is off and
    buffers (running averages) come back as they were.

    Args:
        model: Run once a batch, under the ambient grad mode.
        inputs: Batches of what the model is called with.
        layers: Names of modules.

    Returns:
        A scalar, with its graph where gradients are on; NaN where an input is not finite.

    Raises:
        MismatchError: A layer did not run.
    """
    modules = dict(model.named_modules())
    rows: dict[str, list[Tensor]] = {name: [] for name in layers}
    mask: Tensor | None = None

    def take(name: str, value: Tensor) -> None:
        rows[name].append(as_rows(modules[name], value, mask))

    with _undisturbed(model), plain_attention(), hooked(model, layers, take):
        for batch in inputs:
            mask = padding_mask(batch)
            call(model, batch)
    silent = next((name for name, parts in rows.items() if not parts), None)
    if silent is not None:
        raise MismatchError(f"layer {silent} does not run when the model does")
    ranks = [effective_rank(_thinned(torch.cat(parts))) for parts in rows.values()]
    return torch.stack([r.to(ranks[0].device) for r in ranks]).mean()


def _thinned(rows: Tensor) -> Tensor:
    most = max(_MAX_ROWS, 5 * rows.shape[1])
    if len(rows) <= most:
        return rows
    return rows[torch.linspace(0, len(rows) - 1, most, device=rows.device).long()]


@contextmanager
def _undisturbed(model: nn.Module) -> Iterator[None]:
    """Dropout off; buffers that a forward pass writes to are put back."""
    dropouts = [
        m for m in model.modules() if isinstance(m, nn.modules.dropout._DropoutNd) and m.training
    ]
    buffers = [(b, b.detach().clone()) for b in model.buffers()] if model.training else []
    for m in dropouts:
        m.training = False
    try:
        yield
    finally:
        for m in dropouts:
            m.training = True
        with torch.no_grad():
            for buffer, value in buffers:
                if not torch.equal(buffer, value):
                    buffer.copy_(value)
