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
from clcurv.inputs.source import FORMATS, IMAGE_SUFFIXES, Columns, Source, sniff
from clcurv.inputs.tables import is_saved_dataset, open_tables, table_files


@contextmanager
def open_source(
    path: Path, *, split: str | None, columns: Columns | None, modality: str, needs_labels: bool
) -> Iterator[Source]:
    """Open a file or folder; what it needs on disk is gone when the context ends.

    Args:
        path: Image folder, npz file, table file, or a folder of tables.
        split: ``train``, ``val``, ``test`` or a name in the data; None takes the first
            there is, in this order.
        columns: Which column (or array of an npz) is ``image``, ``text`` (one name or a
            pair) and ``label``.
        modality: What the model eats.
        needs_labels: Whether a missing label column is an error.

    Raises:
        DataError: It cannot be read, is empty, or has no such column or split.
        UnsafeFileError: It holds pickled objects or points outside itself.
    """
    if not path.exists():
        raise DataError(f"{path}: no such file or folder", hint="check the path given to --data")
    if path.is_dir():
        if is_saved_dataset(path) or has_metadata(path):
            manager = open_tables(path, split, columns, modality, needs_labels)
        elif class_root_exists(path):
            yield read_image_folder(path, split=split)
            return
        elif table_files(path):
            manager = open_tables(path, split, columns, modality, needs_labels)
        else:
            raise _no_data(path)
        with manager as source:
            yield source
        return
    kind = sniff(path)
    if kind == "npz":
        with zipped_arrays(path) as arrays:
            yield array_source(path, arrays, columns, split, modality, needs_labels)
    else:
        with open_tables(path, split, columns, modality, needs_labels) as source:
            yield source


def _no_data(path: Path) -> DataError:
    images = [p.name for p in path.iterdir() if p.suffix.lower() in IMAGE_SUFFIXES]
    if images:
        return DataError(
            f"{path}: {len(images)} images but no labels",
            hint="put the images of each class into a folder of its own, or add a metadata.csv",
        )
    return DataError(f"{path}: the folder holds no images and no tables", hint=FORMATS)
