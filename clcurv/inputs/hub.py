"""Checkpoints named ``hf:ORG/NAME``: from the local cache, and over the network only when told."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from clcurv.errors import InputError, NotWeightsError, UsageError
from clcurv.inputs.torchfile import too_large

_NAME = re.compile(r"(?:hf|hf-hub):([\w.-]+(?:/[\w.-]+)?)(?:@([\w./-]+))?")
# What a model folder needs; never code.
_SMALL = (".json", ".txt", ".model", ".jinja")
_WEIGHTS = (".safetensors", ".bin")
_ASIDE = ("training_args", "optimizer", "scheduler", "onnx/", "openvino/", "coreml/", "original/")


def is_hub_name(checkpoint: object) -> bool:
    """Whether a checkpoint is named on the Hugging Face Hub, ``hf:ORG/NAME[@REVISION]``."""
    return isinstance(checkpoint, str | Path) and bool(_NAME.fullmatch(str(checkpoint)))


def local_copy(checkpoint: str, *, online: bool, max_bytes: int) -> Path:
    """The folder of a model of the Hub.

    Args:
        checkpoint: ``hf:ORG/NAME`` or ``hf:ORG/NAME@REVISION``.
        online: Whether it may be downloaded; otherwise only the local cache is looked at.
        max_bytes: Refuse to download more bytes of weights.

    Raises:
        UsageError: No such form of name.
        InputError: Not in the cache, or the Hub does not give it.
        NotWeightsError: The repository holds no weights.
        ResourceError: Larger than `max_bytes`.
    """
    named = _NAME.fullmatch(checkpoint)
    if named is None:
        raise UsageError(f"{checkpoint} has not the form hf:ORG/NAME", hint="hf:org/name@revision")
    repository, revision = named.groups()
    return (_downloaded if online else _cached)(repository, revision, max_bytes)


def _cached(repository: str, revision: str | None, max_bytes: int) -> Path:
    import huggingface_hub

    try:
        return Path(
            huggingface_hub.snapshot_download(repository, revision=revision, local_files_only=True)
        )
    except Exception as error:
        # Of its own classes, of OSError and of ValueError.
        raise InputError(
            f"hf:{repository} is not in the local cache, and nothing is downloaded unless asked",
            hint="--online downloads it",
        ) from error


def _downloaded(repository: str, revision: str | None, max_bytes: int) -> Path:
    import huggingface_hub

    try:
        about = huggingface_hub.HfApi().model_info(
            repository, revision=revision, files_metadata=True
        )
        files = _wanted(about)
        total = sum(files.values())
        if total <= max_bytes and any(name.endswith(_WEIGHTS) for name in files):
            return Path(
                huggingface_hub.snapshot_download(
                    repository, revision=about.sha, allow_patterns=sorted(files)
                )
            )
    except Exception as error:
        # Of its own classes, of its HTTP library, of OSError and of ValueError.
        first = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise InputError(
            f"hf:{repository} cannot be downloaded ({first})",
            hint="check the name and the network; HF_TOKEN opens gated models",
        ) from error
    if total > max_bytes:
        raise too_large(Path(f"hf:{repository}"), total, max_bytes)
    raise NotWeightsError(f"hf:{repository} holds no safetensors or torch weights")


def _wanted(about: Any) -> dict[str, int]:
    """Names and sizes of the files to fetch: safetensors where there are any, else torch's."""
    sizes = {file.rfilename: int(file.size or 0) for file in about.siblings or ()}
    sizes = {name: size for name, size in sizes.items() if not name.startswith(_ASIDE)}
    weights = {name: size for name, size in sizes.items() if name.endswith(_WEIGHTS)}
    safe = {name: size for name, size in weights.items() if name.endswith(".safetensors")}
    small = {name: size for name, size in sizes.items() if name.endswith(_SMALL)}
    return small | (safe or weights)
