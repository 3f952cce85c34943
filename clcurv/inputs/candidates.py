"""Several architectures fit the same tensors: compare what they compute, then decide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
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
    best_loss = float("inf")
    kinds: list[tuple[str, Tensor, LoadedModel | None]] = []
    losses: dict[str, float] = {}
    error: MismatchError | None = None
    for name in ordered:
        try:
            loaded = assemble(name)
        except MismatchError as misfit:
            error = misfit
            continue
        output = _probe(loaded)
        twin = next((k for k, out, other in kinds if _same(loaded, output, other, out)), None)
        if twin is not None:
            continue
        # Only the preprocessing of losers is still needed.
        kinds.append((name, output, replace(loaded, model=torch.nn.Identity())))
        if labelled is None:
            best = best or loaded
        else:
            losses[name] = labelled(loaded)
            if best is None or losses[name] < best_loss - _SAME_LOSS:
                best, best_loss = loaded, losses[name]
    if best is None:
        raise error or ArchitectureError(f"{path}: no candidate can be built")
    others = tuple(name for name in ordered if name != best.arch)
    if len(kinds) == 1:
        return replace(best, candidates=others)
    if labelled is None:
        listed = ", ".join(name.removeprefix("timm:") for name, _, _ in kinds)
        raise ArchitectureError(
            f"{path}: these weights fit several models that differ in function or preprocessing: "
            f"{listed}",
            hint=f"choose with --arch {kinds[0][0].removeprefix('timm:')} (or another), or give "
            "labelled data",
        )
    told = ", ".join(f"{name} {loss:.4g}" for name, loss in sorted(losses.items(), key=_second))
    return replace(
        best,
        arch_source="loss",
        candidates=others,
        notes=(*best.notes, f"several models fit; the lowest mean loss decided: {told}"),
    )


def _second(item: tuple[str, float]) -> float:
    return item[1]


def _probe(loaded: LoadedModel) -> Tensor:
    """Outputs on two fixed random images."""
    size = loaded.preprocess.get("input_size", (3, 64, 64))
    images = torch.randn(2, *size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        output: Tensor = loaded.model(images)
    return output


def _same(
    loaded: LoadedModel, output: Tensor, other: LoadedModel | None, other_output: Tensor
) -> bool:
    if other is None or output.shape != other_output.shape:
        return False
    mine, theirs = loaded.preprocess, other.preprocess
    # torchvision's reference weights resize otherwise than timm's, for the same network.
    keys = ["input_size", "mean", "std"]
    if loaded.arch.split(":")[0] == other.arch.split(":")[0]:
        keys += ["crop_pct", "interpolation"]
    if any(mine.get(key) != theirs.get(key) for key in keys):
        return False
    scale = float(other_output.abs().max())
    return bool((output - other_output).abs().max() <= 1e-4 * max(scale, 1e-12))
