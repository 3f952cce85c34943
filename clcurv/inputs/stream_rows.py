"""Rows of a data set that make up one task: labels as written, selections, digests."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from clcurv.errors import DataError
from clcurv.inputs.labels import Label
from clcurv.inputs.source import Source


@dataclass(frozen=True)
class TaskLabels:
    """The labels of one task.

    Attributes:
        counts: Label as written -> rows, in the order of `sort_labels`; empty without labels or
            where they are real numbers.
        names: Name of label 0, 1, ... where the data set numbers its classes itself.
        declared: Every class there is, also those without rows, where labels are names.
        length: Rows, with and without a label.
        form, kind: Of the `Source`.
        real: Labels are real numbers.
        notes: Of the `Source`.
    """

    counts: Mapping[Label, int]
    names: tuple[str, ...] | None
    declared: tuple[str, ...]
    length: int
    form: str
    kind: str
    real: bool = False
    notes: tuple[str, ...] = ()

    @property
    def numbered(self) -> bool:
        return all(isinstance(label, int) for label in self.counts)


def read_labels(source: Source) -> TaskLabels:
    """What labels a source has."""
    real = has_real_labels(source)
    found = [] if real else [label for label in plain_labels(source) if label is not None]
    counts = Counter(found)
    stated = source.class_names or ()
    numbered = all(isinstance(label, int) for label in counts)
    return TaskLabels(
        counts={label: counts[label] for label in sort_labels(counts)},
        names=stated if stated and numbered else None,
        declared=() if numbered else stated,
        length=source.length,
        form=source.format,
        kind=source.kind,
        real=real,
        notes=source.notes,
    )


def has_real_labels(source: Source) -> bool:
    """Whether the labels are targets of a regression rather than classes."""
    return any(
        isinstance(value, list | tuple | np.ndarray)
        or (isinstance(value, float) and math.isfinite(value) and not value.is_integer())
        for value in source.labels or ()
    )


def plain_labels(source: Source) -> list[Label | None]:
    """Label of every row as a string or integer; None where it has none.

    Raises:
        DataError: A label that is neither.
    """
    return [_plain(value, row, source) for row, value in enumerate(source.labels or ())]


def _plain(value: Any, row: int, source: Source) -> Label | None:
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, str):
        return value
    try:
        whole = int(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(
            f"{source.name(row)}: a label of type {type(value).__name__} is no class"
        ) from error
    if whole != value:
        raise DataError(f"{source.name(row)}: the label {value} is a real number, not a class")
    return whole


def sort_labels(labels: Iterable[Label]) -> tuple[Label, ...]:
    """Distinct labels in order: numbers (also written as strings) by value, names by spelling."""
    distinct = set(labels)
    if all(_digits(label) for label in distinct):
        return tuple(sorted(distinct, key=lambda label: (int(label), str(label))))
    return tuple(sorted(distinct, key=lambda label: (isinstance(label, str), label)))


def _digits(label: Label) -> bool:
    return isinstance(label, int) or (label.isascii() and label.isdigit())


def select(source: Source, rows: Sequence[int], labels: Sequence[Label | None] | None) -> Source:
    """Some rows of a source under new labels; what `whole` tells of all rows stays.

    Layout and range of numbers are a matter of the data set, not of the task.
    """
    chosen = [int(row) for row in rows]
    return replace(
        source,
        length=len(chosen),
        read=lambda row: source.read(chosen[row]),
        name=lambda row: source.name(chosen[row]),
        labels=None if labels is None else list(labels),
    )


def rows_of_classes(source: Source, classes: Sequence[Label]) -> list[int]:
    """Rows whose label is one of `classes`.

    A class given as a number means the number in the data; given as a string, the name. A data
    set without names of its own is matched by how its labels are written.
    """
    names = source.class_names if source.class_names else None
    labels = plain_labels(source)
    if names is not None and all(isinstance(x, int) for x in labels if x is not None):
        by_name = {name: number for number, name in enumerate(names)}
        wanted = {c if isinstance(c, int) else by_name.get(c, c) for c in classes}
        return [row for row, label in enumerate(labels) if label in wanted]
    written = {str(c) for c in classes}
    return [r for r, label in enumerate(labels) if label is not None and str(label) in written]


def content_digest(source: Source) -> str:
    """sha256 (hex) over the content of all rows, in order, and their labels as written.

    Files are hashed as they are, not decoded.

    Raises:
        DataError: A row cannot be read.
    """
    hasher = hashlib.sha256()
    for row in range(source.length):
        label = None if source.labels is None else source.labels[row]
        hasher.update(f"|{label!r}|".encode("utf-8", "backslashreplace"))
        _hash(hasher, source.read(row), source.name(row))
    return hasher.hexdigest()


def _hash(hasher: Any, value: Any, name: str) -> None:
    if isinstance(value, Path):
        try:
            value = value.read_bytes()
        except OSError as error:
            raise DataError(f"{name}: cannot be read ({error.strerror})") from error
    if isinstance(value, Mapping):
        for key in sorted(value):
            hasher.update(f"{key}=".encode())
            _hash(hasher, value[key], name)
        return
    if isinstance(value, tuple | list):
        for part in value:
            _hash(hasher, part, name)
        return
    if isinstance(value, Image.Image):
        value = np.asarray(value)
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, str | bytes):
        data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
        hasher.update(f"{type(value).__name__}:{len(data)}:".encode() + data)
    else:
        array = np.ascontiguousarray(value)
        hasher.update(f"{array.dtype.str}{array.shape}".encode() + array.tobytes())
