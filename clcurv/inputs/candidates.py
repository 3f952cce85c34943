"""Several architectures fit the same tensors: compare what they compute, then decide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from clcurv.errors import ArchitectureError, MismatchError
from clcurv.inputs.loaded import LoadedModel

_SAME_LOSS = 1e-6


def decide(
    names: Sequence[str],
    assemble: Callable[[str], LoadedModel],
    path: Path,
    *,
    labelled: Callable[[LoadedModel], float] | None = None,
) -> LoadedModel:
    """Load every candidate; keep the one that is right, if that can be told.

    Candidates that give the same outputs and want the same preprocessing are one model
    under several names. Among different ones the mean loss on labelled data decides.

    Args:
        names: Architectures of equal signature, timm's before torchvision's.
        assemble: Loads one of them.
        path: For messages.
        labelled: Mean loss of a loaded model on labelled data.

    Raises:
        ArchitectureError: Several different models fit and there are no labels.
        MismatchError: None fits after all.
    """
    ordered = sorted(names, key=lambda name: (not name.startswith("timm:"), len(name), name))
    best: LoadedModel | None = None
    best_kind: _Kind | None = None
    kinds: list[_Kind] = []
    error: MismatchError | None = None
    for name in ordered:
        try:
            loaded = assemble(name)
        except MismatchError as misfit:
            error = misfit
            continue
        output = _probe(loaded)
        kind = next((k for k in kinds if _same(loaded, output, k)), None)
        if kind is None:
            loss = labelled(loaded) if labelled is not None else 0.0
            kind = _Kind(name, output, dict(loaded.preprocess), len(loaded.notes), loss)
            kinds.append(kind)
            better = best_kind is None or loss < best_kind.loss - _SAME_LOSS
        else:
            # The same function with less adapting is the better name for it.
            better = kind is best_kind and len(loaded.notes) < kind.notes
            kind.notes = min(kind.notes, len(loaded.notes))
        if better:
            best, best_kind = loaded, kind
    if best is None:
        raise error or ArchitectureError(f"{path}: no candidate can be built")
    others = tuple(name for name in ordered if name != best.arch)
    if len(kinds) == 1:
        return replace(best, candidates=others)
    if labelled is None:
        listed = ", ".join(kind.name.removeprefix("timm:") for kind in kinds)
        raise ArchitectureError(
            f"{path}: these weights fit several models that differ in function or preprocessing: "
            f"{listed}",
            hint=f"choose with --arch {kinds[0].name.removeprefix('timm:')} (or another), or give "
            "labelled data",
        )
    ranked = sorted(kinds, key=lambda kind: kind.loss)
    told = ", ".join(f"{kind.name} {kind.loss:.4g}" for kind in ranked)
    return replace(
        best,
        arch_source="loss",
        candidates=others,
        notes=(*best.notes, f"several models fit; the lowest mean loss decided: {told}"),
    )


@dataclass
class _Kind:
    """Candidates that are one model: the first one's name, what it computes, its loss."""

    name: str
    output: Tensor
    preprocess: dict[str, object]
    notes: int
    loss: float


def _probe(loaded: LoadedModel) -> Tensor:
    """Outputs on two fixed random images, small ones where the model takes them."""
    channels, height, width = loaded.preprocess.get("input_size", (3, 224, 224))
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(2, channels, height, width, generator=generator)
    with torch.no_grad():
        try:
            output: Tensor = loaded.model(images[:, :, :96, :96])
        except (RuntimeError, AssertionError, ValueError):
            output = loaded.model(images)
    return output


def _same(loaded: LoadedModel, output: Tensor, kind: _Kind) -> bool:
    if output.shape != kind.output.shape:
        return False
    # torchvision's reference weights resize otherwise than timm's, for the same network.
    keys = ["input_size", "mean", "std"]
    if loaded.arch.split(":")[0] == kind.name.split(":")[0]:
        keys += ["crop_pct", "interpolation"]
    if any(loaded.preprocess.get(key) != kind.preprocess.get(key) for key in keys):
        return False
    scale = float(kind.output.abs().max())
    return bool((output - kind.output).abs().max() <= 1e-4 * max(scale, 1e-12))
