"""Tables through Hugging Face `datasets`: csv, tsv, json(l), parquet, arrow, save_to_disk.

Files are handed over one by one under neutral names, so neither a folder's README nor a
glob character in a name nor an index can point anywhere else; the cache lives in a
temporary folder that is removed when the source is closed.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from clcurv.errors import DataError, UnsafeFileError
from clcurv.inputs.columns import input_columns, label_columns, used
from clcurv.inputs.source import HEAD, SPLITS, Columns, Kind, Source, separator_of, sniff
from clcurv.inputs.streamed import sample_rows
from clcurv.inputs.tablecheck import check_table

_SUFFIXES = frozenset([".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".parquet", ".arrow"])
_NO_DATA = frozenset(["dataset_info.json", "state.json", "dataset_infos.json", "config.json"])
# Larger tables are read row by row; smaller ones become one arrow file in the temporary folder.
_STREAM_FROM = 1 << 30


def is_saved_dataset(path: Path) -> bool:
    """Whether `Dataset.save_to_disk` or `DatasetDict.save_to_disk` made the folder."""
    return (path / "dataset_dict.json").is_file() or (path / "state.json").is_file()


def table_files(path: Path) -> list[Path]:
    """Table files in a folder (and its ``data`` folder), sorted by name."""
    places = [path, path / "data", *(path / name for names in SPLITS.values() for name in names)]
    return [
        file
        for place in places
        if place.is_dir()
        for file in sorted(place.iterdir(), key=lambda p: p.name)
        if file.suffix.lower() in _SUFFIXES and file.name not in _NO_DATA and file.is_file()
    ]


@contextmanager
def open_tables(
    path: Path,
    split: str | None,
    columns: Columns | None,
    modality: str,
    needs_labels: bool,
    *,
    n: int | None = None,
    seed: int = 0,
) -> Iterator[Source]:
    """Rows of one table file, a folder of them, or a save_to_disk folder.

    Args:
        path, split, columns, modality, needs_labels: As in `open_source`.
        n, seed: A sample of so many rows is all that is wanted: of large files only such a one,
            drawn while they are read, is kept. None keeps all rows.

    Raises:
        DataError: Unreadable, no such split or column, or columns that cannot be told.
        UnsafeFileError: An index that names files outside its folder.
    """
    with ExitStack() as stack:
        cache = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="clcurv-")))
        stack.enter_context(quiet_datasets())
        population = None
        if path.is_dir() and is_saved_dataset(path):
            table, note = _saved(path, split)
            form = "arrow"
        else:
            files, note = files_of_split(path, table_files, split)
            large = n is not None and sum(file.stat().st_size for file in files) > _STREAM_FROM
            table, form = _load(files, cache, streaming=large)
            if large and n is not None:
                asked = (columns, modality, needs_labels)
                try:
                    table, population, drawn = sample_rows(table, str(path), asked, n=n, seed=seed)
                except DataError:
                    raise
                except Exception as error:  # as when a whole table is loaded
                    raise _unreadable(files[0], form, error) from error
                note = f"{note}; {drawn}" if note else drawn
        notes = (note,) if note else ()
        yield table_source(
            table,
            form=form,
            where=str(path),
            folder=path if path.is_dir() else path.parent,
            columns=columns,
            modality=modality,
            needs_labels=needs_labels,
            notes=notes,
            population=population,
        )


def table_source(
    table: Any,
    *,
    form: str,
    where: str,
    folder: Path,
    columns: Columns | None,
    modality: str,
    needs_labels: bool,
    notes: tuple[str, ...] = (),
    population: int | None = None,
) -> Source:
    """Rows of a `datasets.Dataset`.

    Args:
        table: The data set, any format set on it is undone.
        form: Name of the format for the report.
        where: What to call it in messages.
        folder: Where relative image paths start.
        columns: As in `open_source`.
        modality: What the model eats.
        needs_labels: Whether a missing label column is an error.
        notes: Sentences for the report.
        population: Rows that those of the table were drawn from; None where they are all.

    Raises:
        DataError: Empty, or no such column, or columns that cannot be told.
    """
    import datasets

    table = table.with_format(None)
    if not table.num_rows:
        raise DataError(f"{where}: the table has no rows")
    label = label_columns(table.column_names, where, columns, needs_labels)
    inputs, kind = input_columns(table, where, columns, modality, label)
    labels, class_names = _labels(table, label, where) if label else (None, None)
    values = table.select_columns(list(inputs))
    for name in inputs:
        if isinstance(values.features[name], datasets.Image):
            values = values.cast_column(name, datasets.Image(decode=False))

    def read(row: int) -> Any:
        record = _record(values, row, where)
        cells = [record[name] for name in inputs]
        return _cell(cells, kind, folder, f"{where}: row {row}")

    return Source(
        format=form,
        kind=kind,
        length=table.num_rows,
        read=read,
        name=lambda row: f"{where}: row {row}",
        labels=labels,
        class_names=class_names,
        notes=(*notes, used(inputs, label, table.column_names)),
        population=population,
    )


@contextmanager
def quiet_datasets() -> Iterator[None]:
    """Without the library's progress bars and notices."""
    import datasets
    from datasets.utils import logging

    shown, verbosity = datasets.is_progress_bar_enabled(), logging.get_verbosity()
    datasets.disable_progress_bars()
    logging.set_verbosity(logging.CRITICAL)  # what is wrong with a file becomes our own error
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            datasets.enable_progress_bars()


