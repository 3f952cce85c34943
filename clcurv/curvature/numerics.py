"""The conditions under which second derivatives are taken, and a model lent and given back."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from clcurv.inputs.modules import refuse_complex, written_back


@contextmanager
def exact_numerics(model: nn.Module) -> Iterator[None]:
    """Kernels with a second derivative, and full float32.

    Fused attention has no second derivative on any device, nor have cuDNN's recurrent
    networks; TF32 is on by default in cuDNN's convolutions and off here.
    """
    with ExitStack() as stack:
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        if any(isinstance(m, nn.RNNBase) for m in model.modules()):
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        for backend in (torch.backends.cuda.matmul, torch.backends.cudnn.conv):  # type: ignore[attr-defined]
            before = backend.fp32_precision
            backend.fp32_precision = "ieee"
            stack.callback(setattr, backend, "fp32_precision", before)
        yield


@contextmanager
def borrowed(
    model: nn.Module,
    parameters: Sequence[nn.Parameter],
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Iterator[nn.Module]:
    """Lends `model` in eval mode with only `parameters` requiring grad; undoes it all.

    Mode, ``requires_grad``, ``.grad``, the data of parameters and buffers (also when `dtype`
    or `device` differ) and the switches of activation checkpointing and sparse gradients are as
    before afterwards.

    Raises:
        ArchitectureError: Complex parameters.
    """
    refuse_complex(model)
    modes = [(m, m.training) for m in model.modules()]
    flags = [(p, p.requires_grad, p.data, p.grad) for p in model.parameters()]
    switches = [
        (m, name)
        for m in model.modules()
        for name in ("gradient_checkpointing", "grad_checkpointing", "sparse")
        if getattr(m, name, False) is True
        and (name != "sparse" or isinstance(m, nn.Embedding | nn.EmbeddingBag))
    ]
    wanted = {id(p) for p in parameters}
    lent = ExitStack()
    try:
        lent.enter_context(written_back(model))
        for m, name in switches:
            setattr(m, name, False)
        for p, _, _, _ in flags:
            p.grad = None
        model.eval()
        cast(model, dtype, device)
        for p, _, _, _ in flags:
            p.requires_grad_(id(p) in wanted)
        yield model
    finally:
        for p, required, data, grad in flags:
            p.data = data
            p.requires_grad_(required)
            p.grad = grad
        lent.close()
        for m, mode in modes:
            m.training = mode
        for m, name in switches:
            setattr(m, name, True)


def cast(model: nn.Module, dtype: torch.dtype, device: torch.device | str) -> None:
    """`model.to`, which would cast complex buffers (rotary frequencies, say) to their real part."""
    turning = [
        (m, name, b)
        for m in model.modules()
        for name, b in m._buffers.items()
        if b is not None and b.is_complex()
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.to(device=device, dtype=dtype)
    for m, name, b in turning:
        m._buffers[name] = b.to(device=device, dtype=dtype.to_complex())
