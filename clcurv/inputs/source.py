"""What every data format is turned into (rows read one at a time), and telling files apart."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from clcurv.errors import DataError

Kind = Literal["image", "text", "array", "prepared"]
Columns = Mapping[str, Any]
"""What holds what: ``image``, ``text``, ``array``, ``label`` -> a name, or several (a list, or
separated by commas); and ``label_map`` -> entries of `clcurv.inputs.labelmap.read_label_map`."""

IMAGE_SUFFIXES = frozenset(
    f".{name}"
    for name in "jpg jpeg png webp bmp tif tiff gif ppm pgm pbm pnm".split()  # noqa: SIM905
)
SPLITS: dict[str, tuple[str, ...]] = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing"),
}
HEAD = 4096
"""Bytes of a file that tell what it is."""
FORMATS = (
    "give an image folder, npz, csv, tsv, json(l), parquet, arrow, WebDataset tars or a "
    "save_to_disk folder"
)


@dataclass(frozen=True)
class Source:
    """A data set before the draw.

    Attributes:
        format: As in `Samples.format`.
        kind: What `read` returns: ``image`` (a path, bytes or an array H,W[,C]), ``text``
            (a string or a pair of strings), ``array`` (anything with numbers) or ``prepared``
            (a tensor, or a dict of them, that the model takes as it is).
        length: Number of rows.
        read: Row number -> value; raises `DataError` for a row that cannot be read.
        name: Row number -> what to call the row in a message.
        labels: Label of every row (None where it has none); None without labels.
        class_names: Every class there is, also those without rows, where that is known.
        population: Rows that `length` of them were drawn from; None where these are all.
        whole: All values as one array (or enough of them to tell layout and range), where
            the values are numbers.
        notes: Sentences for the report.
    """

    format: str
    kind: Kind
    length: int
    read: Callable[[int], Any]
    name: Callable[[int], str]
    labels: Sequence[Any] | None
    class_names: tuple[str, ...] | None = None
    whole: np.ndarray[Any, Any] | None = None
    notes: tuple[str, ...] = ()
    population: int | None = None


def names_of(value: Any) -> tuple[str, ...]:
    """One name or several, as a user wrote them."""
    several = value.split(",") if isinstance(value, str) else value
    return tuple(str(name).strip() for name in several)


def sniff(path: Path) -> Literal["npz", "parquet", "arrow", "json", "csv", "tsv", "tar"]:
    """Tell what a file is from its first bytes.

    Raises:
        DataError: It is empty or nothing that is read as data, saying what it is instead.
    """
    with path.open("rb") as file:
        head = file.read(HEAD)
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if not text:
        raise DataError(f"{path}: the file is empty ({path.stat().st_size} bytes)")
    if head.startswith(b"version https://git-lfs"):
        raise DataError(f"{path}: a Git LFS pointer, not the data", hint="run `git lfs pull`")
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith((b"ARROW1", b"\xff\xff\xff\xff")):
        return "arrow"
    if head.startswith(b"PK\x03\x04"):
        return "npz"
    if head[257:262] == b"ustar":
        return "tar"
    if text[:1] == b"<":
        raise DataError(f"{path}: an HTML or XML page, not data", hint="download the file again")
    what = _foreign(head)
    if what:
        raise DataError(f"{path}: {what} is not read as data", hint=FORMATS)
    if text[:1] in (b"{", b"[") and path.suffix.lower() not in (".csv", ".tsv"):
        return "json"
    return "tsv" if separator_of(head) == "\t" else "csv"


def separator_of(head: bytes) -> str:
    """What separates the columns of a text table: the commonest in its first line, outside quotes.

    Args:
        head: The beginning of the file.
    """
    first_line = (head.lstrip(b"\xef\xbb\xbf \t\r\n").splitlines() or [b""])[0]
    bare = re.sub(rb'"[^"]*"', b"", first_line)
    return max(",\t;|", key=lambda mark: bare.count(mark.encode()))


def _foreign(head: bytes) -> str | None:
    for magic, what in (
        (b"\x93NUMPY", "a single .npy array (it has no labels; save x and y as npz)"),
        (b"\x1f\x8b", "a gzip file (decompress it first)"),
        (b"\x80", "a pickle"),
        (b"\xff\xd8\xff", "a single image"),
        (b"\x89PNG", "a single image"),
        (b"%PDF", "a PDF file"),
        (b"SQLite format 3", "an SQLite database"),
    ):
        if head.startswith(magic):
            return what
    return "a binary file" if b"\x00" in head else None
