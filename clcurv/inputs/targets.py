"""Labels of all rows of a source -> class ids or real targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clcurv.errors import DataError, MismatchError
from clcurv.inputs.labels import Label, LabelMap, check_head, resolve_labels, resolve_stated
from clcurv.inputs.loaded import LoadedModel
from clcurv.inputs.loss_names import LOSSES
from clcurv.inputs.source import Source


@dataclass(frozen=True)
class Targets:
    """Targets of every row of a source.

    Attributes:
        values: int64 class ids ``(n,)``, or float32 ``(n, k)``.
        classes: Class id of every row; None for real-valued targets.
        missing: Rows without a label (their values mean nothing).
        notes: Sentences for the report.
    """

    values: Tensor
    classes: list[int] | None
    missing: tuple[int, ...]
    notes: tuple[str, ...]


def read_targets(
    source: Source,
    loaded: LoadedModel,
    *,
    label_map: Mapping[str, int] | None,
    loss: str | None,
    skip_bad: bool,
) -> Targets:
    """Class ids for a classifier or backbone, real numbers for a regression.

    A squared loss (``loss='mse'``) on class labels of a classifier gets one-hot targets.

    Raises:
        DataError: Rows without a label (unless `skip_bad`), real numbers for a classifier,
            or names that cannot be told.
        MismatchError: Labels outside the head, or targets of another width.
    """
    if source.labels is None:
        raise DataError("the data set has no labels", hint="name them with --label-column NAME")
    values, encoded = _decoded(list(source.labels), loaded, loss)
    negative = skip_bad and loaded.task != "regression"
    missing = tuple(
        row
        for row, value in enumerate(values)
        if _is_missing(value) or (negative and _is_unlabelled(value))
    )
    if missing and (not skip_bad or len(missing) == len(values)):
        raise DataError(
            f"{source.name(missing[0])}: no label ({len(missing)} of {len(values)} rows)",
            hint="leave such rows out with --skip-bad",
        )
    without = frozenset(missing)
    real = any(_is_real(value) for value in values)
    own = loss is not None and loss not in LOSSES
    if loaded.task == "regression" or (real and (own or loss == "mse")):
        # What the user's own loss compares the outputs with is its own affair.
        width = None if own else loaded.num_classes
        targets = _real_targets(values, width, without)
        return Targets(targets, None, missing, ())
    if real:
        raise DataError(
            "the labels are real numbers, not classes", hint="measure a regression with --loss mse"
        )
    values = [None if row in without else value for row, value in enumerate(values)]
    ids, notes = _class_ids(values, source, loaded, label_map)
    notes += encoded
    classes = torch.tensor([max(i, 0) for i in ids], dtype=torch.int64)
    if loss != "mse":
        return Targets(classes, ids, missing, notes)
    width = loaded.num_classes or int(classes.max()) + 1
    one_hot = torch.nn.functional.one_hot(classes, width).float()
    return Targets(one_hot, ids, missing, (*notes, "squared loss against one-hot labels"))


def _class_ids(
    values: Sequence[Any],
    source: Source,
    loaded: LoadedModel,
    label_map: Mapping[str, int] | None,
) -> tuple[list[int], tuple[str, ...]]:
    plain = [_plain(value) for value in values]
    known = {label for label in plain if label is not None}
    given = source.class_names
    numbered = all(isinstance(label, int) for label in known)
    mapping: LabelMap
    if given is not None and numbered:
        mapping = resolve_stated(
            given,
            num_classes=loaded.num_classes,
            id2label=loaded.id2label,
            label_map=label_map,
        )
    else:
        mapping = resolve_labels(
            known if given is None else given,
            num_classes=loaded.num_classes,
            id2label=loaded.id2label,
            label_map=label_map,
        )

    def class_id(label: Label) -> int:
        return mapping.ids[label] if label in mapping.ids else int(label)

    ids = [-1 if label is None else class_id(label) for label in plain]
    labelled = [i for i, label in zip(ids, plain, strict=True) if label is not None]
    written = {i: str(label) for i, label in zip(ids, plain, strict=True) if label is not None}
    check_head(labelled, num_classes=loaded.num_classes, names=written)
    return ids, mapping.notes


def _decoded(
    values: list[Any], loaded: LoadedModel, loss: str | None
) -> tuple[list[Any], tuple[str, ...]]:
    """One-hot labels of a classifier as class ids; all others as they are.

    Raises:
        DataError: Several classes in one row.
    """
    rows = [v for v in values if isinstance(v, list | tuple | np.ndarray)]
    if not rows or loaded.task == "regression" or loss not in (None, "cross-entropy"):
        return values, ()
    if any(not isinstance(v, list | tuple | np.ndarray) for v in values if not _is_missing(v)):
        return values, ()
    widths = {len(row) for row in rows}
    if len(widths) > 1 or widths == {1} or any(x not in (0, 1) for row in rows for x in row):
        return values, ()
    if any(sum(row) != 1 for row in rows):
        raise DataError(
            "labels with several classes, or none, in one row: cross-entropy takes one class",
            hint="measure the squared loss with --loss mse",
        )
    note = f"one-hot labels: the class is the position of the 1 among {widths.pop()}"
    decoded = [None if _is_missing(v) else int(np.argmax(v)) for v in values]
    return decoded, (note,)


def _is_unlabelled(value: Any) -> bool:
    """-1, which usually marks rows without a label."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value == -1


def _is_missing(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, float) and np.isnan(value))


def _is_real(value: Any) -> bool:
    if isinstance(value, list | tuple | np.ndarray):
        return True
    return isinstance(value, float) and not np.isnan(value) and not value.is_integer()


def _plain(value: Any) -> Label | None:
    if _is_missing(value):
        return None
    if isinstance(value, str):
        return value
    try:
        return int(value)  # bool, float with a whole value, numpy and torch scalars
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(f"a label of type {type(value).__name__} is no class") from error


def _real_targets(values: Sequence[Any], width: int | None, missing: frozenset[int]) -> Tensor:
    kept = [value for row, value in enumerate(values) if row not in missing]
    try:
        array = np.asarray(kept, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"the targets of a regression must be numbers, all of one length ({error})"
        ) from error
    array = array.reshape(len(kept), -1)
    if not np.isfinite(array).all():
        raise DataError("targets of the regression are not finite")
    if width is not None and array.shape[1] != width:
        raise MismatchError(
            f"targets with {array.shape[1]} values for a model with {width} outputs",
            hint="name the target column with --label-column NAME",
        )
    targets = torch.zeros(len(values), array.shape[1])
    rows = [row for row in range(len(values)) if row not in missing]
    targets[torch.tensor(rows)] = torch.from_numpy(array)
    return targets
