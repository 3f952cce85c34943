"""Weights -> an eval-mode `torch.nn.Module` that they provably fit."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clcurv.errors import ArchitectureError, MismatchError, UsageError
from clcurv.inputs import candidates, fingerprints
from clcurv.inputs.checkpoint import Weights, load_weights
from clcurv.inputs.heads import find_head
from clcurv.inputs.live import wrap_module
from clcurv.inputs.loaded import LoadedModel, Modality, Task
from clcurv.inputs.matching import fill, match_names

if TYPE_CHECKING:
    from clcurv.inputs.vision import Built

__all__ = ["LoadedModel", "Modality", "Task", "load_model", "wrap_module"]

# Where training scripts write the model's name.
_NAME_KEYS = ("arch", "architecture", "model", "model_name", "model_arch", "backbone", "net")
_ARGUMENT_GROUPS = ("args", "hyper_parameters", "config", "cfg", "hparams")


def load_model(
    source: str | Path | Weights,
    *,
    arch: str | None = None,
    num_classes: int | None = None,
    match_by_order: bool = False,
    trust_code: bool = False,
    key: str | None = None,
    labelled: Callable[[LoadedModel], float] | None = None,
) -> LoadedModel:
    """Find the architecture of a checkpoint, build it, and put the weights into it.

    The architecture is what `arch` says, else what the folder's config says, else the
    checkpoint's metadata, else what the names and shapes of the tensors tell.

    Args:
        source: Path of a checkpoint, or weights already read.
        arch: A timm name, ``torchvision:NAME``, ``package.module:factory`` or
            ``file.py:factory``.
        num_classes: Refuse a head of another width.
        match_by_order: Pair tensors by their order instead of their names (needs `arch`).
        trust_code: Allow a factory outside the installed packages.
        key: Which state dict inside the file.
        labelled: Mean loss of a loaded model on labelled data; decides where several
            architectures fit.

    Raises:
        InputError: The checkpoint is refused, see `load_weights`.
        ArchitectureError: No architecture, or several, fit.
        MismatchError: The weights do not fit the architecture.
        NumericalError: NaN or infinite weights.
        UsageError: `match_by_order` without `arch`, or on a file that keeps no order.
    """
    weights = source if isinstance(source, Weights) else load_weights(source, key=key)
    if match_by_order and arch is None:
        raise UsageError("--match-by-order needs --arch", hint="add --arch NAME")
    if match_by_order and weights.format != "torch":
        raise UsageError(
            f"{weights.path}: safetensors files do not keep the order of their tensors",
            hint="--match-by-order needs a torch file",
        )

    def assemble_as(name: str, origin: str) -> LoadedModel:
        return _assemble(
            weights,
            name,
            origin,
            num_classes=num_classes,
            match_by_order=match_by_order,
            trust_code=trust_code,
        )

    if arch is not None:
        return assemble_as(_canonical(arch), "option")
    if weights.format == "hf-folder":
        from clcurv.inputs.huggingface import load_huggingface

        loaded = load_huggingface(weights, num_classes=num_classes)
        return replace(loaded, notes=(*weights.notes, *loaded.notes))
    if weights.format == "timm-folder":
        return assemble_as(f"timm:{(weights.config or {})['architecture']}", "config")
    failed: dict[str, ArchitectureError | MismatchError] = {}
    for name in _named_in(weights.metadata):
        try:
            return assemble_as(name, "metadata")
        except (ArchitectureError, MismatchError) as error:
            failed[name] = error
    found = _by_fingerprint(weights)
    if not found:
        if failed:
            raise next(iter(failed.values()))
        first = ", ".join(list(weights.tensors)[:3])
        raise ArchitectureError(
            f"{weights.path}: no timm or torchvision model has exactly these "
            f"{len(weights.tensors)} tensors ({first}, ...)",
            hint="name the model with --arch NAME, or your own with --arch package.module:factory",
        )
    loaded = candidates.decide(
        found, lambda name: assemble_as(name, "fingerprint"), weights.path, labelled=labelled
    )
    ignored = (f"the metadata names {name}, which does not fit" for name in failed)
    return replace(loaded, notes=(*loaded.notes, *ignored))


def _by_fingerprint(weights: Weights) -> tuple[str, ...]:
    """Candidates by the names as stripped, then by the names in the file."""
    skip = set(weights.aside)
    for rename in (False, True):
        shapes = {
            weights.original_names.get(name, name) if rename else name: tuple(tensor.shape)
            for name, tensor in weights.tensors.items()
            if weights.original_names.get(name, name) not in skip
        }
        found = fingerprints.lookup(shapes)
        if found:
            return found
    return ()


def _canonical(arch: str) -> str:
    """``timm:NAME`` | ``torchvision:NAME`` | ``module:factory``.

    Raises:
        ArchitectureError: Unknown name; the hint gives the nearest ones.
    """
    import timm
    import torchvision

    library, colon, name = arch.partition(":")
    if colon and library not in ("timm", "torchvision"):
        from clcurv.inputs.factories import is_factory

        if library.lower().replace("_", "-") in ("hf-hub", "local-dir"):
            raise ArchitectureError(
                f"--arch {arch}: nothing is downloaded", hint="give the local folder as CHECKPOINT"
            )
        if is_factory(arch):
            return arch
        raise ArchitectureError(f"--arch {arch} has not the form module:factory")
    vision = torchvision.models.list_models(module=torchvision.models)
    if library == "torchvision" and colon:
        if name in vision:
            return arch
        raise ArchitectureError(
            f"torchvision has no classifier {name!r}", hint=_nearest(name, vision)
        )
    name = name if colon else arch
    if timm.is_model(name.split(".", 1)[0]):
        return f"timm:{name}"
    if name in vision:
        raise ArchitectureError(
            f"timm has no model {name!r}", hint=f"try --arch torchvision:{name}"
        )
    raise ArchitectureError(f"timm has no model {name!r}", hint=_nearest(name, timm.list_models()))


def _nearest(name: str, known: list[str]) -> str | None:
    close = difflib.get_close_matches(name, known, n=3)
    return f"did you mean: {', '.join(close)}?" if close else None


def _named_in(metadata: Mapping[str, Any]) -> list[str]:
    """Known architectures that the metadata names, timm first."""
    import timm
    import torchvision

    groups = [metadata, *(metadata.get(group) for group in _ARGUMENT_GROUPS)]
    vision = torchvision.models.list_models(module=torchvision.models)
    names: list[str] = []
    for group in groups:
        if not isinstance(group, Mapping):
            continue
        for key in _NAME_KEYS:
            value = group.get(key)
            if not isinstance(value, str):
                continue
            name = value.rsplit(":", 1)[-1].rsplit("/", 1)[-1]
            if timm.is_model(name.split(".", 1)[0]):
                names.append(f"timm:{name}")
            if name in vision:
                names.append(f"torchvision:{name}")
    return list(dict.fromkeys(names))


def _arguments(weights: Weights) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the checkpoint says to `timm.create_model`, and of its preprocessing."""
    model: dict[str, Any] = {}
    data: dict[str, Any] = {}
    groups = [weights.metadata, *(weights.metadata.get(g) for g in _ARGUMENT_GROUPS)]
    for group in groups:
        if not isinstance(group, Mapping):
            continue
        for key in ("model_kwargs", "model_args"):
            if isinstance(group.get(key), Mapping):
                model |= dict(group[key])
        for key in ("img_size", "input_size", "mean", "std", "interpolation", "crop_pct"):
            if group.get(key) is not None:
                data[key] = group[key]
    config = weights.config or {}
    if weights.format == "timm-folder":
        model |= dict(config.get("model_args") or {})
        cfg = config.get("pretrained_cfg")
        if isinstance(cfg, Mapping):
            data |= {k: v for k, v in cfg.items() if k in _DATA_KEYS and v is not None}
    refused = {"num_classes", "pretrained", "checkpoint_path", "cache_dir", "pretrained_cfg"}
    return {k: v for k, v in model.items() if k not in refused}, data


