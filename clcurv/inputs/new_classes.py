"""A task whose classes the head may not know yet: known ones keep their ids, new ones follow.

`clcurv.inputs.labels` refuses what lies outside the head, as it must for a task that the network
knows. Here the head will grow (`clcurv.inputs.heads.grow_head`). Class numbers are taken as they
are. Names are numbered only where it is known which classes the outputs are: from the checkpoint's
own names, or from the names in the data of a task that it knows.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clcurv.errors import InputError, MismatchError
from clcurv.inputs.dataset import Samples, load_samples
from clcurv.inputs.formats import open_source
from clcurv.inputs.given import given_source
from clcurv.inputs.labels import NameIndex, is_generic, resolve_labels
from clcurv.inputs.loaded import LoadedModel
from clcurv.inputs.source import Source

_MAX_EMPTY = 20  # outputs of a head per class seen, beyond which the numbering is a mistake
_SHOWN = 5
_WORDNET = re.compile(r"n\d{8}")
GUESSED = "the class names were taken for the head's"


def class_names(
    data: Any,
    loaded: LoadedModel,
    *,
    n: int,
    split: str | None = None,
    columns: Mapping[str, Any] | None = None,
) -> dict[str, int]:
    """Class id of every class name in the data of a task that the head knows.

    Empty where the labels are numbers, where the checkpoint names its classes itself, or where
    `data` can be read only once (an iterator).
    """
    if loaded.task != "classification" or not is_generic(loaded.id2label):
        return {}
    if isinstance(data, Samples) or hasattr(data, "__next__"):
        return {}
    with _opened(data, loaded, n, split, columns) as source:
        names, numbered = _names(source)
        if numbered or not names:
            return {}
        found = resolve_labels(names, num_classes=loaded.num_classes, id2label=loaded.id2label)
        return {str(name): number for name, number in found.ids.items()}


def load_new_task(
    data: Any,
    loaded: LoadedModel,
    *,
    n: int = 512,
    seed: int = 0,
    split: str | None = None,
    columns: Mapping[str, Any] | None = None,
    max_length: int | None = None,
    skip_bad: bool = False,
    loss: str | None = None,
    known: Mapping[str, int] | None = None,
) -> Samples:
    """Draw a sample of a task that may have classes which the head lacks.

    Args:
        data, loaded, n, seed, split, columns, max_length, skip_bad, loss: As for
            `clcurv.inputs.dataset.load_samples`.
        known: Class name -> class id, from `class_names` of a task that the head knows.

    Returns:
        Class ids may lie beyond the head; the notes then say which.

    Raises:
        DataError: As `load_samples`, or new classes whose numbers cannot be told.
        MismatchError: Negative class numbers, or numbers far beyond the head.
    """
    asked: dict[str, Any] = {
        "n": n,
        "seed": seed,
        "columns": columns,
        "max_length": max_length,
        "skip_bad": skip_bad,
        "loss": loss,
    }
    if isinstance(data, Samples):
        return _checked(data, loaded)
    if loaded.task != "classification" or loss == "mse":
        return load_samples(data, loaded, split=split, **asked)
    with _opened(data, loaded, n, split, columns) as source:
        names, numbered = _names(source)
        open_head = dataclasses.replace(loaded, num_classes=None, id2label={})
        guessed = False
        if not numbered and names:
            table = _numbered(names, loaded, dict(known or {}))
            if table is not None:
                samples = load_samples(source, open_head, label_map=table, **asked)
                return _checked(_from(samples, data), loaded, table)
            in_order = {name: i for i, name in enumerate(sorted(names))}
            wordnet = all(_WORDNET.fullmatch(name) for name in names)
            guessed = _ids_of(names, loaded) == in_order and not wordnet
            guessed = guessed and not (columns or {}).get("label_map")
        try:
            samples = load_samples(source, loaded, **asked)
        except InputError:
            if not numbered:
                raise
            samples = load_samples(source, open_head, **asked)
        if guessed:
            samples = dataclasses.replace(samples, notes=(*samples.notes, _guess(names, loaded)))
        return _checked(_from(samples, data), loaded)


def _guess(names: Sequence[str], loaded: LoadedModel) -> str:
    """A network that knows as many other classes would be measured on wrong labels."""
    return (
        f"{GUESSED} {loaded.num_classes} classes in sorted order ({', '.join(names[:_SHOWN])}"
        f"{', ...' if names[_SHOWN:] else ''}), since nothing names those; if they are new, number "
        f"them from {loaded.num_classes} on"
    )


def _ids_of(names: Sequence[str], loaded: LoadedModel) -> dict[str, int]:
    """Refuses names that are not the head's classes, where nothing says which those are."""
    try:
        found = resolve_labels(names, num_classes=loaded.num_classes, id2label=loaded.id2label)
        return {str(name): number for name, number in found.ids.items()}
    except InputError as error:
        width = loaded.num_classes or 0
        raise type(error)(
            f"the current task: {error}",
            hint=f"write new classes as numbers: {width}, {width + 1}, ...",
        ) from error


