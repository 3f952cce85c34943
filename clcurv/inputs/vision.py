"""Build timm and torchvision models so that a checkpoint's shapes fit them."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import timm
import timm.data
import torch
import torchvision
from torch import Tensor, nn

from clcurv.errors import ArchitectureError, MismatchError
from clcurv.inputs.checkpoint import Weights
from clcurv.inputs.fingerprints import is_positional
from clcurv.inputs.heads import find_head
from clcurv.inputs.matching import arrange

_SIZES = (32, 64, 96, 112, 128, 160, 192, 224, 240, 256, 288, 320, 336, 384, 448, 512, 518)
_BUILD_ERRORS = (TypeError, ValueError, RuntimeError, AssertionError, KeyError, AttributeError)


@dataclass(frozen=True)
class Built:
    """A model with random weights, shaped for the checkpoint.

    Attributes:
        model: Not yet filled.
        tensors: The checkpoint's tensors, named as the model names them.
        num_classes: Width of the head, None without one.
        preprocess: timm's data config, resolved.
        id2label: Class id -> text where the library knows it.
        notes: What was adapted.
    """

    model: nn.Module
    tensors: dict[str, Tensor]
    num_classes: int | None
    preprocess: dict[str, Any] = field(default_factory=dict)
    id2label: dict[int, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _timm(name: str, kwargs: Mapping[str, Any], device: str) -> nn.Module:
    with _quiet(), torch.device(device):
        model: nn.Module = timm.create_model(name, pretrained=False, **kwargs)
    return model


def build_timm(
    name: str,
    weights: Weights,
    *,
    num_classes: int | None = None,
    arguments: Mapping[str, Any] | None = None,
    asked: Mapping[str, Any] | None = None,
    data_config: Mapping[str, Any] | None = None,
    by_order: bool = False,
) -> Built:
    """A timm model with the head, channels, patch and image size of the checkpoint.

    Args:
        name: As in ``timm.list_models()``, with or without a tag.
        weights: The checkpoint.
        num_classes: What the user says the head has.
        arguments: Further arguments of ``timm.create_model`` (from the checkpoint).
        asked: What the user says besides; never left out, it wins over `arguments`.
        data_config: What the checkpoint says of its preprocessing, in timm's words.
        by_order: Name the tensors by their order.

    Raises:
        ArchitectureError: timm cannot build it.
        MismatchError: The head has another number of classes than asked for.
    """
    wanted = dict(asked or {})
    kwargs = {**(arguments or {}), **wanted}
    notes: list[str] = []
    try:
        probe = _timm(name, kwargs, "meta")
    except _BUILD_ERRORS as error:
        if wanted:
            try:
                _timm(name, wanted, "meta")
            except _BUILD_ERRORS as refused:
                raise ArchitectureError(
                    f"timm cannot build {name} with {', '.join(wanted)} ({refused})",
                    hint="in brackets stand arguments of timm.create_model, e.g. (num_heads=12)",
                ) from refused
        if not kwargs:
            raise ArchitectureError(
                f"timm cannot build {name} ({error})", hint="name another model with --arch"
            ) from error
        # They may belong to another model than the one named; whether it fits, shapes tell.
        try:
            probe = _timm(name, wanted, "meta")
        except _BUILD_ERRORS:
            raise ArchitectureError(
                f"timm cannot build {name} with the checkpoint's arguments ({error})",
                hint="name another model with --arch",
            ) from error
        left = ", ".join(key for key in kwargs if key not in wanted)
        notes.append(f"the checkpoint's arguments ({left}) do not suit {name}")
        kwargs = wanted
    tensors = arrange(weights, probe.state_dict(), by_order=by_order)
    config = getattr(probe, "pretrained_cfg", None) or {}
    kwargs["num_classes"] = _head_width(probe, config, tensors, num_classes)
    kwargs |= _fitted_input(name, kwargs, probe, config, tensors, notes)
    model = _timm(name, kwargs, "cpu")
    width = kwargs["num_classes"] or None
    return Built(
        model=model,
        tensors=_converted(model, tensors, notes),
        num_classes=width,
        preprocess=_data_config(model, kwargs, data_config or {}, notes),
        notes=tuple(notes),
    )


def _converted(model: nn.Module, tensors: dict[str, Tensor], notes: list[str]) -> dict[str, Tensor]:
    """Weights under the names of a model's first publication, renamed by timm's own converter."""
    if len(model.state_dict().keys() & tensors.keys()) * 2 >= len(tensors):
        return tensors
    convert = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    if convert is None:
        return tensors
    try:
        renamed = dict(convert(dict(tensors), model))
    except _BUILD_ERRORS:
        return tensors
    if len(model.state_dict().keys() & renamed.keys()) * 2 < len(renamed):
        return tensors
    notes.append("tensor names were translated by timm's converter for this model")
    return renamed


def _head_width(
    probe: nn.Module,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    asked: int | None,
) -> int:
    """Classes in the checkpoint's head; 0 for a backbone.

    Raises:
        MismatchError: `asked` is something else.
    """
    classifier = config.get("classifier") or ()
    modules = [classifier] if isinstance(classifier, str) else list(classifier)
    names = list(find_head(probe)[0])
    names += [f"{module}.{kind}" for module in modules for kind in ("weight", "bias")]
    width = next((int(tensors[n].shape[0]) for n in names if n in tensors and tensors[n].ndim), 0)
    check_width(width, asked)
    return width


def check_width(width: int, asked: int | None) -> None:
    """Refuse a head that is not as wide as the user says.

    Raises:
        MismatchError: Naming both numbers.
    """
    if asked is not None and asked != width:
        has = f"a head of {width} classes" if width else "no head"
        raise MismatchError(
            f"the checkpoint has {has}, {asked} classes were asked for",
            hint="leave --num-classes out" if width else "try --head linear-probe",
        )


def _fitted_input(
    name: str,
    kwargs: Mapping[str, Any],
    probe: nn.Module,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    notes: list[str],
) -> dict[str, Any]:
    """in_chans, patch_size, img_size, global_pool as the checkpoint's shapes tell."""
    own = probe.state_dict()
    found: dict[str, Any] = {}
    first = config.get("first_conv") or ()
    for module in [first] if isinstance(first, str) else first:
        weight = f"{module}.weight"
        if weight not in tensors or weight not in own or own[weight].ndim < 2:
            continue
        theirs, ours = tensors[weight].shape, own[weight].shape
        if len(theirs) == len(ours) and theirs[1] != ours[1]:
            found["in_chans"] = int(theirs[1] * 3 // ours[1])
        if module == "patch_embed.proj" and len(theirs) == 4 and theirs[2:] != ours[2:]:
            found["patch_size"] = int(theirs[2])
    found = {key: value for key, value in found.items() if key not in kwargs}
    # A ViT that averages its tokens has its last norm after that, under another name.
    after, ours = (any(n.startswith("fc_norm.") for n in names) for names in (tensors, own))
    if after and not ours:
        found["global_pool"] = "avg"
    elif ours and not after and "norm.weight" in tensors and "norm.weight" not in own:
        found["global_pool"] = "token"
    if found:
        notes.extend(f"{key} {value} read from the tensor shapes" for key, value in found.items())
    sizes = _image_size(name, {**kwargs, **found}, tensors)
    for key, value in sizes.items():
        notes.append(f"{key} {value} read from the position tables")
    return found | sizes


def _image_size(
    name: str, kwargs: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> dict[str, int]:
    """The arguments at which the position tables have the checkpoint's shapes."""

    def misfits(arguments: Mapping[str, Any]) -> bool:
        try:
            model = _timm(name, arguments, "meta")
        except _BUILD_ERRORS:
            return True
        return any(
            n in tensors and tensors[n].shape != t.shape and is_positional(n)
            for n, t in model.state_dict().items()
        )

    if "img_size" in kwargs or not misfits(kwargs):
        return {}
    tries = (*_guesses(name, kwargs, tensors), *({"img_size": size} for size in _SIZES))
    return next((sizes for sizes in tries if not misfits({**kwargs, **sizes})), {})


def _guesses(
    name: str, kwargs: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> list[dict[str, int]]:
    """What the size of a position table means in plain and windowed vision transformers."""
    model = _timm(name, kwargs, "meta")
    patch = getattr(getattr(model, "patch_embed", None), "patch_size", None)
    guesses: list[dict[str, int]] = []
    table = tensors.get("pos_embed")
    if table is not None and table.ndim == 3 and patch:
        for prefix in (getattr(model, "num_prefix_tokens", 1), 0):
            side = math.isqrt(max(table.shape[1] - prefix, 0))
            if side * side == table.shape[1] - prefix:
                guesses.append({"img_size": side * int(patch[0])})
    relative = next((t for n, t in tensors.items() if n.endswith("position_bias_table")), None)
    if relative is not None and patch:
        # (2 w - 1)^2 rows for a window of w; BEiT has one window of the whole image, and
        # three rows more.
        window = (math.isqrt(relative.shape[0]) + 1) // 2
        guesses.append({"img_size": window * int(patch[0])})
        guesses.append({"window_size": window, "img_size": window * int(patch[0]) * 8})
    return guesses


def _data_config(
    model: nn.Module,
    kwargs: Mapping[str, Any],
    said: Mapping[str, Any],
    notes: list[str],
) -> dict[str, Any]:
    """timm's data config of the model, overruled by what the checkpoint says."""
    args = {
        key: value
        for key in ("img_size", "input_size", "mean", "std", "interpolation", "crop_pct")
        if (value := said.get(key)) is not None
    }
    try:
        config = dict(timm.data.resolve_data_config(args, model=model))
    except (AssertionError, TypeError, ValueError):
        config = dict(timm.data.resolve_data_config({}, model=model))
        notes.append(
            "the preprocessing named in the checkpoint is unusable; the model's own is used"
        )
    channels, height, width = config["input_size"]
    channels = kwargs.get("in_chans") or channels
    if "img_size" in kwargs and "input_size" not in args:
        size = kwargs["img_size"]
        height, width = (size, size) if isinstance(size, int) else tuple(size)
    config["input_size"] = (int(channels), int(height), int(width))
    for key in ("mean", "std"):
        values = [float(value) for value in config[key]]
        if len(values) != channels:
            values = [sum(values) / len(values)] * int(channels)
        config[key] = tuple(values)
    return config


def build_torchvision(
    name: str, weights: Weights, *, num_classes: int | None = None, by_order: bool = False
) -> Built:
    """A torchvision classifier with the head of the checkpoint.

    Raises:
        ArchitectureError: torchvision cannot build it.
        MismatchError: The head has another number of classes than asked for.
    """
    get = torchvision.models.get_model
    kwargs: dict[str, Any] = {"weights": None}
    if name in ("googlenet", "inception_v3"):
        kwargs["init_weights"] = False
        kwargs["aux_logits"] = any(n.startswith(("aux", "AuxLogits")) for n in weights.tensors)
    notes: list[str] = []
    with _quiet():
        try:
            model = get(name, **kwargs)
        except _BUILD_ERRORS as error:
            raise ArchitectureError(f"torchvision cannot build {name} ({error})") from error
        tensors = arrange(weights, model.state_dict(), by_order=by_order)
        head = [n for n in find_head(model)[0] if n in tensors]
        width = int(tensors[head[0]].shape[0]) if head else 0
        check_width(width, num_classes)
        table = tensors.get("encoder.pos_embedding")
        if name.startswith("vit_") and table is not None:
            patch = int(name.rsplit("_", 1)[-1])
            kwargs["image_size"] = math.isqrt(int(table.shape[1]) - 1) * patch
        model = get(name, **kwargs, **({"num_classes": width} if width else {}))
    if not width:
        _cut_head(model)
        notes.append("the checkpoint has no head; the model gives features")
    preprocess, labels = _torchvision_data(name, kwargs.get("image_size"))
    id2label = dict(enumerate(labels)) if len(labels) == width else {}
    return Built(model, tensors, width or None, preprocess, id2label, notes=tuple(notes))


def _cut_head(model: nn.Module) -> None:
    names, _ = find_head(model)
    path = names[0].rpartition(".")[0]
    parent, _, leaf = path.rpartition(".")
    setattr(model.get_submodule(parent) if parent else model, leaf, nn.Identity())


def _torchvision_data(name: str, size: int | None) -> tuple[dict[str, Any], list[str]]:
    """The default weights' own transforms, in timm's words."""
    default = torchvision.models.get_model_weights(name).DEFAULT
    transforms = default.transforms()
    crop, resize = int(transforms.crop_size[0]), int(transforms.resize_size[0])
    side = size or crop
    preprocess = {
        "input_size": (3, side, side),
        "mean": tuple(transforms.mean),
        "std": tuple(transforms.std),
        "interpolation": str(transforms.interpolation.value),
        "crop_pct": crop / resize,
        "crop_mode": "center",
    }
    return preprocess, list(default.meta.get("categories", ()))
