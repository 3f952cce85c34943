"""A path of any kind -> a `Source`.

What a file is, is decided by its content; names only decide among text formats.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clcurv.errors import DataError
from clcurv.inputs.arrays import array_source, zipped_arrays
from clcurv.inputs.imagefolder import class_root_exists, has_metadata, read_image_folder
from clcurv.inputs.labelmap import apply_label_map
from clcurv.inputs.source import FORMATS, IMAGE_SUFFIXES, Columns, Source, sniff
from clcurv.inputs.tables import is_saved_dataset, open_tables, table_files
from clcurv.inputs.webdataset import open_shards, tar_files


@contextmanager
def open_source(
    path: Path,
    *,
    split: str | None,
    columns: Columns | None,
    modality: str,
    needs_labels: bool,
    n: int | None = None,
    seed: int = 0,
) -> Iterator[Source]:
    """Open a file or folder; what it needs on disk is gone when the context ends.

    Args:
        path: Image folder, npz file, WebDataset tar, table file, or a folder of tables or tars.
        split: ``train``, ``val``, ``test`` or a name in the data; None takes the first
            there is, in this order.
        columns: Which column (or array of an npz) is ``image``, ``text`` (one name or a
            pair) and ``label``; and the ``label_map``.
        modality: What the model eats.
        needs_labels: Whether a missing label column is an error.
        n, seed: A sample of so many rows is all that is wanted: very large tables then keep no
            more, drawn with this seed. None keeps every row.

    Raises:
        DataError: It cannot be read, is empty, or has no such column or split.
        UnsafeFileError: It holds pickled objects or points outside itself.
    """
    if not path.exists():
        raise DataError(f"{path}: no such file or folder", hint="check the path given to --data")
    with _opened(path, split, columns, modality, needs_labels, n, seed) as source:
        entries = (columns or {}).get("label_map")
        yield source if entries is None else apply_label_map(source, entries)


@contextmanager
def _opened(
    path: Path,
    split: str | None,
    columns: Columns | None,
    modality: str,
    needs_labels: bool,
    n: int | None,
    seed: int,
) -> Iterator[Source]:
    asked = (path, split, columns, modality, needs_labels)
    kind = _kind(path)
    if kind == "images":
        yield read_image_folder(path, split=split)
    elif kind == "tar":
        yield open_shards(*asked)
    elif kind == "npz":
        with zipped_arrays(path) as arrays:
            yield array_source(path, arrays, columns, split, modality, needs_labels)
    else:
        with open_tables(*asked, n=n, seed=seed) as source:
            yield source


def _kind(path: Path) -> str:
    """``images``, or what `sniff` says of a file; a folder of tables is a ``folder``."""
    if not path.is_dir():
        if not path.is_file():
            raise DataError(f"{path}: a device or pipe, not a file", hint=FORMATS)
        return sniff(path)
    if is_saved_dataset(path) or has_metadata(path):
        return "folder"
    if class_root_exists(path):
        return "images"
    if table_files(path):
        return "folder"
    if tar_files(path):
        return "tar"
    raise _no_data(path)


def _no_data(path: Path) -> DataError:
    images = [p.name for p in path.iterdir() if p.suffix.lower() in IMAGE_SUFFIXES]
    if images:
        return DataError(
            f"{path}: {len(images)} images but no labels",
            hint="put the images of each class into a folder of its own, or add a metadata.csv",
        )
    return DataError(f"{path}: the folder holds no images and no tables", hint=FORMATS)