def _numbered(
    names: Sequence[str], loaded: LoadedModel, known: dict[str, int]
) -> dict[str, int] | None:
    """Name -> id with new names in sorted order after the head; None where nothing is known."""
    ids: dict[str, int] = {}
    if not is_generic(loaded.id2label):
        index = NameIndex(loaded.id2label)
        ids = {name: found for name in names if (found := index.find(name)) is not None}
    elif known:
        ids = {name: known[name] for name in names if name in known}
    else:
        return None
    new = [name for name in names if name not in ids]
    return ids | {name: (loaded.num_classes or 0) + i for i, name in enumerate(new)}


def _names(source: Source) -> tuple[list[str], bool]:
    """The classes' names, those with rows first and sorted; whether they are numbers."""
    labels = {
        x
        for x in (source.labels if source.labels is not None else ())
        if x is not None and x != "" and x == x  # NaN marks a missing label
    }
    strings = {x for x in labels if isinstance(x, str)}
    if labels and not strings:
        if source.class_names is None:
            return [], True
        rows = {int(x) for x in labels}
        names = list(source.class_names)
        held = [name for i, name in enumerate(names) if i in rows]
        return [*held, *(name for i, name in enumerate(names) if i not in rows)], False
    written = {str(x) for x in labels}
    if written and all(x.isascii() and x.isdigit() for x in written):
        return sorted(written), True
    rest = set(source.class_names or ()) - written
    return [*sorted(written), *sorted(rest)], False


def _checked(
    samples: Samples, loaded: LoadedModel, table: Mapping[str, int] | None = None
) -> Samples:
    """With a note on the classes that the head lacks."""
    width = loaded.num_classes or 0
    new = sorted(i for i in samples.class_counts if i >= width)
    if not new or loaded.task != "classification":
        return samples
    if new[-1] + 1 > width + _MAX_EMPTY * len(new):
        raise MismatchError(
            f"labels up to {new[-1]} for {len(new)} new classes of a head with {width} are no "
            "class numbers",
            hint=f"number new classes {width}, {width + 1}, ...",
        )
    written = {i: name for name, i in (table or {}).items()}
    shown = ", ".join(f"{written[i]}={i}" if i in written else str(i) for i in new[:_SHOWN])
    more = ", ..." if len(new) > _SHOWN else ""
    old = len(samples.class_counts) - len(new)
    note = f"{len(new)} classes are new to the head ({shown}{more}), {old} are known to it"
    return dataclasses.replace(samples, notes=(*samples.notes, note))


def _from(samples: Samples, data: Any) -> Samples:
    return dataclasses.replace(samples, source="path" if isinstance(data, str | Path) else "given")


@contextmanager
def _opened(
    data: Any,
    loaded: LoadedModel,
    n: int,
    split: str | None,
    columns: Mapping[str, Any] | None,
) -> Iterator[Source]:
    if isinstance(data, str | Path):
        with open_source(
            Path(data), split=split, columns=columns, modality=loaded.modality, needs_labels=True
        ) as source:
            yield source
        return
    yield given_source(
        data, n=n, split=split, columns=columns, modality=loaded.modality, needs_labels=True
    )
