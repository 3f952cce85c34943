"""A label map: what labels as written in the data mean, from a file or a mapping.

A value is a class id, the name of one of the checkpoint's classes, or nothing (null), which
leaves the rows of that label out.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from clcurv.errors import DataError
from clcurv.inputs.labels import Label
from clcurv.inputs.source import Source
from clcurv.inputs.stream_manifest import read_plain

Entries = Mapping[str, Label | None]

_FORMS = "JSON, YAML or CSV with a class id for every label, or a text file with one name a line"
_MAX_BYTES = 16 << 20
_SHOWN = 5
_WORDNET = re.compile(r"(n\d{8})\b.*")
_ID_FIRST = re.compile(r"(\d+)[\s:,;=]+(\S.*)")
_ID_LAST = re.compile(r"(\S.*?)[\s:,;=]+(\d+)")


def read_label_map(given: str | Path | Mapping[Any, Any]) -> dict[str, Label | None]:
    """Label as written (always a string) -> class id, class name, or None for rows to leave out.

    Read are, by the suffix:

    - JSON and YAML: ``{label: id}``, ``{id: label}``, a list of labels in the order of their ids,
      or a model's config with ``label2id`` or ``id2label``;
    - CSV and TSV: two columns, in either order, with or without a heading;
    - text: ``label id`` or ``id label`` in every line, else one label a line, numbered from 0. Of
      lines that begin with a WordNet id (``n02123045 tabby, tabby cat``) only the id counts.

    Args:
        given: A file, or the mapping itself.

    Raises:
        DataError: None of these, a label that is given twice, or a value that is neither a class
            id nor a name.
    """
    if isinstance(given, Mapping):
        return _entries(given, "the label map")
    path = Path(given)
    if not path.is_file():
        raise DataError(f"{path}: no such file", hint="check the path given to --label-map")
    suffix = path.suffix.lower()
    if suffix in (".json", ".yaml", ".yml"):
        return _entries(read_plain(path, "a label map", limit=_MAX_BYTES), str(path))
    lines = _lines(path)
    if suffix in (".csv", ".tsv"):
        pairs = _table(lines, "\t" if suffix == ".tsv" else ",", str(path))
    else:
        pairs = _listed(lines)
    return _unique(pairs, str(path))


def apply_label_map(source: Source, entries: Entries) -> Source:
    """The source with its labels replaced.

    Raises:
        DataError: A label that the map does not have, or no row left.
    """
    if source.labels is None:
        return source
    labels = list(source.labels)
    numbered = source.class_names if _are_numbers(labels) else None
    written = [_written(label, numbered) for label in labels]
    lacking = sorted({w for w in written if w is not None and w not in entries})
    if lacking:
        raise DataError(
            f"the label map has no entry for {_listing(lacking)} (it has: "
            f"{_listing(list(entries))})",
            hint='add them; "label": null leaves the rows of a label out',
        )
    mapped = [None if w is None else entries[w] for w in written]
    kept = [r for r, w in enumerate(written) if w is None or entries[w] is not None]
    used = len({w for w in written if w is not None})
    notes = [f"{used} labels mapped by the label map"]
    if len(kept) < len(labels):
        notes.append(f"{len(labels) - len(kept)} rows left out: null in the label map")
    if not kept:
        raise DataError("the label map leaves every row out", hint="give some labels a class id")
    return replace(
        source,
        length=len(kept),
        read=lambda row: source.read(kept[row]),
        name=lambda row: source.name(kept[row]),
        labels=[mapped[row] for row in kept],
        class_names=None,
        notes=(*source.notes, *notes),
    )


def _are_numbers(labels: Iterable[Any]) -> bool:
    return not any(isinstance(label, str) and label for label in labels)


def _written(label: Any, names: Sequence[str] | None) -> str | None:
    """A label as the map's keys write it; None where there is none."""
    if label is None or label == "" or label != label:
        return None
    if isinstance(label, float) and label.is_integer():
        label = int(label)
    if names is not None and 0 <= int(label) < len(names):
        return names[int(label)]
    return str(label)


