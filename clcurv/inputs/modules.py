"""What every room needs to know of a live module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from clcurv.errors import ArchitectureError


def out_of_memory(error: BaseException) -> bool:
    """Whether an error is the CPU's or the GPU's allocator giving up."""
    text = str(error)
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError)
        and ("DefaultCPUAllocator" in text or "not enough memory" in text)
    )


@contextmanager
def written_back(model: nn.Module) -> Iterator[None]:
    """Undoes what forward passes write to: buffers, and embeddings with a largest norm."""
    buffers = [
        (m, name, b, b.detach().clone())
        for m in model.modules()
        for name, b in m._buffers.items()
        if b is not None and not b.is_meta
    ]
    tables = [
        (m.weight.data, m.weight.detach().clone())
        for m in model.modules()
        if isinstance(m, nn.Embedding | nn.EmbeddingBag) and m.max_norm is not None
        if not m.weight.is_meta
    ]
    try:
        yield
    finally:
        for data, value in tables:
            data.copy_(value)
        for m, name, b, value in buffers:
            if not torch.equal(b, value):
                b.copy_(value)
            m._buffers[name] = b


def refuse_complex(model: nn.Module) -> None:
    """Complex parameters have no place here: a cast would drop their imaginary part.

    Raises:
        ArchitectureError: Naming the first.
    """
    for name, p in model.named_parameters():
        if p.is_complex():
            raise ArchitectureError(
                f"{name} is complex: curvature is measured of real parameters only",
                hint="keep it as real numbers, and use torch.view_as_complex in the forward",
            )
