"""``package.module:factory`` or ``file.py:factory`` -> the user's own model."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from clcurv.errors import ArchitectureError, MismatchError
from clcurv.inputs.checkpoint import Weights
from clcurv.inputs.heads import find_head
from clcurv.inputs.matching import arrange
from clcurv.inputs.user_code import import_code
from clcurv.inputs.vision import Built, check_width

_WIDTH_NAMES = ("num_classes", "num_labels", "n_classes", "num_outputs")


def build_factory(
    arch: str,
    weights: Weights,
    *,
    num_classes: int | None = None,
    trust_code: bool = False,
    by_order: bool = False,
) -> Built:
    """Call the user's factory; give it the number of classes if it takes one.

    Args:
        arch: ``package.module:factory`` or ``path/to/file.py:factory``.
        weights: The checkpoint, whose head tells the number of classes.
        num_classes: What the user says the head has.
        trust_code: Allow code outside installed packages.
        by_order: Name the tensors by their order.

    Raises:
        UnsafeFileError: Code outside installed packages without `trust_code`.
        ArchitectureError: It cannot be imported or called, or returns no module.
        MismatchError: The head has another number of classes than asked for.
    """
    factory = import_code(arch, trust_code=trust_code)
    takes = _width_argument(factory)
    model = _call(arch, factory, {takes: num_classes} if takes and num_classes else {})
    tensors = arrange(weights, model.state_dict(), by_order=by_order)
    head, width = find_head(model)
    in_file = next((int(tensors[n].shape[0]) for n in head if n in tensors), None)
    if in_file is not None:
        check_width(in_file, num_classes)
        if takes and in_file != width:
            model = _call(arch, factory, {takes: in_file})
            width = find_head(model)[1]
    notes = (f"model built by {arch}",) if takes is None else (f"model built by {arch}({takes})",)
    return Built(model, tensors, width, notes=notes)


def _width_argument(factory: Callable[..., Any]) -> str | None:
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return None
    return next((name for name in _WIDTH_NAMES if name in parameters), None)


def _call(arch: str, factory: Callable[..., Any], kwargs: dict[str, Any]) -> nn.Module:
    try:
        model = factory(**kwargs)
    except MismatchError:
        raise
    except Exception as error:
        raise ArchitectureError(f"{arch} failed ({type(error).__name__}: {error})") from error
    if not isinstance(model, nn.Module):
        raise ArchitectureError(
            f"{arch} returned a {type(model).__name__}, not a torch.nn.Module",
            hint="name a function without required arguments that returns the model",
        )
    return model