_DATA_KEYS = ("input_size", "mean", "std", "interpolation", "crop_pct", "crop_mode")


def _labels(weights: Weights) -> dict[int, str]:
    """Class names that the checkpoint carries."""
    metadata = weights.metadata
    cfg = (weights.config or {}).get("pretrained_cfg")
    listed = cfg.get("label_names") if isinstance(cfg, Mapping) else None
    listed = listed or (weights.config or {}).get("label_names")
    listed = listed or metadata.get("classes") or metadata.get("class_names")
    if isinstance(listed, list):
        return {index: str(name) for index, name in enumerate(listed)}
    ids = metadata.get("class_to_idx")
    if isinstance(ids, Mapping):
        return {index: str(name) for name, index in ids.items() if isinstance(index, int)}
    labels = metadata.get("id2label")
    if isinstance(labels, Mapping):
        return {int(index): str(name) for index, name in labels.items() if str(index).isdigit()}
    return {}


def _assemble(
    weights: Weights,
    arch: str,
    origin: str,
    *,
    num_classes: int | None,
    match_by_order: bool,
    trust_code: bool,
) -> LoadedModel:
    """Build one architecture and fill it."""
    built = _build(
        weights, arch, num_classes=num_classes, by_order=match_by_order, trust_code=trust_code
    )
    head, width = find_head(built.model)
    match = match_names(built.model, built.tensors, head, arch=arch)
    notes = [*weights.notes, *built.notes, *fill(built.model, built.tensors, match.names)]
    if match_by_order:
        notes.append(_BY_ORDER)
    if arch.startswith(("timm:", "torchvision:")):
        modality: Modality = "image"
        preprocess = built.preprocess
        width = built.num_classes
    else:
        live = wrap_module(built.model, arch=arch)
        modality, preprocess = live.modality, live.preprocess
    return LoadedModel(
        model=built.model,
        arch=arch,
        arch_source=origin,
        modality=modality,
        task="classification" if head and width else "backbone",
        num_classes=width,
        head_params=head,
        preprocess=preprocess,
        id2label=_labels(weights) or built.id2label,
        missing=match.missing,
        unexpected=match.unexpected,
        matched_fraction=match.fraction,
        notes=tuple(notes),
    )


_BY_ORDER = (
    "tensors were matched by order and shape, not by name: only a good accuracy on labelled "
    "data confirms that they are in the right places"
)


def _build(
    weights: Weights,
    arch: str,
    *,
    num_classes: int | None,
    by_order: bool,
    trust_code: bool,
) -> Built:
    from clcurv.inputs import vision

    library, _, name = arch.partition(":")
    if library == "torchvision":
        return vision.build_torchvision(name, weights, num_classes=num_classes, by_order=by_order)
    if library == "timm":
        arguments, data_config = _arguments(weights)
        return vision.build_timm(
            name,
            weights,
            num_classes=num_classes,
            arguments=arguments,
            data_config=data_config,
            by_order=by_order,
        )
    from clcurv.inputs.factories import build_factory

    return build_factory(
        arch, weights, num_classes=num_classes, trust_code=trust_code, by_order=by_order
    )
