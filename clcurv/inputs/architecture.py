"""Weights -> an eval-mode `torch.nn.Module` that they provably fit."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clcurv.errors import ArchitectureError, CorruptFileError, MismatchError, UsageError
from clcurv.inputs import candidates, fingerprints, hf_families, towers
from clcurv.inputs.archspec import split_arguments, with_arguments
from clcurv.inputs.checkpoint import Weights, load_weights
from clcurv.inputs.heads import find_head
from clcurv.inputs.live import wrap_module
from clcurv.inputs.loaded import LoadedModel, Modality, Task
from clcurv.inputs.matching import fill, match_names
from clcurv.inputs.metadata import arguments_in, labels_in, named_in
from clcurv.inputs.modelfolder import read_json
from clcurv.inputs.towers import Origin

if TYPE_CHECKING:
    from clcurv.inputs.hf_families import Recognised
    from clcurv.inputs.vision import Built

__all__ = ["LoadedModel", "Modality", "Task", "load_model", "wrap_module"]


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

    files = weights.format in ("torch", "safetensors")
    origin = towers.recognise(weights) if files else Origin(weights)

    def assemble_as(name: str, source: str) -> LoadedModel:
        if name.startswith("hf:"):
            return _as_transformers(weights, name, num_classes)
        return _assemble(
            weights,
            origin,
            name,
            source,
            num_classes=num_classes,
            match_by_order=match_by_order,
            trust_code=trust_code,
        )

    if arch is not None:
        return assemble_as(_canonical(arch), "option")
    if weights.format == "peft-folder":
        from clcurv.inputs.adapters import load_adapter

        return load_adapter(weights, num_classes=num_classes)
    if weights.format == "hf-folder":
        return _huggingface(weights, num_classes)
    if weights.format == "timm-folder":
        return assemble_as(f"timm:{(weights.config or {})['architecture']}", "config")
    return _unnamed(origin, assemble_as, num_classes=num_classes, labelled=labelled)


def _huggingface(weights: Weights, num_classes: int | None, **known: Any) -> LoadedModel:
    from clcurv.inputs.huggingface import load_huggingface

    loaded = load_huggingface(weights, num_classes=num_classes, **known)
    return replace(loaded, notes=(*weights.notes, *loaded.notes))


def _as_transformers(weights: Weights, arch: str, num_classes: int | None) -> LoadedModel:
    """``hf:CLASS`` or ``hf:CLASS(number=...)``, with a config read off the shapes."""
    name, arguments = split_arguments(arch.removeprefix("hf:"))
    families = hf_families.recognise(weights, cls=name, arguments=arguments)
    found = [known for family in families for known in family]
    if not found:
        raise MismatchError(
            f"{weights.path}: these are not the tensors of transformers' {name}",
            hint="leave --arch out to see what they are",
        )
    if len(found) > 1:
        raise ArchitectureError(
            f"{weights.path}: several numbers of attention heads are possible for {name}",
            hint="--arch " + " or ".join(repr(known.arch) for known in found[:3]),
        )
    return replace(_huggingface(weights, num_classes, known=found[0]), arch_source="option")


def _unnamed(
    origin: Origin,
    assemble_as: Callable[[str, str], LoadedModel],
    *,
    num_classes: int | None,
    labelled: Callable[[LoadedModel], float] | None,
) -> LoadedModel:
    """By metadata, else by names and shapes, else by the config beside the file."""
    weights = origin.weights
    failed: dict[str, ArchitectureError | MismatchError] = {}
    for name in named_in(weights.metadata):
        try:
            return assemble_as(name, "metadata")
        except (ArchitectureError, MismatchError) as error:
            failed[name] = error
    found = _by_fingerprint(origin)
    by_hub: dict[str, Recognised] = {}
    groups = [list(found)] if found else []
    if not found:
        beside = _config_beside(weights)
        if beside is not None:
            return _huggingface(beside, num_classes)
        families = hf_families.recognise(weights)
        by_hub = {known.arch: known for family in reversed(families) for known in family}
        groups = [[known.arch for known in family] for family in families]
    if not groups:
        if failed:
            raise next(iter(failed.values()))
        first = ", ".join(list(weights.tensors)[:3])
        raise ArchitectureError(
            f"{weights.path}: no timm, torchvision or transformers model has exactly these "
            f"{len(weights.tensors)} tensors ({first}, ...)",
            hint="name the model with --arch NAME, or your own with --arch package.module:factory",
        )

    def assemble(name: str) -> LoadedModel:
        if name in by_hub:
            return _huggingface(weights, num_classes, known=by_hub[name])
        return assemble_as(name, "fingerprint")

    if labelled is not None:
        groups = [[name for group in groups for name in group]]
    loaded = _first_fitting(
        groups, lambda names: candidates.decide(names, assemble, weights.path, labelled=labelled)
    )
    ignored = (f"the metadata names {name}, which does not fit" for name in failed)
    return replace(loaded, notes=(*loaded.notes, *ignored))


def _first_fitting(
    groups: list[list[str]], decide: Callable[[list[str]], LoadedModel]
) -> LoadedModel:
    """Families with the same names differ in constants of their configs: the usual one first."""
    for index, names in enumerate(groups):
        try:
            loaded = decide(names)
        except MismatchError:
            if index == len(groups) - 1:
                raise
            continue
        others = [name for group in groups[index + 1 :] for name in group]
        if not others:
            return loaded
        note = f"the names are also those of {', '.join(others)}"
        return replace(
            loaded,
            candidates=(*loaded.candidates, *others),
            notes=(*loaded.notes, note),
        )
    raise ArchitectureError("no architecture was tried")


def _config_beside(weights: Weights) -> Weights | None:
    """The folder of a weight file that lies, alone or sharded, in a Hugging Face folder."""
    path = weights.path.parent / "config.json"
    if weights.path.is_dir() or not path.is_file():
        return None
    try:
        config = read_json(path)
    except CorruptFileError:
        return None
    if "model_type" not in config or "quantization_config" in config:
        return None
    original = {weights.original_names.get(n, n): t for n, t in weights.tensors.items()}
    note = f"{path.name} beside {weights.path.name} was used"
    return replace(
        weights,
        tensors=original,
        original_names={},
        prefix="",
        path=weights.path.parent,
        format="hf-folder",
        config=config,
        notes=(*weights.notes, note),
    )


def _by_fingerprint(origin: Origin) -> tuple[str, ...]:
    """Candidates by the names as stripped, then by the names in the file."""
    weights = origin.weights
    if origin.method:
        found = origin.names or fingerprints.lookup(origin.shapes or _shapes(origin.weights))
        if found:
            return tuple(name for name in found if origin.suits(name)) or found
    for rename in (False, True):
        shapes = {
            weights.original_names.get(name, name) if rename else name: tuple(tensor.shape)
            for name, tensor in weights.tensors.items()
        }
        found = fingerprints.lookup(shapes)
        if found:
            return found
    return ()


def _shapes(weights: Weights) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in weights.tensors.items()}


def _canonical(arch: str) -> str:
    """``timm:NAME`` | ``torchvision:NAME`` | ``module:factory``.

    Raises:
        ArchitectureError: Unknown name; the hint gives the nearest ones.
    """
    import timm
    import torchvision

    library, colon, name = arch.partition(":")
    if library == "hf" and colon:
        return arch
    if colon and library not in ("timm", "torchvision"):
        from clcurv.inputs.user_code import is_code

        if library.lower().replace("_", "-") in ("hf-hub", "local-dir"):
            raise ArchitectureError(
                f"--arch {arch}: nothing is downloaded", hint="give the local folder as CHECKPOINT"
            )
        if is_code(arch):
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
    name, arguments = split_arguments(name)
    if timm.is_model(name.split(".", 1)[0]):
        return with_arguments(f"timm:{name}", arguments)
    if name in vision:
        raise ArchitectureError(
            f"timm has no model {name!r}", hint=f"try --arch torchvision:{name}"
        )
    raise ArchitectureError(f"timm has no model {name!r}", hint=_nearest(name, timm.list_models()))


def _nearest(name: str, known: list[str]) -> str | None:
    close = difflib.get_close_matches(name, known, n=3)
    return f"did you mean: {', '.join(close)}?" if close else None


def _assemble(
    weights: Weights,
    origin: Origin,
    arch: str,
    source: str,
    *,
    num_classes: int | None,
    match_by_order: bool,
    trust_code: bool,
) -> LoadedModel:
    """Build one architecture and fill it."""
    if arch.startswith(("timm:", "torchvision:")):
        weights = origin.weights
    built, arch = _build(
        weights,
        arch,
        origin,
        num_classes=num_classes,
        by_order=match_by_order,
        trust_code=trust_code,
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
        arch_source=source,
        modality=modality,
        task="classification" if head and width else "backbone",
        num_classes=width,
        head_params=head,
        preprocess=preprocess,
        id2label=labels_in(weights) or built.id2label,
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
    origin: Origin,
    *,
    num_classes: int | None,
    by_order: bool,
    trust_code: bool,
) -> tuple[Built, str]:
    """The model, and its name with the arguments that neither shapes nor file tell."""
    from clcurv.inputs import vision

    library, _, name = arch.partition(":")
    if library == "torchvision":
        built = vision.build_torchvision(name, weights, num_classes=num_classes, by_order=by_order)
        return built, arch
    if library == "timm":
        name, asked = split_arguments(name)
        said, data_config = arguments_in(weights)
        own = {**origin.arguments, **asked}
        built = vision.build_timm(
            name,
            weights,
            num_classes=num_classes,
            arguments={**said, **origin.arguments},
            asked=asked,
            data_config={**origin.data_config, **data_config},
            by_order=by_order,
        )
        return built, with_arguments(f"timm:{name}", own)
    from clcurv.inputs.factories import build_factory

    built = build_factory(
        arch, weights, num_classes=num_classes, trust_code=trust_code, by_order=by_order
    )
    return built, arch
