"""What lies on the disk: sizes, checksums, and the plain values beside the weights."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from clcurv.errors import InputError
from clcurv.inputs import modelfolder
from clcurv.inputs.filetype import identify, require_file, require_there
from clcurv.report.inspect_document import FileInfo, FilePart
from clcurv.report.parts import clean

Value = str | int | float | bool | None

_MAX_FILES = 64
_MAX_VALUES = 200
_MAX_TEXT = 200
_HEAD = 16

# What people ask of a checkpoint, in this order; the rest follows as the file has it.
_WORTH_KNOWING = (
    *("arch", "architecture", "architectures", "model_type", "model", "model_name"),
    *("num_classes", "num_labels", "problem_type", "epoch", "step", "global_step", "iteration"),
    *("metric", "best_metric", "best_acc", "best_acc1", "acc", "accuracy", "val_loss", "loss"),
    *("dataset", "data", "lr", "learning_rate", "batch_size", "seed", "version"),
    *("pytorch-lightning_version", "transformers_version", "hidden_size", "num_hidden_layers"),
)


def describe_file(path: Path, *, kind: str | None, checksums: bool) -> FileInfo:
    """Sizes and checksums of a file, or of the files in a folder.

    Args:
        path: What was given.
        kind: Format that it turned out to have; None where it has none that is read.
        checksums: Whether to read the files through for their sha256.

    Raises:
        InputError: It does not exist, or cannot be read.
        NotWeightsError: Neither a file nor a folder.
    """
    shown = clean(str(path))
    require_there(path)
    try:
        if path.is_dir():
            found = sorted(entry for entry in path.iterdir() if entry.is_file())
            sizes = [entry.stat().st_size for entry in found]
            # A folder of thousands is no model; reading all of it would tell nothing.
            listed = found if len(found) <= _MAX_FILES else []
            return FileInfo(
                path=shown,
                kind="folder",
                format=kind,
                size_bytes=sum(sizes),
                files=tuple(_part(entry, checksums=checksums) for entry in listed),
            )
        require_file(path)
        with path.open("rb") as file:
            head = file.read(_HEAD)
        return FileInfo(
            path=shown,
            kind="file",
            format=kind,
            size_bytes=path.stat().st_size,
            files=(_part(path, checksums=checksums),),
            begins=head.hex(" "),
        )
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror or error}",
            hint="check its permissions and the disk",
        ) from error


def format_of(path: Path) -> str | None:
    """The format by content, of what could not be read further; None where it has none."""
    try:
        return modelfolder.describe(path).format if path.is_dir() else identify(path)
    except InputError:
        return None


def _part(path: Path, *, checksums: bool) -> FilePart:
    sha256 = None
    if checksums:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return FilePart(name=clean(path.name), size_bytes=path.stat().st_size, sha256=sha256)


def plain_values(*groups: Mapping[str, Any] | None) -> tuple[dict[str, Value], int]:
    """Nested metadata by dotted names, what is worth knowing first.

    Args:
        groups: As in `Weights.metadata` and `Weights.config`; earlier ones win.

    Returns:
        At most 200 values that JSON can hold, and how many more there were.
    """
    found: dict[str, Value] = {}
    left_out = 0
    for group in groups:
        for name, value in _flat(group or {}, ""):
            if name in found:
                continue
            if len(found) < 10 * _MAX_VALUES:
                found[name] = value
            else:
                left_out += 1
    ordered = sorted(found, key=_rank)  # stable
    kept = ordered[:_MAX_VALUES]
    return {name: found[name] for name in kept}, left_out + len(ordered) - len(kept)


def _rank(name: str) -> tuple[int, int]:
    depth = name.count(".")
    last = name.rpartition(".")[2]
    known = last in _WORTH_KNOWING and depth < 2
    return (depth, _WORTH_KNOWING.index(last)) if known else (10 + depth, 0)


def _flat(value: Mapping[str, Any], path: str) -> Iterator[tuple[str, Value]]:
    for key, item in value.items():
        name = clean(f"{path}.{key}" if path else str(key))[:_MAX_TEXT]
        if item is None or item in ({}, [], ""):
            continue
        if isinstance(item, Mapping):
            # Label maps: thousands of entries, one thing to know.
            few = len(item) <= 64 and not all(str(k).lstrip("-").isdigit() for k in item)
            if few and path.count(".") < 4:
                yield from _flat(item, name)
            else:
                yield name, f"{len(item):,} entries"
        elif isinstance(item, list | tuple):
            short = len(item) <= 8 and not any(isinstance(x, Mapping | list | tuple) for x in item)
            shown = ", ".join(str(_scalar(x)) for x in item)
            shown = clean(shown if len(item) == 1 else f"[{shown}]")[:_MAX_TEXT]
            yield name, shown if short else f"{len(item):,} values"
        else:
            yield name, _scalar(item)


def _scalar(value: Any) -> Value:
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if value.bit_length() < 64 else f"an integer of {value.bit_length():,} bits"
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    text = clean(str(value))
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"
