"""Which parameters of a model are its classifier, and how to give it another one."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from clcurv.errors import ArchitectureError, MismatchError, UsageError
from clcurv.inputs.loaded import LoadedModel

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


def fresh_head(
    loaded: LoadedModel, *, num_classes: int | None = None, seed: int = 0
) -> LoadedModel:
    """A copy of the model whose head is drawn anew; the given one is left as it was.

    Output layers are made again with PyTorch's default initialisation, which is also what timm's
    ``reset_classifier`` leaves (a Hugging Face model's own ``_init_weights`` there); other layers
    of the head are reset. Names of the parameters stay. A backbone gets a linear head.

    Args:
        loaded: Any classifier, regression, or backbone with a known feature width.
        num_classes: Width of the new head; None keeps it.
        seed: Of the initialisation; the global generators are left alone.

    Raises:
        UsageError: A language model, whose output layer is tied to its words.
        ArchitectureError: No linear output layer is found.
    """
    if loaded.task in ("causal-lm", "masked-lm"):
        raise UsageError(
            f"{loaded.arch} is a language model: its output layer is no classifier",
            hint="leave --head fresh out",
        )
    width = loaded.num_classes if num_classes is None else num_classes
    if width is None or width < 1:
        raise UsageError(f"a new head cannot have {width} outputs")
    model = copy.deepcopy(loaded.model)
    note = f"fresh head: {width} outputs drawn with seed {seed}"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if loaded.task == "backbone":
            model, head = _headed(model, loaded.arch, width)
        else:
            head = _head_params(model, loaded)
            outputs = _outputs(model, loaded)
            for name in _head_modules(model, head):
                module = model.get_submodule(name)
                if name in outputs:
                    module = _like(module, width)
                    model.set_submodule(name, module)
                elif hasattr(module, "reset_parameters"):
                    module.reset_parameters()  # type: ignore[operator]
                _own_initialisation(model, module)
    return _renamed(loaded, model, width, head, note, task=loaded.task)


def narrow_head(loaded: LoadedModel, outputs: Sequence[int]) -> LoadedModel:
    """A copy of the model with some of its head's outputs, in this order.

    The logits are those of the given model at these outputs; the loss over them is that of a
    task-incremental learner, which knows the task.

    Args:
        loaded: A classifier.
        outputs: Class ids.

    Raises:
        MismatchError: An output that the head does not have.
        ArchitectureError: No linear output layer is found.
    """
    width = loaded.num_classes or 0
    if outside := [i for i in outputs if not 0 <= i < width]:
        raise MismatchError(
            f"output {outside[0]} lies outside the head with {width} classes",
            hint="--head fresh gives the task a new head",
        )
    model = copy.deepcopy(loaded.model)
    rows = torch.tensor(list(outputs))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        for name in _outputs(model, loaded):
            old = model.get_submodule(name)
            new = _like(old, len(outputs))
            for parameter, value in zip(new.parameters(), old.parameters(), strict=True):
                parameter.copy_(value[rows])
            model.set_submodule(name, new)
    shown = ", ".join(map(str, outputs[:5])) + (", ..." if len(outputs) > 5 else "")
    note = f"head cut to the {len(outputs)} outputs of the task ({shown}) of {width}"
    head = _head_params(model, loaded)
    return _renamed(loaded, model, len(outputs), head, note, task=loaded.task)


def grow_head(
    loaded: LoadedModel,
    num_classes: int,
    *,
    seed: int = 0,
    id2label: Mapping[int, str] | None = None,
) -> LoadedModel:
    """A copy of the model whose head has further outputs; the given one is left as it was.

    Old rows (weights and biases) are kept bit for bit, so the old logits stay. New ones are drawn
    as `fresh_head` draws: PyTorch's default initialisation of a layer of the new width, a Hugging
    Face model's own ``_init_weights`` there. A backbone gets a linear head, all of it new.

    Args:
        loaded: A classifier with a linear (or 1x1 convolution) output layer, or a backbone.
        num_classes: Width of the new head, at least the old one's.
        seed: Of the new rows; the global generators are left alone.
        id2label: Names of further classes, added to those the model has.

    Raises:
        UsageError: A language model, or fewer classes than there are.
        ArchitectureError: No linear output layer is found.
    """
    if loaded.task in ("causal-lm", "masked-lm", "regression"):
        raise UsageError(
            f"{loaded.arch} is no classifier (its task is {loaded.task}): it has no classes to add"
        )
    if loaded.task == "backbone":
        grown = fresh_head(loaded, num_classes=num_classes, seed=seed)
        return dataclasses.replace(grown, id2label=dict(id2label or {}))
    old_width = loaded.num_classes or 0
    if num_classes < old_width:
        raise UsageError(
            f"a head cannot grow from {old_width} to {num_classes} classes",
            hint="narrow_head and fresh_head make smaller ones",
        )
    model = copy.deepcopy(loaded.model)
    flags = {name: p.requires_grad for name, p in model.named_parameters()}
    gpus = sorted({p.device.index for p in model.parameters() if p.is_cuda})
    with torch.random.fork_rng(devices=gpus), torch.no_grad():
        torch.manual_seed(seed)
        for name in _outputs(model, loaded) if num_classes > old_width else ():
            old = model.get_submodule(name)
            new = _like(old, num_classes)
            _own_initialisation(model, new)
            for parameter, value in zip(new.parameters(), old.parameters(), strict=True):
                parameter[:old_width] = value
            model.set_submodule(name, new)
    added = num_classes - old_width
    note = f"head grown from {old_width} to {num_classes} outputs, {added} drawn with seed {seed}"
    head = loaded.head_params
    grown = _renamed(loaded, model, num_classes, head, note, task=loaded.task)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(flags[name])
    names = {**loaded.id2label, **dict(id2label or {})}
    notes = grown.notes if added else loaded.notes
    return dataclasses.replace(grown, id2label=names, notes=notes)


def _outputs(model: nn.Module, loaded: LoadedModel) -> list[str]:
    """Names of the layers whose outputs are the logits (a distilled ViT has two)."""
    names = _head_modules(model, _head_params(model, loaded))
    found = [n for n in names if output_width(model.get_submodule(n)) == loaded.num_classes]
    if not found or loaded.num_classes is None:
        raise ArchitectureError(
            f"{loaded.arch}: no linear layer with {loaded.num_classes} outputs in its head, so it "
            "cannot be exchanged",
            hint="--head keep, or give checkpoints with a head for the task",
        )
    # Several of one width in a row are an MLP's; only those that lead nowhere else count.
    return found if hasattr(model, "get_classifier") else found[-1:]


def _head_params(model: nn.Module, loaded: LoadedModel) -> tuple[str, ...]:
    return loaded.head_params or find_head(model)[0]


def _head_modules(model: nn.Module, params: Sequence[str]) -> list[str]:
    owners = {name.rpartition(".")[0] for name in params}
    return [name for name, _ in model.named_modules() if name in owners and name]


def _like(old: nn.Module, width: int) -> nn.Module:
    """A new output layer with the old one's inputs, bias, type and place."""
    bias = old.bias is not None
    weight = old.weight
    to: dict[str, Any] = {"device": weight.device, "dtype": weight.dtype}
    if isinstance(old, nn.Linear):
        return nn.Linear(old.in_features, width, bias=bias, **to).train(old.training)
    if isinstance(old, nn.Conv1d | nn.Conv2d) and old.groups == 1:
        return type(old)(
            old.in_channels,
            width,
            old.kernel_size,  # type: ignore[arg-type]
            stride=old.stride,  # type: ignore[arg-type]
            padding=old.padding,  # type: ignore[arg-type]
            bias=bias,
            **to,
        ).train(old.training)
    raise ArchitectureError(f"an output layer of type {type(old).__name__} cannot be exchanged")


def _own_initialisation(model: nn.Module, module: nn.Module) -> None:
    initialise = getattr(model, "_init_weights", None)
    if callable(initialise) and hasattr(model, "base_model_prefix"):
        initialise(module)


def _headed(model: nn.Module, arch: str, width: int) -> tuple[nn.Module, tuple[str, ...]]:
    """A backbone with a linear head on its pooled features."""
    from clcurv.inputs.probe import ProbedBackbone

    config = getattr(model, "config", None)
    features = getattr(model, "num_features", None) or getattr(config, "hidden_size", None)
    if not isinstance(features, int):
        raise ArchitectureError(
            f"{arch}: nothing states how many features the backbone has",
            hint="give a checkpoint with a head",
        )
    if hasattr(model, "reset_classifier"):
        model.reset_classifier(width)  # type: ignore[operator]
        head, found = find_head(model)
        if head and found == width:
            return model.eval(), head
    wrapped = ProbedBackbone(model, nn.Linear(features, width)).eval()
    return wrapped, ("head.weight", "head.bias")


def _renamed(
    loaded: LoadedModel,
    model: nn.Module,
    width: int,
    head: tuple[str, ...],
    note: str,
    *,
    task: Any,
) -> LoadedModel:
    """What is said about the model follows its new head."""
    config = getattr(model, "config", None)
    for owner, name in ((model, "num_classes"), (model, "num_labels"), (config, "num_labels")):
        if isinstance(getattr(owner, name, None), int):
            setattr(owner, name, width)
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    return dataclasses.replace(
        loaded,
        model=model,
        task="classification" if task == "backbone" else task,
        num_classes=width,
        head_params=head,
        id2label={},
        notes=(*loaded.notes, note),
    )
