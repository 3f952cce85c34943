"""Data given in memory: tensors, arrays, datasets and loaders -> a `Source`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import IterableDataset

from clcurv.errors import ClcurvError, DataError
from clcurv.inputs.arrays import array_source
from clcurv.inputs.labelmap import apply_label_map
from clcurv.inputs.reservoir import draw_from
from clcurv.inputs.source import Columns, Kind, Source
from clcurv.inputs.streamed import class_of, kept_for, most_rows, sample_rows, stream_note
from clcurv.inputs.tables import choose_split, quiet_datasets, table_source

_LABEL_KEYS = ("labels", "label", "y", "target", "targets")


def given_source(
    data: Any,
    *,
    n: int,
    split: str | None,
    columns: Columns | None,
    modality: str,
    needs_labels: bool,
    seed: int = 0,
) -> Source:
    """Rows of a live object.

    Float tensors and dicts of tensors are taken as prepared for the model; uint8 image
    tensors, Pillow images, strings and numpy arrays go through its preprocessing. Of what can only
    be iterated, a class-balanced sample of little more than `n` rows is kept.

    Args:
        data: ``(x, y)``, a mapping with ``labels``, a `datasets.Dataset` or `IterableDataset`, a
            torch data set (an iterable one gives samples), or an iterable of batches.
        n: Samples wanted; an iterable of unknown length is read up to `most_rows`.
        split, columns, modality, needs_labels: As in `open_source`.
        seed: Of the draw from an iterable.

    Raises:
        DataError: None of these, or inputs and labels of different lengths.
    """
    source = _source(data, n, seed, split, columns, modality, needs_labels)
    entries = (columns or {}).get("label_map")
    return source if entries is None else apply_label_map(source, entries)


def _source(
    data: Any,
    n: int,
    seed: int,
    split: str | None,
    columns: Columns | None,
    modality: str,
    needs_labels: bool,
) -> Source:
    if hasattr(data, "column_names") and hasattr(data, "select_columns"):
        return _from_hugging_face(data, n, seed, split, columns, modality, needs_labels)
    if isinstance(data, Mapping):
        inputs, labels = _split_mapping(data)
        return _from_columns(_rows(inputs), labels, "given", modality)
    if _is_pair(data):
        x, y = data
        if isinstance(x, np.ndarray):
            arrays = {"x": x} if y is None else {"x": x, "y": np.asarray(y)}
            return array_source("given", arrays, None, None, modality, needs_labels)
        return _from_columns(_rows(x), y, "given", modality)
    if isinstance(data, tuple) and len(data) == 2 and _is_several(data[0]):
        raise DataError(
            f"the inputs are a tuple of {len(data[0])} tensors",
            hint="name them as the model's forward does: ({'name': tensor, ...}, labels)",
        )
    if isinstance(data, IterableDataset):
        return _from_samples(
            map(_pair_of, _told(data, "sample")), data, n, seed, modality, "dataset"
        )
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, list):
        return _from_map_dataset(data, modality)
    if isinstance(data, Iterable):
        return _from_samples(_of_batches(data), data, n, seed, modality, "batches")
    raise DataError(
        f"a {type(data).__name__} is not read as data",
        hint="give a path, (x, y), a torch Dataset or an iterable of batches",
    )


def _from_hugging_face(
    data: Any,
    n: int,
    seed: int,
    split: str | None,
    columns: Columns | None,
    modality: str,
    needs_labels: bool,
) -> Source:
    notes: tuple[str, ...] = ()
    if isinstance(data, Mapping):
        name, note = choose_split("given", split, list(data))
        data, notes = data[name], (note,)
    where, population = "given data set", None
    if not hasattr(data, "num_rows"):
        asked = (columns, modality, needs_labels)
        try:
            with quiet_datasets():
                data, population, note = sample_rows(
                    data, where, asked, n=n, seed=seed, limit=most_rows(n, table=True)
                )
        except ClcurvError:
            raise
        except Exception as error:  # damaged files, and what the user maps over the rows
            raise DataError(f"the {where} cannot be read ({_cause(error)})") from error
        notes += (note,)
    return table_source(
        data,
        form="datasets",
        where=where,
        folder=Path(),
        columns=columns,
        modality=modality,
        needs_labels=needs_labels,
        notes=notes,
        population=population,
    )


def _is_pair(data: Any) -> bool:
    if not isinstance(data, tuple | list) or len(data) != 2:
        return False
    x, y = data
    if isinstance(x, tuple) or (isinstance(x, list) and not all(isinstance(t, str) for t in x)):
        return False
    return y is None or isinstance(y, Tensor | np.ndarray | list)


def _is_several(x: Any) -> bool:
    return isinstance(x, tuple) and len(x) > 1 and all(isinstance(t, Tensor) for t in x)


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
        # Inputs are let go at once: only those drawn are read again.
        found = [_plain(_pair_of(_item(data, row))[1]) for row in range(length)]
        labels = None if all(label is None for label in found) else found
    first = _pair_of(_item(data, 0))[0]
    kind = _kind(first, modality)
    return Source(
        format="dataset",
        kind=kind,
        length=length,
        read=lambda row: _value(_pair_of(_item(data, row))[0], kind),
        name=lambda row: f"sample {row}",
        labels=labels,
        whole=np.stack([np.asarray(first)])
        if kind == "image" and not isinstance(first, Image.Image)
        else None,
    )


def _item(data: Any, row: int) -> Any:
    try:
        return data[row]
    except ClcurvError:
        raise
    except Exception as error:  # the user's code can raise anything
        raise DataError(f"sample {row} cannot be read ({_cause(error)})") from error


def _told(data: Iterable[Any], what: str) -> Iterator[Any]:
    """The items; what goes wrong in making them is the data's fault."""
    done = 0
    try:
        for item in data:
            yield item
            done += 1
    except ClcurvError:
        raise
    except Exception as error:  # the user's code can raise anything
        raise DataError(f"{what} {done} cannot be read ({_cause(error)})") from error


def _cause(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _plain(label: Any) -> Any:
    if not isinstance(label, Tensor | np.generic | np.ndarray):
        return label
    return label.item() if label.ndim == 0 else label.tolist()


def _ends(data: Any) -> bool:
    try:
        len(data)
    except TypeError:  # also a loader over a stream has the method
        return False
    return True


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


def _of_batches(data: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    for batch in _told(data, "batch"):
        x, y = _pair_of(batch)
        part = _rows(x)
        labels = _listed(y)
        if labels is not None and len(labels) != len(part):
            raise DataError(f"a batch of {len(part)} inputs has {len(labels)} labels")
        yield from zip(part, labels or [None] * len(part), strict=True)


def _from_samples(
    pairs: Iterable[tuple[Any, Any]], data: Any, n: int, seed: int, modality: str, form: str
) -> Source:
    """A sample of (input, label) pairs that come one by one."""
    rows = ((class_of(label), (x, label)) for x, y in pairs for label in (_plain(y),))
    limit = None if _ends(data) else most_rows(n, table=False)
    drawn = draw_from(rows, kept_for(n), seed=seed, limit=limit)
    found = [label for _, label in drawn.values]
    labels = None if all(label is None for label in found) else found
    few = drawn.ended and drawn.seen == len(drawn.rows)
    notes = () if few else (stream_note(drawn.seen, drawn.ended),)
    source = _from_columns([x for x, _ in drawn.values], labels, form, modality, notes)
    return replace(source, population=drawn.seen)
