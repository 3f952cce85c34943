"""Which architectures a checkpoint may belong to, and what speaks for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from clcurv.errors import ArchitectureError, ClcurvError, NumericalError
from clcurv.inputs.checkpoint import Weights
from clcurv.inputs.loaded import LoadedModel
from clcurv.inputs.metadata import named_in
from clcurv.report.document import finite
from clcurv.report.inspect_document import CandidateInfo
from clcurv.report.parts import clean
from clcurv.report.text import number

_SHAPES = "names and shapes of the tensors are this model's"
# Key of config.json -> library of the name in it.
_CONFIG_KEYS = {"architectures": "hf", "architecture": "timm"}


def candidates_of(
    weights: Weights,
    loaded: LoadedModel | None,
    losses: Mapping[str, float],
    *,
    asked: str | None,
    refusal: ClcurvError | None,
) -> tuple[CandidateInfo, ...]:
    """The chosen architecture first, then those that could be meant instead.

    Args:
        weights: The checkpoint.
        loaded: The model it became; None where it was refused.
        losses: Architecture -> mean loss on labelled data, where that had to decide.
        asked: ``--arch``.
        refusal: Why there is no model.
    """
    if loaded is not None:
        return tuple(_around(weights, loaded, losses))
    fitting = refusal.candidates if isinstance(refusal, ArchitectureError) else ()
    # NaN in the weights says nothing against the architecture.
    guilty = not isinstance(refusal, NumericalError)
    found = [
        CandidateInfo(
            name=clean(name),
            status="refused" if guilty else "fits",
            evidence=clean(evidence),
            reason=clean(str(refusal)) if guilty else None,
        )
        for name, evidence in _named(weights, asked)
        if name not in fitting
    ]
    found += [
        CandidateInfo(
            name=clean(name), status="fits", evidence=_SHAPES, mean_loss=finite(losses.get(name))
        )
        for name in fitting
    ]
    return tuple(found)


def _around(
    weights: Weights, loaded: LoadedModel, losses: Mapping[str, float]
) -> Iterator[CandidateInfo]:
    loss = losses.get(loaded.arch)
    yield CandidateInfo(
        name=clean(loaded.arch),
        status="chosen",
        evidence=clean(_evidence(weights, loaded, loss)),
        mean_loss=finite(loss),
    )
    for name in loaded.candidates:
        loss = losses.get(name)
        # Of several that compute the same, only one was tried on the data.
        told = "the same network under another name" if loss is None else "fits as well"
        yield CandidateInfo(
            name=clean(name),
            status="same" if loss is None else "fits",
            evidence=told,
            mean_loss=finite(loss),
        )


def _evidence(weights: Weights, loaded: LoadedModel, loss: float | None) -> str:
    if loaded.arch_source == "option":
        return "named by --arch"
    if loaded.arch_source == "loss":
        known = "" if loss is None else f" ({number(loss)})"
        return f"{_SHAPES}; of several that fit, the lowest loss on the data{known}"
    if loaded.arch_source == "pickle":
        return "the module itself was in the file"
    where = said_where(weights, loaded.arch)
    if loaded.arch_source in ("metadata", "config") and where:
        return f"{where} names it"
    if loaded.arch_source == "fingerprint":
        return _SHAPES
    return f"from the checkpoint's {loaded.arch_source}"


def said_where(weights: Weights, arch: str) -> str | None:
    """Where the checkpoint names an architecture: ``config.json (architectures)``."""
    bare = (arch.partition(":")[2] or arch).partition("(")[0]
    for key in _CONFIG_KEYS:
        said = (weights.config or {}).get(key)
        if bare in (said if isinstance(said, list) else [said]):
            return f"config.json ({key})"
    for key, value in _strings(weights.metadata, ""):
        if bare in (value, value.rsplit(":", 1)[-1].rsplit("/", 1)[-1]):
            return f"the file's metadata ({key} = {value})"
    return None


def _named(weights: Weights, asked: str | None) -> Iterator[tuple[str, str]]:
    """Architectures that somebody named, and who did."""
    if asked is not None:
        yield (asked if ":" in asked else f"timm:{asked}"), "named by --arch"
        return
    for key, library in _CONFIG_KEYS.items():
        said = (weights.config or {}).get(key)
        for name in said if isinstance(said, list) else [said]:
            if isinstance(name, str):
                yield f"{library}:{name}", f"config.json ({key}) names it"
    for name in named_in(weights.metadata):
        yield name, f"{said_where(weights, name) or 'the metadata'} names it"


def _strings(metadata: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    for key, value in metadata.items():
        name = f"{path}.{key}" if path else str(key)
        if isinstance(value, str) and 0 < len(value) < 200:
            yield name, value
        elif isinstance(value, Mapping) and path.count(".") < 2:
            yield from _strings(value, name)
