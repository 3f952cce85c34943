"""Several architectures fit the same tensors: compare what they compute, then decide."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
    best_name = ""
    best_kind: _Kind | None = None
    kinds: list[_Kind] = []
    error: MismatchError | None = None
    for name in ordered:
        try:
            loaded = assemble(name)
        except MismatchError as misfit:
            error = misfit
            continue
        if loaded.task == "backbone":
            labelled = None  # its features are no logits: there is no loss to compare
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
            best, best_kind, best_name = loaded, kind, name
    if best is None:
        raise error or ArchitectureError(f"{path}: no candidate can be built")
    others = tuple(name for name in ordered if name != best_name)
    if len(kinds) == 1:
        return replace(best, candidates=others)
    if labelled is None:
        listed = ", ".join(kind.name.removeprefix("timm:") for kind in kinds)
        first = shlex.quote(kinds[0].name.removeprefix("timm:"))
        raise ArchitectureError(
            f"{path}: these weights fit several models that differ in function or preprocessing: "
            f"{listed}",
            hint=f"choose with --arch {first} (or another)"
            + ("" if best.task == "backbone" else ", or give labelled data"),
            candidates=ordered,
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
    """Outputs on two fixed random inputs, small images where the model takes them."""
    if loaded.modality == "text":
        config = loaded.model.config
        words = int(config.get_text_config().vocab_size)  # type: ignore[union-attr, operator]
        tokens = torch.arange(16).reshape(2, 8) % words
        with torch.no_grad():
            told = loaded.model(input_ids=tokens, attention_mask=torch.ones_like(tokens))
        return _tensor(told)
    channels, height, width = loaded.preprocess.get("input_size", (3, 224, 224))
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(2, channels, height, width, generator=generator)
    with torch.no_grad():
        try:
            return _tensor(loaded.model(images[:, :, :96, :96]))
        except (RuntimeError, AssertionError, ValueError):
            return _tensor(loaded.model(images))


def _tensor(output: Any) -> Tensor:
    result: Tensor = output if isinstance(output, Tensor) else output.logits
    return result


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