def _saved(path: Path, split: str | None) -> tuple[Any, str]:
    import datasets

    note = ""
    if (path / "dataset_dict.json").is_file():
        names = _json(path / "dataset_dict.json").get("splits", [])
        if any(not isinstance(n, str) or Path(n).name != n for n in names):
            raise UnsafeFileError(f"{path}/dataset_dict.json names splits outside the folder")
        name, note = choose_split(path, split, names)
        path = path / name
    elif split is not None:
        own = str(_json(path / "state.json").get("_split"))
        choose_split(path, split, [own])
    state = _json(path / "state.json")
    for entry in state.get("_data_files", []):
        if Path(str(entry.get("filename"))).name != entry.get("filename"):
            raise UnsafeFileError(f"{path}/state.json names a file outside the folder")
    try:
        return datasets.load_from_disk(str(path)), note
    except Exception as error:  # pyarrow and datasets raise whatever a damaged file makes them
        raise _unreadable(path, "a save_to_disk folder", error) from error


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as JSON ({error})") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: not the JSON object that save_to_disk writes")
    return content


def files_of_split(
    path: Path, listed: Callable[[Path], list[Path]], split: str | None
) -> tuple[list[Path], str]:
    """The file itself, or the files of one split of a folder, told by their names; and a note.

    Args:
        path: A file or folder.
        listed: Lists the files that matter in a folder.
        split: As in `open_source`.

    Raises:
        DataError: There is no such split.
    """
    if path.is_file():
        if split is not None:
            raise DataError(f"{path}: a single file has no split {split!r}", hint="leave it out")
        return [path], ""
    groups: dict[str, list[Path]] = {}
    for file in listed(path):
        groups.setdefault(_split_of(file, path), []).append(file)
    if list(groups) == ["all"]:
        if split is not None:
            raise DataError(f"{path}: no split {split!r}; its files name none")
        return groups["all"], ""
    groups.pop("all", None)
    name, note = choose_split(path, split, list(groups))
    return groups[name], note


def _split_of(file: Path, root: Path) -> str:
    place = "" if file.parent in (root, root / "data") else file.parent.name
    words = (place or file.stem).lower().replace("_", "-").replace(".", "-").split("-")
    return next((k for k, spellings in SPLITS.items() if set(words) & set(spellings)), "all")


def choose_split(path: Path | str, split: str | None, names: Sequence[str]) -> tuple[str, str]:
    """Which of the splits called `names` is meant, and a note that says so."""

    def canonical(name: str) -> str:
        return next((k for k, names in SPLITS.items() if name.lower() in names), name)

    if not names:
        raise DataError(f"{path}: it has no splits")
    if split is None:
        known = [n for key in SPLITS for n in names if canonical(n) == key]
        chosen = (known or list(names))[0]
    else:
        matching = [n for n in names if n == split] or [
            n for n in names if canonical(n) == canonical(split)
        ]
        if not matching:
            raise DataError(
                f"{path}: no split {split!r} (there are: {', '.join(names)})",
                hint="leave --split out",
            )
        chosen = matching[0]
    others = [n for n in names if n != chosen]
    return chosen, f"split {chosen!r} taken" + (
        f" (there are also {', '.join(others)})" if others else ""
    )


