"""What every document is built from: the tool, the model, clean texts."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib import metadata
from typing import TYPE_CHECKING

from clcurv.report.document import ModelInfo, ToolInfo, finite
from clcurv.report.text import count, percent, printable

if TYPE_CHECKING:
    from clcurv.inputs.architecture import LoadedModel
    from clcurv.inputs.checkpoint import Weights

Setting = str | int | float | bool | None

_PACKAGES = ("torch", "timm", "transformers", "numpy", "scipy")


def tool_info() -> ToolInfo:
    return ToolInfo(version=_version("clcurv") or "unknown")


def timestamp(moment: datetime | None = None) -> str:
    """ISO 8601 in UTC, to the second; default: now."""
    return (moment or datetime.now(UTC)).astimezone(UTC).isoformat(timespec="seconds")


def versions() -> dict[str, str]:
    """Of Python and of the packages that make the numbers."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    found |= {name: version for name in _PACKAGES if (version := _version(name))}
    return found


def clean_settings(settings: Mapping[str, Setting]) -> dict[str, Setting]:
    """Without non-finite numbers and lone surrogates."""
    return {
        k: finite(v) if isinstance(v, float) else clean(v) if isinstance(v, str) else v
        for k, v in settings.items()
    }


def model_info(
    model: LoadedModel | ModelInfo, weights: Weights | None, path: str | None
) -> ModelInfo:
    """What the checkpoint turned out to be; a ready `ModelInfo` is passed through."""
    if isinstance(model, ModelInfo):
        return model
    notes = [*(weights.notes if weights else ()), *model.notes]
    return ModelInfo(
        path=optional(path or (str(weights.path) if weights else None)),
        arch=clean(model.arch),
        arch_source=model.arch_source,
        format=weights.format if weights else None,
        key=optional(weights.key) if weights else None,
        prefix=clean(weights.prefix) if weights else "",
        digest=weights.digest if weights else "",
        num_params=sum(p.numel() for p in model.model.parameters()),
        num_classes=model.num_classes,
        task=model.task,
        missing=clean_all(model.missing),
        unexpected=clean_all(model.unexpected),
        matched_fraction=model.matched_fraction,
        candidates=clean_all(model.candidates),
        probe_accuracy=model.probe_accuracy,
        notes=unique(notes),
    )


def near_chance_text(accuracy: float | None, chance: float | None) -> str:
    """``accuracy 10.2 % is near chance (10.0 %)``."""
    return f"accuracy {percent(accuracy or 0)} is near chance ({percent(chance or 0)})"


def model_text(model: ModelInfo) -> str:
    """``timm:resnet18 (from config), 132k parameters``; of a probe its accuracy left out."""
    text = (
        f"{printable(model.arch)} (from {model.arch_source}), {count(model.num_params)} parameters"
    )
    if model.probe_accuracy is not None:
        share = percent(model.probe_accuracy)
        text += f", linear probe ({share} right when fitted without the sample)"
    return text


def near_chance(accuracy: float | None, chance: float | None) -> bool:
    """Whether an accuracy says that the network may not be the right one for the data."""
    if accuracy is None or chance is None:
        return False
    return accuracy <= chance + 0.1 * (1 - chance)


def clean(text: str) -> str:
    """Lone surrogates, which names in hostile files may hold, have no UTF-8: spell them out."""
    return text.encode("utf-8", "backslashreplace").decode()


def optional(text: str | None) -> str | None:
    return None if text is None else clean(text)


def clean_all(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(clean(x) for x in texts)


def unique(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(clean_all(texts)))


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
