"""Which parameters of a model are its classifier."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

# Attribute names of classifiers, in torchvision and in people's own code.
_NAMES = ("head", "heads", "fc", "classifier", "classif", "last_linear", "linear_head", "output")


def find_head(model: nn.Module) -> tuple[tuple[str, ...], int | None]:
    """Parameter names of the head and its width.

    timm says so itself (`get_classifier`); in a Hugging Face model it is everything
    outside ``base_model``; elsewhere the last linear layer under a usual name
    (``fc``, ``classifier``, ``heads``, ``head``), else the last one registered.

    Tied parameters have one name in `named_parameters`, their first; a language-model
    head tied to the embedding is therefore no part of the result.

    Returns:
        Names as in ``model.named_parameters()`` and the number of outputs; ``((), None)``
        for a model without a head.
    """
    if hasattr(model, "get_classifier"):
        return _timm_head(model)
    if hasattr(model, "base_model_prefix") and hasattr(model, "config"):
        return _huggingface_head(model)
    linear = last_linear(model)
    if linear is None:
        return (), None
    module = model.get_submodule(linear)
    return params_under(model, [module]), output_width(module)


def params_under(model: nn.Module, modules: Iterable[nn.Module]) -> tuple[str, ...]:
    """Names, as in `named_parameters`, of the parameters inside `modules`."""
    inside = {id(param) for module in modules for param in module.parameters()}
    return tuple(name for name, param in model.named_parameters() if id(param) in inside)


def output_width(module: nn.Module) -> int | None:
    """Outputs of a linear or 1x1 convolution layer."""
    if isinstance(module, nn.Linear):
        return module.out_features
    if isinstance(module, nn.Conv1d | nn.Conv2d):
        return module.out_channels
    return None


def last_linear(model: nn.Module) -> str | None:
    """Name of the layer that gives the output: the last linear one, by name if possible."""
    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d)
    named = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    under = [
        name
        for name, module in model.named_modules()
        if isinstance(module, kinds) and name.split(".", 1)[0] in _NAMES
    ]
    # GoogLeNet and Inception have auxiliary classifiers; these sit under other names.
    found = under or named
    return found[-1] if found else None


def _timm_head(model: nn.Module) -> tuple[tuple[str, ...], int | None]:
    classifier = model.get_classifier()  # type: ignore[operator]
    modules = classifier if isinstance(classifier, tuple | list) else [classifier]
    modules = [m for m in modules if isinstance(m, nn.Module)]
    names = params_under(model, modules)
    width = getattr(model, "num_classes", None)
    return (names, int(width)) if names and width else ((), None)


def _huggingface_head(model: nn.Module) -> tuple[tuple[str, ...], int | None]:
    base = getattr(model, str(model.base_model_prefix), None)
    if not isinstance(base, nn.Module):
        return (), None
    inside = {id(param) for param in base.parameters()}
    names = tuple(name for name, param in model.named_parameters() if id(param) not in inside)
    return names, None