def _load(files: Sequence[Path], cache: Path, *, streaming: bool) -> tuple[Any, str]:
    kinds = {sniff(file) for file in files}
    if len(kinds) > 1:
        raise DataError(
            f"{files[0].parent}: tables of several formats ({', '.join(sorted(kinds))})",
            hint="give one of the files",
        )
    kind = kinds.pop()
    if kind in ("npz", "tar"):
        what = "zip file" if kind == "npz" else "tar archive"
        raise DataError(f"{files[0]}: a {what} is not read as a table")
    for file in files:
        check_table(file, kind)
    import datasets

    builder = {"tsv": "csv"}.get(kind, kind)
    links = []
    for number, file in enumerate(files):
        link = cache / f"part-{number:05d}.{kind}"
        link.symlink_to(file.resolve())
        links.append(str(link))
    options: dict[str, Any] = {}
    if builder == "csv":
        # "NA", "null" and "None" are words in a text table; only an empty cell is missing.
        with files[0].open("rb") as stream:
            separator = separator_of(stream.read(HEAD))
        options = {"sep": separator, "keep_default_na": False, "na_values": [""]}
    try:
        with _uncounted():
            table = datasets.load_dataset(
                builder,
                data_files=links,
                split="train",
                cache_dir=str(cache / "cache"),
                streaming=streaming,
                **options,
            )
    except Exception as error:  # pandas, pyarrow and datasets raise a dozen unrelated types
        raise _unreadable(files[0], kind, error) from error
    suffix = files[0].suffix.lower().lstrip(".")
    return table, suffix if kind == "json" and suffix in ("jsonl", "ndjson") else kind


@contextmanager
def _uncounted() -> Iterator[None]:
    """Without `datasets` telling its makers over the network that a table was read."""
    import datasets

    before = datasets.config.HF_UPDATE_DOWNLOAD_COUNTS
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False
    try:
        yield
    finally:
        datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = before


def _unreadable(path: Path, kind: str, error: BaseException) -> DataError:
    return DataError(f"{path}: cannot be read as {kind}: {_reason(error)}")


def _reason(error: BaseException) -> str:
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _record(table: Any, row: int, where: str) -> dict[str, Any]:
    # Arrow checks neither text nor nested values when it loads, only when a cell is asked for.
    try:
        record: dict[str, Any] = table[row]
    except Exception as error:
        raise DataError(f"{where}: row {row} cannot be read: {_reason(error)}") from error
    return record


def _labels(
    table: Any, names: Sequence[str], where: str
) -> tuple[list[Any], tuple[str, ...] | None]:
    table = table.select_columns(list(names))
    try:
        columns = table[:]
    except Exception:  # some cell: read one by one, the error names its row
        records = [_record(table, row, where) for row in range(table.num_rows)]
        columns = {name: [record[name] for record in records] for name in names}
    if len(names) > 1:
        rows = zip(*(columns[name] for name in names), strict=True)
        return [None if None in row else list(row) for row in rows], None
    (name,) = names
    values = list(columns[name])
    stated = getattr(table.features[name], "names", None)
    return values, tuple(stated) if stated else None


def _cell(cells: Sequence[Any], kind: Kind, folder: Path, name: str) -> Any:
    if kind == "text":
        if any(not isinstance(cell, str) for cell in cells):
            raise DataError(f"{name}: the text is missing")
        return cells[0] if len(cells) == 1 else tuple(cells)
    if any(cell is None for cell in cells):
        raise DataError(f"{name}: the {kind} is missing")
    if kind == "array":
        return np.asarray(cells[0] if len(cells) == 1 else cells)
    cell = cells[0]
    if isinstance(cell, dict):
        cell = cell["bytes"] if cell.get("bytes") is not None else cell.get("path")
    if isinstance(cell, bytes):
        return cell
    if isinstance(cell, str):
        if "://" in cell:
            raise DataError(f"{name}: the image is a link ({cell}); nothing is downloaded")
        return folder / cell
    return np.asarray(cell)
