"""How a checkpoint's tensors pair up with a network's, backbone and head apart."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor, nn

from clcurv.errors import InputError
from clcurv.inputs.archspec import split_arguments
from clcurv.inputs.checkpoint import Weights
from clcurv.inputs.fingerprints import is_head, is_pretraining, is_volatile
from clcurv.inputs.heads import find_head
from clcurv.inputs.loaded import LoadedModel
from clcurv.inputs.metadata import arguments_in
from clcurv.pipeline.hollow import hollow
from clcurv.report.inspect_document import MatchInfo, PartInfo
from clcurv.report.parts import clean, clean_all

if TYPE_CHECKING:
    from clcurv.inputs.vision import Built


@dataclass
class _Tally:
    """What belongs to one part of the network."""

    matched: int = 0
    elements: int = 0
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)

    def info(self) -> PartInfo:
        return PartInfo(
            matched=self.matched,
            matched_elements=self.elements,
            missing=clean_all(self.missing),
            unexpected=clean_all(self.unexpected),
            different=clean_all(self.different),
        )


def match_of(loaded: LoadedModel) -> MatchInfo:
    """What loading reported, sorted by part; tensors under several names count once."""
    state = _own_tensors(loaded.model)
    missing, head = set(loaded.missing), set(loaded.head_params)
    parts = {"backbone": _Tally(), "head": _Tally()}
    for name, tensor in state.items():
        part = parts["head" if name in head else "backbone"]
        if name in missing:
            part.missing.append(name)
        else:
            part.matched += 1
            part.elements += tensor.numel()
    owners = None
    if hasattr(loaded.model, "base_model_prefix") and loaded.task == "backbone":
        owners = {name.split(".", 1)[0] for name in (*state, f"{loaded.model.base_model_prefix}.")}
    pretraining = _sort(loaded.unexpected, parts, owners)
    return MatchInfo(
        arch=clean(loaded.arch),
        backbone=parts["backbone"].info(),
        head=parts["head"].info(),
        pretraining=clean_all(pretraining),
    )


def compare(weights: Weights, arch: str) -> MatchInfo | None:
    """Pair up tensors with an architecture that they were refused for.

    Args:
        weights: The checkpoint.
        arch: ``timm:NAME`` or ``torchvision:NAME``.

    Returns:
        None for other architectures, and where the model cannot be built for these tensors.
    """
    try:
        with hollow():
            built = _build(weights, arch)
    except (InputError, RuntimeError, NotImplementedError):
        return None  # or it needs values to be built: no list then, the refusal has its own
    if built is None:
        return None
    head = set(find_head(built.model)[0])
    parts = {"backbone": _Tally(), "head": _Tally()}
    state = _own_tensors(built.model)
    for own, tensor in state.items():
        part = parts["head" if own in head else "backbone"]
        theirs = built.tensors.get(own)
        if theirs is None:
            part.missing.append(own)
        elif theirs.shape != tensor.shape:
            shapes = f"{list(theirs.shape)} in the file, {list(tensor.shape)} in the model"
            part.different.append(f"{own}: {shapes}")
        else:
            part.matched += 1
            part.elements += tensor.numel()
    strangers = [n for n in built.tensors if n not in state and not is_volatile(n)]
    pretraining = _sort(strangers, parts, None)
    return MatchInfo(
        arch=clean(arch),
        backbone=parts["backbone"].info(),
        head=parts["head"].info(),
        pretraining=clean_all(pretraining),
    )


def _build(weights: Weights, arch: str) -> Built | None:
    from clcurv.inputs import vision

    library, _, name = arch.partition(":")
    name, arguments = split_arguments(name)
    if library == "timm":
        said, _ = arguments_in(weights)
        return vision.build_timm(name, weights, arguments={**said, **arguments})
    return vision.build_torchvision(name, weights) if library == "torchvision" else None


def _own_tensors(model: nn.Module) -> Mapping[str, Tensor]:
    """The state dict without counters, and without further names of one parameter."""
    first = {name for name, _ in model.named_parameters()}
    every = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return {
        name: tensor
        for name, tensor in model.state_dict().items()
        if not is_volatile(name) and (name in first or name not in every)
    }


def _sort(
    names: Collection[str], parts: Mapping[str, _Tally], owners: Collection[str] | None
) -> list[str]:
    """Puts names without a place in the model into their part; returns pretraining's leftovers."""
    pretraining = []
    for name in names:
        first = name.split(".", 1)[0]
        if is_pretraining(name):
            pretraining.append(name)
        elif is_head(name) or (owners is not None and first not in owners):
            # A backbone loaded from a file with a head has no module of that name at all.
            parts["head"].unexpected.append(name)
        else:
            parts["backbone"].unexpected.append(name)
    return pretraining
