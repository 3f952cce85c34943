"""Layer inputs: which are features that the network makes, and how to collect them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from clcurv.errors import UsageError
from clcurv.inputs.dataset import Batch, Inputs
from clcurv.inputs.execution import forward_faults, plain_attention

# Steps of autograd's graph that leave "is this unit off?" as it was.
_TRANSPARENT = (
    "View", "ReshapeAlias", "UnsafeView", "Transpose", "Permute", "T", "Squeeze", "Unsqueeze",
    "Clone", "Alias", "Expand", "Slice", "Select", "AsStrided", "ToCopy", "ConstantPadNd",
    "MaxPool2DWithIndices", "MaxPool3DWithIndices", "AvgPool2D", "AvgPool3D",
    "AdaptiveAvgPool2D", "AdaptiveAvgPool3D", "AdaptiveMaxPool2D", "Mean", "NativeDropout",
)  # fmt: skip
# Outputs at or below zero mean "off"; leaky and saturating functions have no such state.
_CAN_BE_OFF = ("Relu", "Gelu", "Silu", "Hardswish", "Mish")


@dataclass(frozen=True)
class FeatureLayer:
    """A module whose input is a feature: it depends on the parameters below.

    Attributes:
        name: As in ``model.named_modules()``.
        can_be_off: The input comes from a nonlinearity that is zero for a part of its range.
    """

    name: str
    can_be_off: bool


def is_hookable(module: nn.Module) -> bool:
    """Linear layers, convolutions, and Hugging Face's transposed linear ``Conv1D``."""
    return isinstance(module, nn.Linear | _ConvNd) or type(module).__name__ == "Conv1D"


def feature_layers(
    model: nn.Module, batch: Batch, *, layers: Collection[str] | None = None
) -> tuple[FeatureLayer, ...]:
    """Hookable modules whose input depends on a parameter, in order of execution.

    The first layer (its input is the data) is no feature; of modules that share one input
    (query, key and value) the first stands for all.

    Args:
        model: As it will be measured, at least one parameter requiring grad below each layer.
        batch: At most two of its samples are run.
        layers: Only these modules, or those inside of them.

    Raises:
        UsageError: A name in `layers` has no such module in it, or none is left.
        MismatchError: The model cannot be run on the batch.
    """
    modules = dict(model.named_modules())
    wanted = {name for name, module in modules.items() if is_hookable(module)}
    if layers is not None:
        wanted = {name for layer in layers for name in _inside(layer, wanted)}
    seen: dict[str, tuple[FeatureLayer, object] | None] = {}
    alive = []  # a freed tensor's address is taken by the next

    def note(name: str, value: Tensor) -> None:
        if name in seen:
            return
        # Now: what comes later may change the tensor in place.
        place = (value.data_ptr(), value.shape, value.stride(), value._version)
        alive.append(value)
        seen[name] = (
            (FeatureLayer(name, _can_be_off(value)), place) if value.requires_grad else None
        )

    with (
        torch.enable_grad(),
        plain_attention(),
        hooked(model, wanted, note),
        forward_faults(),
    ):
        call(model, first_rows(batch.inputs, 2))
    found, taken = [], set()
    for layer, place in (entry for entry in seen.values() if entry):
        if place not in taken:
            taken.add(place)
            found.append(layer)
    if not found:
        raise UsageError(
            "no layer's input is a feature: all take the data itself",
            hint="effective rank needs a network with a hidden layer",
        )
    return tuple(found)


@contextmanager
def hooked(
    model: nn.Module, names: Collection[str], take: Callable[[str, Tensor], None]
) -> Iterator[None]:
    """Calls ``take(name, input)`` whenever one of the modules runs; the hooks go at the end."""
    modules = dict(model.named_modules())

    def hook(name: str) -> Callable[..., None]:
        def pre(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            value = args[0] if args else next(iter(kwargs.values()))
            take(name, value)

        return pre

    handles = [
        modules[name].register_forward_pre_hook(hook(name), with_kwargs=True) for name in names
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def as_rows(module: nn.Module, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """One row a sample, position or token, one column a feature.

    Args:
        module: Whose input this is.
        value: (n, channels, ...) for a convolution, (..., features) otherwise.
        mask: (n, t), 0 for padding: these rows are left out where the input has them.
    """
    if isinstance(module, _ConvNd):
        if value.ndim == len(module.kernel_size) + 1:  # a single sample without its axis
            value = value[None]
        return value.movedim(1, -1).reshape(-1, value.shape[1])
    rows = value.reshape(-1, value.shape[-1])
    if mask is not None and (
        value.shape[:-1] == mask.shape
        or (value.ndim == 2 and len(rows) == mask.numel() > len(mask))
    ):
        rows = rows[mask.reshape(-1).to(rows.device) != 0]
    return rows


def padding_mask(inputs: Inputs) -> Tensor | None:
    """The (n, t) attention mask among a model's inputs, if there is one."""
    mask = None if isinstance(inputs, Tensor) else inputs.get("attention_mask")
    return mask if mask is not None and mask.ndim == 2 else None


def call(model: nn.Module, inputs: Inputs) -> None:
    """Run the model for what its layers see; inputs take its device and float precision."""
    first = next(model.parameters())

    def moved(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return value.to(first.device, first.dtype if value.is_floating_point() else value.dtype)

    if isinstance(inputs, Tensor):
        model(moved(inputs))
    else:
        model(**{key: moved(value) for key, value in inputs.items()})


def first_rows(inputs: Inputs, n: int) -> Inputs:
    """The first samples of a batch's inputs."""
    if isinstance(inputs, Tensor):
        return inputs[:n]
    return {key: value[:n] for key, value in inputs.items()}


def _inside(layer: str, names: Collection[str]) -> list[str]:
    found = [name for name in names if name == layer or name.startswith(f"{layer}.")]
    if not found:
        raise UsageError(
            f"no linear or convolutional layer is called {layer!r}",
            hint="name modules as in model.named_modules(), for example "
            + ", ".join(sorted(names)[:3]),
        )
    return found


def _can_be_off(value: Tensor) -> bool:
    """Whether a nonlinearity with an off state made it, seen through pooling and reshaping."""
    node: Any = value.grad_fn
    while node is not None:
        kind = node.name().rstrip("0123456789").removesuffix("Backward")
        if kind in _CAN_BE_OFF:
            return True
        if kind == "Hardtanh":  # ReLU6 is one that begins at zero
            return float(getattr(node, "_saved_min_val", -1.0)) == 0.0
        if kind not in _TRANSPARENT or not node.next_functions:
            return False
        node = node.next_functions[0][0]
    return False
