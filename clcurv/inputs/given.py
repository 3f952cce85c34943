"""Data given in memory: tensors, arrays, datasets and loaders -> a `Source`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from clcurv.errors import DataError
from clcurv.inputs.arrays import array_source
from clcurv.inputs.source import Columns, Kind, Source
from clcurv.inputs.tables import choose_split, table_source

_LABEL_KEYS = ("labels", "label", "y", "target", "targets")


def given_source(
    data: Any,
    *,
    n: int,
    split: str | None,
    columns: Columns | None,
    modality: str,
    needs_labels: bool,
) -> Source:
    """Rows of a live object.

    Float tensors and dicts of tensors are taken as prepared for the model; uint8 image
    tensors, Pillow images, strings and numpy arrays go through its preprocessing.

    Args:
        data: ``(x, y)``, a mapping with ``labels``, a `datasets.Dataset`, a map-style torch
            dataset, or an iterable of batches.
        n: Samples wanted; an iterable of unknown length is read no further.
        split, columns, modality, needs_labels: As in `open_source`.

    Raises:
        DataError: None of these, or inputs and labels of different lengths.
    """
    if hasattr(data, "column_names") and hasattr(data, "select_columns"):
        return _from_hugging_face(data, split, columns, modality, needs_labels)
    if isinstance(data, Mapping):
        inputs, labels = _split_mapping(data)
        return _from_columns(_rows(inputs), labels, "given", modality)
    if _is_pair(data):
        x, y = data
        if isinstance(x, np.ndarray):
            arrays = {"x": x} if y is None else {"x": x, "y": np.asarray(y)}
            return array_source("given", arrays, None, None, modality, needs_labels)
        return _from_columns(_rows(x), y, "given", modality)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, list):
        return _from_map_dataset(data, modality)
    if isinstance(data, Iterable):
        return _from_batches(data, n, modality)
    raise DataError(
        f"a {type(data).__name__} is not read as data",
        hint="give a path, (x, y), a torch Dataset or an iterable of batches",
    )


def _from_hugging_face(
    data: Any, split: str | None, columns: Columns | None, modality: str, needs_labels: bool
) -> Source:
    notes: tuple[str, ...] = ()
    if isinstance(data, Mapping):
        name, note = choose_split("given", split, list(data))
        data, notes = data[name], (note,)
    return table_source(
        data,
        form="datasets",
        where="given data set",
        folder=Path(),
        columns=columns,
        modality=modality,
        needs_labels=needs_labels,
        notes=notes,
    )


def _is_pair(data: Any) -> bool:
    if not isinstance(data, tuple | list) or len(data) != 2:
        return False
    x, y = data
    if isinstance(x, tuple) or (isinstance(x, list) and not all(isinstance(t, str) for t in x)):
        return False
    return y is None or isinstance(y, Tensor | np.ndarray | list)


def _split_mapping(data: Mapping[str, Any]) -> tuple[Any, Any]:
    key = next((k for k in _LABEL_KEYS if k in data), None)
    inputs = {name: value for name, value in data.items() if name != key}
    if set(inputs) == {"x"}:
        inputs = inputs["x"]
    return inputs, None if key is None else data[key]


def _rows(x: Any) -> list[Any]:
    """A batch of inputs, taken apart."""
    if isinstance(x, Mapping):
        columns = {name: torch.as_tensor(value) for name, value in x.items()}
        lengths = {len(value) for value in columns.values()}
        if len(lengths) != 1:
            raise DataError(f"given inputs have columns of different lengths: {sorted(lengths)}")
        return [{k: v[i] for k, v in columns.items()} for i in range(lengths.pop())]
    if isinstance(x, Tensor):
        return list(x.detach().cpu()) if x.ndim else []
    if isinstance(x, np.ndarray | list | tuple):
        return list(x)
    raise DataError(f"inputs of type {type(x).__name__} are not read as data")


def _listed(labels: Any) -> list[Any] | None:
    if labels is None:
        return None
    if isinstance(labels, Tensor):
        labels = labels.detach().cpu().numpy()
    return list(labels.tolist()) if isinstance(labels, np.ndarray) else list(labels)


def _from_columns(
    rows: Sequence[Any], labels: Any, form: str, modality: str, notes: tuple[str, ...] = ()
) -> Source:
    listed = _listed(labels)
    if listed is not None and len(listed) != len(rows):
        raise DataError(f"{len(rows)} inputs but {len(listed)} labels are given")
    if not rows:
        raise DataError("the given data set is empty")
    kind = _kind(rows[0], modality)
    return Source(
        format=form,
        kind=kind,
        length=len(rows),
        read=lambda row: _value(rows[row], kind),
        name=lambda row: f"sample {row}",
        labels=listed,
        whole=np.stack([np.asarray(row) for row in rows[:64]])
        if kind == "image" and not isinstance(rows[0], Image.Image)
        else None,
        notes=notes,
    )


def _kind(value: Any, modality: str) -> Kind:
    if isinstance(value, str) or (isinstance(value, tuple | list) and isinstance(value[0], str)):
        return "text"
    if isinstance(value, Image.Image):
        return "image"
    if isinstance(value, Tensor):
        raw = modality == "image" and value.dtype == torch.uint8
        return "image" if raw else "prepared"
    if isinstance(value, Mapping):
        return "prepared"
    return "image" if modality == "image" else "array"


def _value(value: Any, kind: Kind) -> Any:
    if kind == "text":
        return value if isinstance(value, str) else tuple(value)
    if kind == "prepared" or isinstance(value, Image.Image):
        return value
    return np.asarray(value)


def _pair_of(item: Any) -> tuple[Any, Any]:
    if isinstance(item, Mapping):
        return _split_mapping(item)
    if isinstance(item, tuple | list) and len(item) >= 2:
        return item[0], item[1]
    return item, None


def _from_map_dataset(data: Any, modality: str) -> Source:
    length = len(data)
    if not length:
        raise DataError("the given data set is empty")
    labels = _known_labels(data)
    if labels is None:
        pairs = [_pair_of(data[row]) for row in range(length)]
        found = [y.item() if isinstance(y, Tensor) and y.ndim == 0 else y for _, y in pairs]
        if all(y is None for y in found):
            return _from_columns([x for x, _ in pairs], None, "dataset", modality)
        return _from_columns(
            [x for x, _ in pairs],
            [y.tolist() if isinstance(y, Tensor) else y for y in found],
            "dataset",
            modality,
        )
    kind = _kind(_pair_of(data[0])[0], modality)
    return Source(
        format="dataset",
        kind=kind,
        length=length,
        read=lambda row: _value(_pair_of(data[row])[0], kind),
        name=lambda row: f"sample {row}",
        labels=labels,
        whole=np.stack([np.asarray(_pair_of(data[0])[0])])
        if kind == "image" and not isinstance(_pair_of(data[0])[0], Image.Image)
        else None,
    )


def _known_labels(data: Any) -> list[Any] | None:
    """Labels that a torchvision-type data set (or a `Subset` of one) states without reading."""
    indices, inner = getattr(data, "indices", None), getattr(data, "dataset", None)
    if indices is not None and inner is not None:
        labels = _known_labels(inner)
        return None if labels is None else [labels[i] for i in indices]
    if getattr(data, "target_transform", None) is not None:
        return None
    labels = _listed(getattr(data, "targets", None))
    return labels if labels is not None and len(labels) == len(data) else None


def _from_batches(data: Iterable[Any], n: int, modality: str) -> Source:
    rows: list[Any] = []
    labels: list[Any] = []
    endless = not hasattr(data, "__len__")
    for batch in data:
        x, y = _pair_of(batch)
        part = _rows(x)
        rows += part
        labels += _listed(y) or [None] * len(part)
        if endless and len(rows) >= n:
            break
    note = f"the first {len(rows)} samples of an iterable of unknown length" if endless else ""
    known = None if all(label is None for label in labels) else labels
    return _from_columns(rows, known, "batches", modality, (note,) if note else ())
