"""What a table file may not hold, looked for before a parser sees it."""

from __future__ import annotations

import mmap
import re
from pathlib import Path

import numpy as np

from clcurv.errors import DataError, UnsafeFileError

_MAX_DEPTH = 256  # arrow stops at 64 levels; parsers of JSON crash on some thousand
_CHUNK = 16 << 20
# A string (or the rest of the file, where it has no end), or a bracket outside of one.
_JSON_PART = re.compile(rb'"(?:[^"\\]|\\.)*(?:"|\Z)|[\[{]|[\]}]', re.DOTALL)
_ROWS_PER_BYTE = 10


def check_table(path: Path, kind: str) -> None:
    """Refuse a file that would crash or drown the library that reads it.

    Args:
        path: The file.
        kind: What `sniff` says it is.

    Raises:
        DataError: JSON nested too deeply.
        UnsafeFileError: A parquet file of run-length encoded rows far beyond its size.
    """
    if kind == "json" and _may_be_deep(path) and _is_deep(path):
        raise DataError(f"{path}: nested more than {_MAX_DEPTH} levels deep")
    if kind == "parquet":
        _check_parquet(path)


def _may_be_deep(path: Path) -> bool:
    """An upper bound on the depth, as brackets within strings count too."""
    steps = np.zeros(256, np.int8)
    steps[list(b"[{")], steps[list(b"]}")] = 1, -1
    depth = lowest = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            levels = depth + np.cumsum(steps[np.frombuffer(chunk, np.uint8)], dtype=np.int64)
            lowest = min(lowest, int(levels.min()))
            # Brackets that close within strings hide as many that open.
            if int(levels.max()) - lowest > _MAX_DEPTH:
                return True
            depth = int(levels[-1])
    return False


def _is_deep(path: Path) -> bool:
    depth = 0
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for part in _JSON_PART.finditer(content):
            mark = content[part.start()]
            if mark in b"[{":
                depth += 1
                if depth > _MAX_DEPTH:
                    return True
            elif mark in b"]}":
                depth = max(depth - 1, 0)
    return False


def _check_parquet(path: Path) -> None:
    import pyarrow.parquet

    size = path.stat().st_size
    try:
        rows = pyarrow.parquet.read_metadata(path).num_rows
    except Exception:  # the library that loads it tells what is wrong
        return
    if rows > _ROWS_PER_BYTE * size:
        raise UnsafeFileError(
            f"{path}: {size} bytes that claim {rows} rows: a bomb of repeated rows",
            hint="give data in which the rows differ",
        )
