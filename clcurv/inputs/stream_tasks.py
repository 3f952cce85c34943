"""One task of a stream, and how its rows are opened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from clcurv.errors import ClcurvError, DataError, UnsafeFileError
from clcurv.inputs.arrays import array_source, zipped_arrays
from clcurv.inputs.formats import open_source
from clcurv.inputs.given import given_source
from clcurv.inputs.imagefolder import class_root_exists
from clcurv.inputs.labels import Label
from clcurv.inputs.source import Columns, Source, sniff
from clcurv.inputs.stream_rows import (
    TaskLabels,
    plain_labels,
    read_labels,
    rows_of_classes,
    select,
)
from clcurv.inputs.stream_transform import Transform, permute_labels

_PLAIN = Transform()
TASK_ARRAYS = ("t", "task", "tasks", "task_id", "task_ids", "task_label", "task_labels")


@dataclass(frozen=True)
class StreamTask:
    """One task: where its rows are, which of them, and what is done to them.

    Attributes:
        name: Unique in the stream.
        classes: Labels, as written in the data, whose rows belong to the task, in the order of a
            head of its own; None takes every row.
        data: A path, or an object that `clcurv.inputs.dataset.load_samples` takes.
        test: Another place for ``split='test'``; None is `data`.
        split, form, columns: Of the data, where the stream states them.
        t: Rows of an npz whose task array is this.
        transform: Permutation of inputs or labels.
        n, digest: What the data are said to be; see `clcurv stream resolve`.
    """

    name: str
    classes: tuple[Label, ...] | None = None
    data: Any = field(default=None, repr=False)
    test: Any = field(default=None, repr=False)
    split: str | None = None
    form: str | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    t: Label | None = None
    transform: Transform = _PLAIN
    n: int | None = None
    digest: str | None = None

    @property
    def path(self) -> Path | None:
        return Path(self.data) if isinstance(self.data, str | Path) else None

    def place(self, split: str | None) -> tuple[Any, str | None]:
        """What to open for a split, and the split to take of it."""
        wanted = split or self.split
        if self.test is not None and wanted is not None and wanted.lower() in ("test", "testing"):
            return self.test, None
        return self.data, wanted


@dataclass(frozen=True)
class Description:
    """A stream as it was described, before its data are opened.

    Attributes:
        class_ids: Label as written -> class id; empty where the model's head decides.
        local: Every task numbers its own classes from 0, whatever the scenario.
    """

    name: str
    scenario: str
    origin: str
    tasks: tuple[StreamTask, ...]
    seed: int
    modality: str | None = None
    class_ids: Mapping[str, int] = field(default_factory=dict)
    local: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Asked:
    """What else was asked for with the description; see `clcurv.inputs.stream.open_stream`."""

    data: Any = None
    seed: int = 0
    scenario: str | None = None
    modality: str | None = None
    split: str | None = None
    columns: Columns | None = None


def existing(data: Any, what: str = "--data") -> Any:
    """The data, if it is not a path to nothing.

    Raises:
        DataError: There is no such file or folder.
    """
    if isinstance(data, str | Path) and not Path(data).exists():
        raise DataError(f"{what}: no such file or folder: {data}", hint="check the path")
    return data


@contextmanager
def naming(index: int, task: StreamTask) -> Iterator[None]:
    """Errors say which task they are about."""
    try:
        yield
    except ClcurvError as error:
        where = f"task {index + 1} ({task.name}): "
        if str(error).startswith(where):
            raise
        raise type(error)(where + str(error), hint=error.hint) from error


@contextmanager
def open_task(
    task: StreamTask,
    *,
    modality: str | None,
    split: str | None = None,
    columns: Columns | None = None,
    needs_labels: bool = True,
    n: int = 512,
) -> Iterator[Source]:
    """The rows of a task with their labels as written (shuffled ones where it shuffles them).

    Args:
        task: Which.
        modality: What the model eats; None tries what the data look like.
        split: Over the task's own.
        columns: Added to the task's own, which win.
        needs_labels: Whether missing labels are an error.
        n: Samples wanted, for data of unknown length.

    Raises:
        DataError: It cannot be read, has no rows, or is not of the format stated.
    """
    needs = needs_labels or task.classes is not None or task.transform.kind == "label-shuffle"
    data, wanted = task.place(split)
    named = {**(columns or {}), **task.columns} or None
    with ExitStack() as stack:
        if modality is not None:
            source = stack.enter_context(_opened(task, data, wanted, named, modality, needs, n))
        else:
            source = _first_fitting(stack, task, data, wanted, named, needs, n)
        if not source.length:
            raise DataError("the data set has no samples")
        if task.form is not None and task.form != source.format:
            raise DataError(f"the data are {source.format}, the manifest says {task.form}")
        yield _shuffled(_of_classes(source, task), task)


def task_labels(
    task: StreamTask, *, modality: str | None, split: str | None, columns: Columns | None
) -> TaskLabels:
    """What labels the task has."""
    with open_task(task, modality=modality, split=split, columns=columns) as source:
        return read_labels(source)


@contextmanager
def _opened(
    task: StreamTask,
    data: Any,
    split: str | None,
    columns: Columns | None,
    modality: str,
    needs_labels: bool,
    n: int,
) -> Iterator[Source]:
    if not isinstance(data, str | Path):
        if task.t is not None:
            given = {"x": np.asarray(data[0]), "y": np.asarray(data[1])}
            source = array_source("given", given, columns, None, modality, needs_labels)
            yield _rows_of(source, np.asarray(data[2]), task.t, "given")
            return
        yield given_source(
            data, n=n, split=split, columns=columns, modality=modality, needs_labels=needs_labels
        )
        return
    path = Path(data)
    if task.t is None:
        with open_source(
            path, split=split, columns=columns, modality=modality, needs_labels=needs_labels
        ) as source:
            yield source
        return
    with zipped_arrays(path) as arrays:
        source = array_source(path, arrays, columns, split, modality, needs_labels)
        yield _rows_of(source, read_task_array(path, arrays), task.t, str(path))


def read_task_array(path: Path, arrays: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """The array that says to which task each row belongs, one entry a row.

    Raises:
        DataError: There is none, or it is not a list of integers or strings.
    """
    by_lower = {name.lower(): name for name in arrays}
    name = next((by_lower[usual] for usual in TASK_ARRAYS if usual in by_lower), None)
    if name is None:
        raise DataError(
            f"{path}: no array t that says which task a row belongs to "
            f"(there are: {', '.join(arrays)})",
            hint=f"--stream split:K --data {path} makes a stream of its classes",
        )
    try:
        t = np.asarray(arrays[name])
    except ValueError as error:
        if "allow_pickle" in str(error):
            raise UnsafeFileError(
                f"{path}: array {name!r} holds pickled Python objects",
                hint="save it as a plain array of integers",
            ) from error
        raise DataError(f"{path}: array {name!r} cannot be read ({error})") from error
    return check_task_array(t, f"{path}: array {name!r}")


def check_task_array(t: np.ndarray[Any, Any], where: str) -> np.ndarray[Any, Any]:
    """Integers or strings, one a row; whole floats become integers."""
    if t.ndim == 2 and t.shape[1] == 1:
        t = t[:, 0]
    if t.dtype.kind == "f" and np.isfinite(t).all() and (t == np.floor(t)).all():
        t = t.astype(np.int64)
    if t.ndim != 1 or t.dtype.kind not in "iubUS":
        raise DataError(f"{where} of shape {t.shape} and type {t.dtype} names no tasks")
    return t.astype(str) if t.dtype.kind == "S" else t


def _rows_of(source: Source, t: np.ndarray[Any, Any], wanted: Label, where: str) -> Source:
    if len(t) != source.length:
        raise DataError(f"{where}: {source.length} samples, but {len(t)} task numbers")
    rows = np.flatnonzero(t.astype(str) == str(wanted)).tolist()
    labels = None if source.labels is None else [source.labels[row] for row in rows]
    if not rows:
        raise DataError(f"{where}: no row is of task {wanted!r}")
    return select(source, rows, labels)


def _first_fitting(
    stack: ExitStack,
    task: StreamTask,
    data: Any,
    split: str | None,
    columns: Columns | None,
    needs_labels: bool,
    n: int,
) -> Source:
    """Open as whatever it looks like."""
    first: DataError | None = None
    for modality in _likely(data, columns or {}):
        try:
            return stack.enter_context(
                _opened(task, data, split, columns, modality, needs_labels, n)
            )
        except DataError as error:
            first = first or error
    assert first is not None
    raise first


def _likely(data: Any, columns: Mapping[str, Any]) -> tuple[str, ...]:
    stated = [kind for kind in ("image", "text", "array") if kind in columns]
    if stated:
        return tuple(stated)
    if not isinstance(data, str | Path):
        return ("array",)
    path = Path(data)
    if path.is_dir():
        return ("image", "text", "array") if class_root_exists(path) else ("text", "image", "array")
    if path.is_file() and sniff(path) == "npz":
        return ("array",)
    return ("text", "image", "array")


def _of_classes(source: Source, task: StreamTask) -> Source:
    if task.classes is None:
        return source
    if source.labels is None:
        raise DataError("the data set has no labels, so its classes cannot be told apart")
    rows = rows_of_classes(source, task.classes)
    if not rows:
        shown = ", ".join(str(c) for c in task.classes[:5])
        more = ", ..." if len(task.classes) > 5 else ""
        raise DataError(
            f"{source.name(0)} and the other {source.length - 1} rows: none is of its classes "
            f"({shown}{more})",
            hint="classes are labels as written in the data",
        )
    notes = source.notes
    missing = sum(label is None for label in plain_labels(source))
    if missing:
        notes += (f"{missing} rows without a label are in no task",)
    labels = source.labels
    chosen = select(source, rows, [labels[row] for row in rows])
    return replace(chosen, class_names=_kept_names(source, task.classes), notes=notes)


def _kept_names(source: Source, classes: tuple[Label, ...]) -> tuple[str, ...] | None:
    """Names that number the labels all stay; a folder's are those of the task's classes."""
    names = source.class_names
    if names is None or all(isinstance(x, int) for x in plain_labels(source) if x is not None):
        return names
    written = {str(c) for c in classes}
    return tuple(name for name in names if name in written)


def _shuffled(source: Source, task: StreamTask) -> Source:
    if task.transform.kind != "label-shuffle":
        return source
    if source.labels is None or read_labels(source).real:
        raise DataError("only class labels can be shuffled", hint="--stream permuted:K")
    labels = plain_labels(source)
    become = permute_labels((x for x in labels if x is not None), task.transform)
    return replace(source, labels=[None if x is None else become[x] for x in labels])
