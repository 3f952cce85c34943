"""Layers rewritten, for as long as a graph is built, so that their second derivatives are cheap.

torch composes the double backward of a normalisation or an activation of a dozen passes over the
activations, for every product anew: a third to a half of a product's time on a CPU. Here what
does not depend on the vector is computed once, when the graph is built:

- an elementwise f keeps f'(x) and g·f''(x), so a product is one multiplication by each;
- layer normalisation keeps x̂ and its own input gradient; with r = 1/σ, c_v = ⟨v, x̂⟩/n and
  B(v) = r(v − mean v − x̂ c_v), the derivative of ⟨v, B(h)⟩ with respect to x is
  −r(⟨v, B(h)⟩ x̂/n + c_h B(v) + c_v B(h));
- batch normalisation in eval mode is the affine map that it is.

The values are torch's own; the tests hold the derivatives against it in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_Derivatives = Callable[[Tensor], tuple[Tensor, Tensor]]


class _Activation(NamedTuple):
    value: Callable[[Tensor], Tensor]
    derivatives: _Derivatives


def _gelu(x: Tensor) -> tuple[Tensor, Tensor]:
    density = torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    cumulative = 0.5 * (1 + torch.erf(x / math.sqrt(2)))
    return cumulative + x * density, density * (2 - x * x)


def _gelu_tanh(x: Tensor) -> tuple[Tensor, Tensor]:
    """x/2 (1 + tanh u) with u = √(2/π) (x + 0.044715 x³)."""
    k, a = math.sqrt(2 / math.pi), 0.044715
    square = x * x
    t = torch.tanh(k * x * (1 + a * square))
    first, second = k * (1 + 3 * a * square), 6 * k * a * x
    sech = 1 - t * t
    return (
        0.5 * (1 + t) + 0.5 * x * sech * first,
        sech * (first + 0.5 * x * (second - 2 * t * first * first)),
    )


def _silu(x: Tensor) -> tuple[Tensor, Tensor]:
    s = torch.sigmoid(x)
    slope = s * (1 - s)
    return s + x * slope, slope * (2 + x * (1 - 2 * s))


_ACTIVATIONS = {
    "gelu": _Activation(functional.gelu, _gelu),
    "gelu-tanh": _Activation(lambda x: functional.gelu(x, approximate="tanh"), _gelu_tanh),
    "silu": _Activation(functional.silu, _silu),
}


class _Elementwise(torch.autograd.Function):
    """y = f(x)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, name: str) -> Tensor:
        ctx.save_for_backward(x)
        ctx.name, ctx.first = name, None
        return _ACTIVATIONS[name].value(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            # The first pass: `_Slope` keeps both for as long as the graph lives.
            with torch.no_grad():
                ctx.first, second = _ACTIVATIONS[ctx.name].derivatives(x)
            return _Slope.apply(g, x, ctx.first, second), None
        first = ctx.first
        if first is None:
            first, _ = _ACTIVATIONS[ctx.name].derivatives(x)
        return g * first, None


class _Slope(torch.autograd.Function):
    """g f'(x), whose derivatives are f'(x) and g f''(x)."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        ctx.save_for_backward(first, g * second)
        return g * first

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor | None, ...]:
        _no_third_derivative()
        first, bent = ctx.saved_tensors
        by_g, by_x, *_ = ctx.needs_input_grad
        return v * first if by_g else None, v * bent if by_x else None, None, None


class _Normalise(torch.autograd.Function):
    """x̂ = (x − mean)/σ over the last dimensions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: Sequence[int], eps: float) -> Tensor:
        out, mean, rstd = torch.native_layer_norm(x, shape, None, None, eps)
        ctx.save_for_backward(x, out, mean, rstd)
        ctx.shape = shape
        return out

    @staticmethod
    def backward(ctx: Any, h: Tensor) -> tuple[Tensor, None, None]:
        x, normal, mean, rstd = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return _input_gradient(h, x, ctx.shape, mean, rstd), None, None
        return _NormaliseSlope.apply(h, x, normal, mean, rstd, ctx.shape), None, None


