"""WebDataset: tar files whose members with one key are one sample (``0001.jpg``, ``0001.cls``).

The key ends at the first dot of a member's base name, what follows names the column
(github.com/webdataset/webdataset, "The WebDataset Format"). Nothing is unpacked: the headers are
listed once, and the members of the samples drawn are read where they are.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from clcurv.errors import DataError, UnsafeFileError
from clcurv.inputs.columns import LABELS, TEXTS, first_of, text_columns
from clcurv.inputs.source import IMAGE_SUFFIXES, SPLITS, Columns, Kind, Source, names_of
from clcurv.inputs.tables import files_of_split

_MEMBER = re.compile(r"((?:.*/|)[^./]+)\.([^/]+)", re.DOTALL)
_MAX_MEMBER = 256 << 20
_TEXT_NAMES = ("txt", "text", *(f"{name}.txt" for name in TEXTS), *TEXTS)
_LABEL_NAMES = ("cls", *(f"{name}.txt" for name in LABELS), *LABELS)
_SHOWN = 8

_Place = tuple[int, int]
_Members = dict[str, _Place]


@dataclass(frozen=True)
class _Column:
    """Where a value is: the first of some members that is there, perhaps a field of its JSON."""

    members: tuple[str, ...]
    fields: tuple[str, ...] = ()

    def __str__(self) -> str:
        name = ";".join(self.members)
        return f"{name}: {' + '.join(self.fields)}" if self.fields else name


def tar_files(path: Path) -> list[Path]:
    """Tar files in a folder (and its folders of splits), sorted by name."""
    places = [path, path / "data", *(path / name for names in SPLITS.values() for name in names)]
    return [
        file
        for place in places
        if place.is_dir()
        for file in sorted(place.iterdir(), key=lambda p: p.name)
        if file.suffix.lower() == ".tar" and file.is_file()
    ]


def open_shards(
    path: Path, split: str | None, columns: Columns | None, modality: str, needs_labels: bool
) -> Source:
    """Samples of one tar file or a folder of them.

    Columns are named by what follows the key (``jpg``, ``left.jpg``, several with ``;``), a field
    of a JSON member by its own name.

    Raises:
        DataError: Cut short, no samples, or columns that cannot be told.
    """
    files, note = files_of_split(path, tar_files, split)
    inputs: tuple[_Column, ...] = ()
    label: _Column | None = None
    kind: Kind = "image"
    rows: list[tuple[int, str, tuple[_Place | None, ...]]] = []
    labels: list[Any] = []
    for shard, file in enumerate(files):
        samples = list(_samples(file))
        if not inputs and samples:
            there = sorted({name for _, members in samples for name in members})
            fields = _fields(file, samples, there)
            label = _label_column(there, fields, str(file), columns, needs_labels)
            inputs, kind = _input_columns(there, fields, str(file), columns, modality, label)
        with file.open("rb") as stream:
            for key, members in samples:
                rows.append((shard, key, tuple(_place(members, column) for column in inputs)))
                if label is not None:
                    place = _place(members, label)
                    labels.append(_label(stream, place, label, f"{file}: {key}"))
    if not rows:
        raise DataError(
            f"{path}: no samples in the tar archive", hint="members are KEY.jpg, KEY.cls"
        )

    def name(row: int) -> str:
        return f"{files[rows[row][0]]}: {rows[row][1]}"

    def read(row: int) -> Any:
        shard, _, places = rows[row]
        with files[shard].open("rb") as stream:
            values = [
                _value(stream, place, column, kind, name(row))
                for place, column in zip(places, inputs, strict=True)
            ]
        flat = [part for value in values for part in (value if kind == "text" else [value])]
        return flat[0] if len(flat) == 1 else tuple(flat)

    shown = f"columns: {' + '.join(map(str, inputs))}" + (f" -> {label}" if label else "")
    shards = (f"{len(files)} shards",) if len(files) > 1 else ()
    return Source(
        format="webdataset",
        kind=kind,
        length=len(rows),
        read=read,
        name=name,
        labels=labels if label is not None else None,
        notes=(*((note,) if note else ()), *shards, shown),
    )


def _samples(path: Path) -> Iterator[tuple[str, _Members]]:
    """Key and members (name of the column -> offset and bytes) of every sample."""
    current, members = "", _Members()
    for name, offset, size in _listed(path):
        match = _MEMBER.fullmatch(name)
        if match is None or (name.startswith("__") and name.endswith("__")):
            continue
        key, column = match[1], match[2].lower()
        if key != current:
            if members:
                yield current, members
            current, members = key, {}
        if column in members:
            raise DataError(f"{path}: {name} is in the archive twice")
        members[column] = (offset, size)
    if members:
        yield current, members


def _listed(path: Path) -> Iterator[tuple[str, int, int]]:
    """Name, offset and size of the plain files in an archive, without reading them."""
    total = path.stat().st_size
    damaged = f"{path}: the tar archive is damaged or cut short ({total} bytes)"
    hint = "copy or download it again"
    try:
        with tarfile.open(path, "r:") as archive:
            while (member := archive.next()) is not None:
                vars(archive)["members"].clear()  # the library keeps all it has seen
                # Sparse members claim more than they hold; links and devices lead elsewhere.
                if not member.isreg() or member.issparse():
                    continue
                if member.size < 0 or member.offset_data + member.size > total:
                    raise DataError(f"{damaged}: {member.name}", hint=hint)
                yield member.name, member.offset_data, member.size
            end = archive.offset
    except DataError:
        raise
    except Exception as error:  # hostile headers surface as many types
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{damaged}: {reason}", hint=hint) from error
    with path.open("rb") as stream:
        stream.seek(end)
        block = stream.read(tarfile.BLOCKSIZE)
    # The library takes a header it cannot read for the end.
    if len(block) < tarfile.BLOCKSIZE or any(block):
        raise DataError(f"{damaged}: no end mark at byte {end}", hint=hint)


def _fields(
    path: Path, samples: Sequence[tuple[str, _Members]], there: Sequence[str]
) -> dict[str, list[str]]:
    """Fields of the JSON members, as the first one of each kind has them."""
    found: dict[str, list[str]] = {}
    for column in there:
        if column.rpartition(".")[2] != "json":
            continue
        key, place = next((k, m[column]) for k, m in samples if column in m)
        with path.open("rb") as stream:
            name = f"{path}: {key}"
            found[column] = list(_json(_bytes(stream, place, name), name))
    return found


def _label_column(
    there: Sequence[str],
    fields: Mapping[str, list[str]],
    where: str,
    columns: Columns | None,
    needs_labels: bool,
) -> _Column | None:
    wanted = (columns or {}).get("label")
    if wanted is not None:
        named = _named(wanted, there, fields, where)
        if len(named) > 1:
            raise DataError(f"{where}: labels come from one member of a sample, not {len(named)}")
        return named[0]
    if (usual := first_of(_LABEL_NAMES, there)) is not None:
        return _Column((usual,))
    for column, names in fields.items():
        if (usual := first_of(LABELS, names)) is not None:
            return _Column((column,), (usual,))
    if not needs_labels:
        return None
    raise DataError(
        f"{where}: no labels among {_listing(there, fields)}",
        hint="name the member or the JSON field with --label-column NAME",
    )


def _input_columns(
    there: Sequence[str],
    fields: Mapping[str, list[str]],
    where: str,
    columns: Columns | None,
    modality: str,
    label: _Column | None,
) -> tuple[tuple[_Column, ...], Kind]:
    kinds: dict[str, Kind] = {"image": "image", "text": "text", "array": "array"}
    for key, kind in kinds.items():
        wanted = (columns or {}).get(key)
        if wanted is not None:
            return _named(wanted, there, fields, where), kind
    free = [name for name in there if label is None or label.fields or name not in label.members]
    if modality == "image":
        images = [name for name in free if f".{name}" in IMAGE_SUFFIXES]
        images = images or [n for n in free if f".{n.rpartition('.')[2]}" in IMAGE_SUFFIXES][:2]
        if images and (len(images) == 1 or all("." not in name for name in images)):
            return (_Column(tuple(images)),), "image"
    if modality == "text":
        if (usual := first_of(_TEXT_NAMES, free)) is not None:
            return (_Column((usual,)),), "text"
        for column, names in fields.items():
            if texts := text_columns(names):
                return (_Column((column,), texts),), "text"
    arrays = [name for name in free if name.rpartition(".")[2] == "npy"]
    if len(arrays) == 1:
        return (_Column((arrays[0],)),), "image" if modality == "image" else "array"
    raise DataError(
        f"{where}: which member holds the {modality} cannot be told among "
        f"{_listing(there, fields)}",
        hint="it must be the only .npy member"
        if modality == "array"
        else f"name it with --{modality}-column NAME",
    )


def _named(
    wanted: Any, there: Sequence[str], fields: Mapping[str, list[str]], where: str
) -> tuple[_Column, ...]:
    """Columns as the user names them."""
    found: list[_Column] = []
    for name in names_of(wanted):
        members = tuple(part.strip().lower() for part in name.split(";"))
        if any(member in there for member in members):
            found.append(_Column(members))
            continue
        holder = next((column for column, names in fields.items() if name in names), None)
        if holder is None:
            raise DataError(
                f"{where}: no member or field {name!r} (there are: {_listing(there, fields)})",
                hint="name them with --image-column, --text-column, --label-column",
            )
        found.append(_Column((holder,), (name,)))
    return tuple(found)


def _listing(there: Sequence[str], fields: Mapping[str, list[str]]) -> str:
    names = [f"{name} ({', '.join(fields[name])})" if name in fields else name for name in there]
    more = ", ..." if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _place(members: _Members, column: _Column) -> _Place | None:
    return next((members[name] for name in column.members if name in members), None)


def _bytes(stream: Any, place: _Place, name: str) -> bytes:
    offset, size = place
    if size > _MAX_MEMBER:
        raise UnsafeFileError(f"{name}: {size} bytes are too many for one sample")
    stream.seek(offset)
    content: bytes = stream.read(size)
    if len(content) < size:
        raise DataError(f"{name}: the archive ends within it", hint="copy or download it again")
    return content


def _json(content: bytes, name: str) -> Mapping[str, Any]:
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{name}: its JSON cannot be read ({error})") from error
    if not isinstance(fields, dict):
        raise DataError(f"{name}: its JSON is no object with fields")
    return fields


def _text(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise DataError(f"{name}: not UTF-8 text") from error


def _label(stream: Any, place: _Place | None, column: _Column, name: str) -> Any:
    """A number or a name; None where the sample has none."""
    if place is None:
        return None
    content = _bytes(stream, place, name)
    if column.fields:
        values = [_field(content, field, name) for field in column.fields]
        return values[0] if len(values) == 1 else values
    text = _text(content, name)
    return int(text) if re.fullmatch(r"-?\d{1,18}", text, re.ASCII) else text


def _field(content: bytes, field: str, name: str) -> Any:
    value = _json(content, name).get(field)
    if isinstance(value, dict):
        raise DataError(f"{name}: field {field!r} holds an object")
    return value


def _value(stream: Any, place: _Place | None, column: _Column, kind: Kind, name: str) -> Any:
    if place is None:
        raise DataError(f"{name}: there is no {column} in the sample")
    content = _bytes(stream, place, name)
    if kind == "text":
        values = [_field(content, field, name) for field in column.fields]
        texts = values if column.fields else [_text(content, name)]
        if any(not isinstance(text, str) for text in texts):
            raise DataError(f"{name}: the text is missing")
        return texts
    if content.startswith(b"\x93NUMPY"):
        return _array(content, name)
    if kind == "array":
        raise DataError(f"{name}: {column} is no .npy array")
    return content


def _array(content: bytes, name: str) -> np.ndarray[Any, Any]:
    from clcurv.inputs.arrays import check_header

    check_header(io.BytesIO(content), len(content), name)
    try:
        array: np.ndarray[Any, Any] = np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise DataError(f"{name}: the array cannot be read ({error})") from error
    return array
