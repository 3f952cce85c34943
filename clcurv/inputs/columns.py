"""Which columns of a table hold the inputs and the labels: as the user says, or as usual."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from clcurv.errors import DataError
from clcurv.inputs.source import Columns, Kind, names_of

LABELS = ("label", "labels", "target", "y", "class", "category", "intent", "fine_label", "cls")
TEXTS = (
    "text",
    "sentence",
    "content",
    "utterance",
    "review",
    "query",
    "document",
    "document_text",
)
PAIRS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("text_a", "text_b"),
    ("text1", "text2"),
    ("question", "sentence"),
    ("question", "passage"),
    ("question", "context"),
    ("query", "passage"),
    ("query", "document"),
    ("sentence_1", "sentence_2"),
    ("sentence_a", "sentence_b"),
)
_IMAGES = ("image", "img", "file_name", "filename", "image_path", "path", "file", "pixel_values")
_TOKENS = ("input_ids", "tokens", "x", "features")
_KINDS: dict[str, Kind] = {"image": "image", "text": "text", "array": "array"}


def label_columns(
    names: Sequence[str], where: str, columns: Columns | None, needs_labels: bool
) -> tuple[str, ...]:
    """The columns with the labels; several are the outputs of a regression, or one-hot.

    Raises:
        DataError: No such column, or none that looks like labels where they are needed.
    """
    wanted = (columns or {}).get("label")
    if wanted is not None:
        return _named(wanted, names, where)
    usual = first_of(LABELS, names)
    if usual is not None or not needs_labels:
        return () if usual is None else (usual,)
    raise DataError(
        f"{where}: no label column among {', '.join(names)}",
        hint="name it with --label-column NAME",
    )


def input_columns(
    table: Any, where: str, columns: Columns | None, modality: str, labels: Sequence[str]
) -> tuple[tuple[str, ...], Kind]:
    """The columns with the inputs, and what they hold.

    Args:
        table: A `datasets` table, streamed or not; its columns and their types are looked at.
        where: What to call it in messages.
        columns: As the user names them.
        modality: What the model eats.
        labels: Columns that are labels.

    Raises:
        DataError: No such column, or columns that cannot be told.
    """
    names = [name for name in table.column_names if name not in labels]
    for key, kind in _KINDS.items():
        wanted = (columns or {}).get(key)
        if wanted is not None:
            named = _named(wanted, table.column_names, where)
            if kind == "text" and len(named) > 2:
                raise DataError(f"{where}: {len(named)} text columns; a model takes one or a pair")
            return named, kind
    if modality == "text":
        strings = [n for n in names if _dtype(table, n) in ("string", "large_string")]
        found = text_columns(names) or (tuple(strings) if len(strings) == 1 else ())
        if found:
            return found, "text"
    usual = first_of(_IMAGES if modality == "image" else _TOKENS, names)
    if usual is not None:
        return (usual,), "image" if modality == "image" else "array"
    numbers = [n for n in names if _dtype(table, n).startswith(("float", "int", "uint", "double"))]
    if modality == "array" and numbers == names:
        return tuple(numbers), "array"
    raise DataError(
        f"{where}: which column holds the {modality} cannot be told among "
        f"{', '.join(table.column_names)}",
        hint="call the column input_ids, x or features"
        if modality == "array"
        else f"name it with --{modality}-column NAME"
        + (" (or FIRST,SECOND for pairs)" if modality == "text" else ""),
    )


def text_columns(names: Iterable[str]) -> tuple[str, ...]:
    """The usual names of a pair of texts, or of one; empty where there are none."""
    by_lower = {name.lower(): name for name in names}
    for first, second in PAIRS:
        if first in by_lower and second in by_lower:
            return by_lower[first], by_lower[second]
    usual = first_of(TEXTS, by_lower.values())
    return () if usual is None else (usual,)


def first_of(usual: Iterable[str], names: Iterable[str]) -> str | None:
    """The first of the usual names that is there, in whatever case, as it is written there."""
    by_lower = {name.lower(): name for name in names}
    return next((by_lower[name] for name in usual if name in by_lower), None)


def _named(wanted: Any, names: Sequence[str], where: str) -> tuple[str, ...]:
    """Columns as the user names them; a comma may also be part of a name."""
    if isinstance(wanted, str) and wanted in names:
        return (wanted,)
    return tuple(present(name, names, where) for name in names_of(wanted))


def present(name: str, names: Sequence[str], where: str) -> str:
    """The name, if it is there.

    Raises:
        DataError: It is not.
    """
    if name in names:
        return name
    raise DataError(
        f"{where}: no column {name!r} (there are: {', '.join(names)})",
        hint="name the columns with --image-column, --text-column, --label-column",
    )


def used(inputs: Sequence[str], labels: Sequence[str], names: Sequence[str]) -> str:
    """A note on the columns taken, and on others that look like labels."""
    text = f"columns: {' + '.join(inputs)}" + (f" -> {' + '.join(labels)}" if labels else "")
    others = [n for n in names if n.lower().endswith(("label", "labels")) and n not in labels]
    return text + (f" (there is also {', '.join(others)})" if labels and others else "")


def _dtype(table: Any, name: str) -> str:
    return str(getattr(table.features[name], "dtype", ""))
