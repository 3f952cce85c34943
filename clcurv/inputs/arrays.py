"""Arrays of inputs and labels: npz files."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from clcurv.errors import DataError, UnsafeFileError
from clcurv.inputs.source import FORMATS, SPLITS, Columns, Kind, Source

_ARRAY_NAMES = ("x", "data", "images", "inputs", "input_ids", "features", "x_train", "x_test")
_TARGET_NAMES = ("y", "labels", "label", "targets", "target", "y_train", "y_test")
_MAX_ARRAY_BYTES = 16 << 30
# Deflate reaches 1032 to one; real data hardly ever 20.
_BOMB_RATIO, _BOMB_BYTES = 100, 128 << 20


# Damage, an unknown compression, a password.
_BAD_ZIP = (OSError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError)


@contextmanager
def zipped_arrays(path: Path) -> Iterator[Mapping[str, Any]]:
    """The arrays of an npz file, checked before anything is unpacked.

    Raises:
        DataError: A zip file that is no npz, or is cut short.
        UnsafeFileError: It would unpack to more than the limit.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise DataError(
            f"{path}: a zip file that cannot be read ({error}; {path.stat().st_size} bytes)",
            hint="copy or download it again",
        ) from error
    names = [member.filename for member in members]
    if not names or any(not name.endswith(".npy") for name in names):
        what = "a torch file" if any(n.endswith("data.pkl") for n in names) else "a zip file"
        raise DataError(f"{path}: {what} is not read as data", hint=FORMATS)
    _check_sizes(path, members)
    with zipfile.ZipFile(path) as archive:
        for member in members:
            try:
                with archive.open(member) as stream:
                    check_header(stream, member.file_size, f"{path}: {member.filename}")
            except _BAD_ZIP as error:
                raise DataError(f"{path}: {member.filename} cannot be read ({error})") from error
    with np.load(path, allow_pickle=False) as arrays:
        yield arrays


def _check_sizes(path: Path, members: Sequence[zipfile.ZipInfo]) -> None:
    unpacked = sum(member.file_size for member in members)
    packed = sum(member.compress_size for member in members)
    if unpacked > _MAX_ARRAY_BYTES:
        raise UnsafeFileError(f"{path}: its arrays unpack to more than 16 GiB")
    if unpacked > _BOMB_BYTES and unpacked > _BOMB_RATIO * packed:
        raise UnsafeFileError(
            f"{path}: a zip bomb: {packed} bytes unpack to {unpacked}",
            hint="save real data with numpy.savez",
        )
    names = [member.filename for member in members]
    if len(set(names)) < len(names):
        raise DataError(f"{path}: it holds two arrays of one name")
    if packed > path.stat().st_size:
        raise DataError(f"{path}: its arrays overlap", hint="copy or download it again")


def check_header(stream: IO[bytes], size: int, name: str) -> None:
    """Whether an .npy file is as large as its header says; nothing else of it is read.

    Args:
        stream: The file, at its beginning.
        size: Its bytes.
        name: What to call it in messages.

    Raises:
        DataError: No .npy file, or the header lies.
    """
    try:
        version = np.lib.format.read_magic(stream)
        reads = np.lib.format.read_array_header_1_0
        if version != (1, 0):
            reads = np.lib.format.read_array_header_2_0
        shape, _, dtype = reads(stream)
    except (ValueError, EOFError, SyntaxError, RecursionError, MemoryError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{name}: no .npy array ({reason})") from error
    if dtype.hasobject:
        return  # refused when it is asked for
    claimed = math.prod(shape) * dtype.itemsize
    held = size - stream.tell()
    if any(length < 0 for length in shape) or claimed != held:
        raise DataError(
            f"{name}: the header claims {claimed} bytes (shape {_shape(shape)}), it holds {held}",
            hint="the file is cut short or was tampered with: make it again",
        )


def _shape(shape: Sequence[int]) -> str:
    return " × ".join(str(length) for length in shape[:6]) + (" × ..." if len(shape) > 6 else "")


def array_source(
    path: Path | str,
    arrays: Mapping[str, Any],
    columns: Columns | None,
    split: str | None,
    modality: str,
    needs_labels: bool,
) -> Source:
    """x and y out of an npz file.

    Raises:
        DataError: No such array, of another length, or not made of numbers.
        UnsafeFileError: An array holds pickled objects.
    """
    columns = columns or {}
    x_name = columns.get("image") or columns.get("text") or columns.get("array")
    x_name = _array_name(path, arrays, x_name, _ARRAY_NAMES, split, "inputs")
    x = _array(path, arrays, str(x_name))
    y = None
    y_name = _array_name(
        path, arrays, columns.get("label"), _TARGET_NAMES, split, "labels" if needs_labels else ""
    )
    if y_name is not None:
        y = _array(path, arrays, y_name)
        if len(y) != len(x):
            raise DataError(f"{path}: {x_name!r} has {len(x)} rows, {y_name!r} has {len(y)}")
    if x.ndim == 0 or (y is not None and y.ndim == 0):
        raise DataError(f"{path}: {x_name!r} and {y_name!r} must have one row per sample")
    kind: Kind = "array"
    if x.dtype.kind in "US":
        x, kind = x.astype(str), "text"
    elif modality == "image":
        kind = "image"
    return Source(
        format="npz",
        kind=kind,
        length=len(x),
        read=lambda row: str(x[row]) if kind == "text" else x[row],
        name=lambda row: f"{path}[{row}]",
        labels=None if y is None else list(y.tolist()),
        whole=None if kind == "text" else x,
    )


def _array_name(
    path: Path | str,
    arrays: Mapping[str, Any],
    wanted: Any,
    usual: Sequence[str],
    split: str | None,
    needed_as: str,
) -> str | None:
    if wanted is not None:
        if wanted in arrays:
            return str(wanted)
        raise DataError(
            f"{path}: no array {wanted!r} (there are: {', '.join(arrays)})",
            hint="name the arrays with --image-column and --label-column",
        )
    by_lower = {name.lower(): name for name in arrays}
    first = [f"{usual[0]}_{spelling}" for spelling in SPLITS.get(split or "", (split,))]
    for name in [*first, *usual] if split else usual:
        if name in by_lower:
            return by_lower[name]
    if not needed_as:
        return None
    raise DataError(
        f"{path}: no array that looks like the {needed_as} (there are: {', '.join(arrays)})",
        hint="save them as x and y, or name them with --image-column, --label-column",
    )


def _array(path: Path | str, arrays: Mapping[str, Any], name: str) -> np.ndarray[Any, Any]:
    try:
        array: np.ndarray[Any, Any] = np.asarray(arrays[name])
    except ValueError as error:
        if "allow_pickle" in str(error) or "Object arrays" in str(error):
            raise UnsafeFileError(
                f"{path}: array {name!r} holds pickled Python objects",
                hint="save it as a plain numeric or string array",
            ) from error
        raise DataError(f"{path}: array {name!r} cannot be read ({error})") from error
    except _BAD_ZIP as error:
        raise DataError(f"{path}: array {name!r} cannot be read ({error})") from error
    if array.dtype.kind == "c":
        raise DataError(
            f"{path}: array {name!r} holds complex numbers",
            hint="save real and imaginary parts side by side",
        )
    return array
