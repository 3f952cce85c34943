"""Safetensors files that lie about what they hold."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any


def safetensors_lie(folder: Path) -> Path:
    """A header longer than the file."""
    path = folder / "lie.safetensors"
    path.write_bytes(struct.pack("<Q", 10_000_000) + b"{}")
    return path


def safetensors_short(folder: Path) -> Path:
    """A header that claims more data than there is."""
    path = folder / "short.safetensors"
    header = json.dumps({"w": {"dtype": "F32", "shape": [1000], "data_offsets": [0, 4000]}})
    path.write_bytes(struct.pack("<Q", len(header)) + header.encode() + b"\0" * 16)
    return path


def _safetensors(path: Path, header: str | dict[str, Any], data: bytes = b"") -> Path:
    spelled = (header if isinstance(header, str) else json.dumps(header)).encode()
    path.write_bytes(struct.pack("<Q", len(spelled)) + spelled + data)
    return path


def _claim(shape: list[int], *offsets: int) -> dict[str, Any]:
    return {"dtype": "F32", "shape": shape, "data_offsets": [*offsets]}


def safetensors_twice(folder: Path) -> Path:
    """One name, two shapes: readers differ in which they take."""
    first, second = json.dumps(_claim([2, 2], 0, 16)), json.dumps(_claim([4, 1], 0, 16))
    path = folder / "twice.safetensors"
    return _safetensors(path, f'{{"w": {first}, "w": {second}}}', b"\0" * 16)


def safetensors_overlap(folder: Path) -> Path:
    header = {"a": _claim([4], 0, 16), "b": _claim([4], 0, 16)}
    return _safetensors(folder / "shared.safetensors", header, b"\0" * 16)


def safetensors_hole(folder: Path) -> Path:
    header = {"a": _claim([1], 0, 4), "b": _claim([1], 8, 12)}
    return _safetensors(folder / "hole.safetensors", header, b"\0" * 12)


def safetensors_overflow(folder: Path) -> Path:
    """A shape whose product leaves 64 bits and comes out as nothing."""
    return _safetensors(folder / "overflow.safetensors", {"w": _claim([2**32, 2**32], 0, 0)})


def safetensors_deep(folder: Path) -> Path:
    return _safetensors(folder / "nested.safetensors", '{"w":' + "[" * 200_000)


def safetensors_header(folder: Path) -> Path:
    """A header of 90 MB; the file is mostly a hole."""
    path = folder / "header.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 90_000_000) + b"{")
        file.truncate(91_000_000)
    return path