class _NormaliseSlope(torch.autograd.Function):
    """B(h), see the module's text."""

    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,
        x: Tensor,
        normal: Tensor,
        mean: Tensor,
        rstd: Tensor,
        shape: Sequence[int],
    ) -> Tensor:
        out = _input_gradient(h, x, shape, mean, rstd)
        along = _dot(h, normal, shape) * (rstd / math.prod(shape))
        ctx.save_for_backward(x, normal, mean, rstd, out, along)
        ctx.shape = shape
        return out

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor | None, ...]:
        _no_third_derivative()
        x, normal, mean, rstd, out, along = ctx.saved_tensors
        by_h, by_x, *_ = ctx.needs_input_grad
        through = _input_gradient(v, x, ctx.shape, mean, rstd)
        grad_x = None
        if by_x:
            scale = rstd / math.prod(ctx.shape)
            grad_x = (_dot(v, out, ctx.shape) * scale) * normal
            grad_x = torch.addcmul(grad_x, along, through)
            grad_x = torch.addcmul(grad_x, _dot(v, normal, ctx.shape) * scale, out).neg_()
        return through if by_h else None, grad_x, None, None, None, None


def _no_third_derivative() -> None:
    """Raises, where torch's `once_differentiable` would leave a part out without a word."""
    if torch.is_grad_enabled():
        raise RuntimeError("lean graphs have no third derivative")


def _input_gradient(
    h: Tensor, x: Tensor, shape: Sequence[int], mean: Tensor, rstd: Tensor
) -> Tensor:
    found: tuple[Tensor, ...] = torch.ops.aten.native_layer_norm_backward(
        h, x, shape, mean, rstd, None, None, [True, False, False]
    )
    return found[0]


def _dot(a: Tensor, b: Tensor, shape: Sequence[int]) -> Tensor:
    """Over the normalised dimensions, which stay as ones."""
    if len(shape) == 1:
        along: Tensor = torch.linalg.vecdot(a, b)
        return along.unsqueeze(-1)
    return (a * b).sum(dim=tuple(range(-len(shape), 0)), keepdim=True)


def _lean_gelu(x: Tensor, approximate: str = "none") -> Tensor:
    name = "gelu" if approximate == "none" else "gelu-tanh"
    return _Elementwise.apply(x, name)  # type: ignore[no-any-return]


def _lean_silu(x: Tensor, inplace: bool = False) -> Tensor:
    del inplace  # the input may be needed; the result is the same
    return _Elementwise.apply(x, "silu")  # type: ignore[no-any-return]


def _lean_layer_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    out: Tensor = _Normalise.apply(x, list(normalized_shape), eps)
    if weight is not None:
        return out * weight if bias is None else torch.addcmul(bias, out, weight)
    # Never the tensor kept for the product: the model may go on in place.
    return out.clone() if bias is None else out + bias


def _lean_batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if training or running_mean is None or running_var is None:
        return functional.batch_norm(
            x, running_mean, running_var, weight, bias, training, momentum, eps
        )
    scale = torch.rsqrt(running_var + eps)
    if weight is not None:
        scale = scale * weight
    shift = -running_mean * scale
    if bias is not None:
        shift = shift + bias
    rest = (1, -1, *(1,) * (x.dim() - 2))
    return torch.addcmul(shift.view(rest), x, scale.view(rest))


_REWRITTEN: dict[Any, Callable[..., Tensor]] = {
    functional.gelu: _lean_gelu,
    functional.silu: _lean_silu,
    functional.layer_norm: _lean_layer_norm,
    functional.batch_norm: _lean_batch_norm,
}


class lean_graphs(TorchFunctionMode):
    """Within it, forward passes build graphs whose double backward is cheap."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        rewritten = _REWRITTEN.get(func)
        if rewritten is not None and torch.is_grad_enabled():
            return rewritten(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))