def _entries(content: Any, where: str) -> dict[str, Label | None]:
    if isinstance(content, Mapping):
        for key in ("label2id", "id2label"):
            if isinstance(content.get(key), Mapping | list):
                content = content[key]
                break
    if isinstance(content, list | tuple):
        if any(not isinstance(name, str | int) or isinstance(name, bool) for name in content):
            raise DataError(f"{where}: a list holds the labels in the order of their ids")
        return _unique(((str(name), number) for number, name in enumerate(content)), where)
    if not isinstance(content, Mapping) or not content:
        raise DataError(f"{where}: no label map", hint=f"give {_FORMS}")
    for key, value in content.items():
        if isinstance(key, bool):
            raise DataError(
                f"{where}: a key is read as {key}", hint='put words like "yes" and "no" in quotes'
            )
        if isinstance(value, bool) or not isinstance(value, str | int | None):
            raise DataError(
                f"{where}: {key!r} is mapped to {value!r}, which is no class",
                hint="a value is a class id, a class name, or null",
            )
    if all(_digits(key) for key in content) and all(
        isinstance(value, str) and not _digits(value) for value in content.values()
    ):
        return _unique(((str(name), int(key)) for key, name in content.items()), where)
    return _unique(((str(key), _value(value)) for key, value in content.items()), where)


def _value(value: str | int | None) -> Label | None:
    return int(value) if isinstance(value, str) and _digits(value) else value


def _digits(value: Any) -> bool:
    return isinstance(value, int) or (
        isinstance(value, str) and value.isascii() and value.isdigit()
    )


def _lines(path: Path) -> list[str]:
    if path.stat().st_size > _MAX_BYTES:
        raise DataError(f"{path}: too large for a label map ({path.stat().st_size} bytes)")
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as text ({error})") from error
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines or "\0" in text:
        raise DataError(f"{path}: no label map", hint=f"give {_FORMS}")
    return lines


def _table(lines: list[str], separator: str, where: str) -> list[tuple[str, Label | None]]:
    try:
        rows = [
            [cell.strip() for cell in row]
            for row in csv.reader(io.StringIO("\n".join(lines)), delimiter=separator, strict=True)
        ]
    except csv.Error as error:
        raise DataError(f"{where}: cannot be read as csv ({error})") from error
    if any(len(row) != 2 for row in rows):
        wrong = next(row for row in rows if len(row) != 2)
        raise DataError(f"{where}: a row of {len(wrong)} cells; a label map has two columns")
    body = rows[1:] if len(rows) > 1 and not any(map(_digits, rows[0])) else rows
    if all(_digits(first) and not _digits(second) for first, second in body):
        return [(name, int(number)) for number, name in body]
    if all(not _digits(second) for _, second in body):
        body = rows  # names for names: there is no telling a heading
    return [(name, _value(value) if value else None) for name, value in body]


def _listed(lines: list[str]) -> list[tuple[str, Label | None]]:
    if all(_WORDNET.fullmatch(line) for line in lines):
        return [(line[:9], number) for number, line in enumerate(lines)]
    for form, label, number in ((_ID_FIRST, 2, 1), (_ID_LAST, 1, 2)):
        found = [match for line in lines if (match := form.fullmatch(line))]
        # Names may end in numbers themselves: "digit 0", "digit 1".
        if len({match[label] for match in found}) == len(lines):
            return [(match[label], int(match[number])) for match in found]
    return [(line, number) for number, line in enumerate(lines)]


def _unique(pairs: Iterable[tuple[str, Label | None]], where: str) -> dict[str, Label | None]:
    entries: dict[str, Label | None] = {}
    for name, value in pairs:
        if name in entries and entries[name] != value:
            raise DataError(f"{where}: label {name!r} is given twice")
        entries[name] = value
    return entries


def _listing(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:_SHOWN])
    return shown + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
