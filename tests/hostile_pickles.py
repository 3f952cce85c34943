"""Torch files with pickles written by hand, opcode by opcode: lies that `torch.save` cannot tell.

None carries a live payload: they claim, nest or multiply, and would cost memory or crash.
"""

from __future__ import annotations

import pickle
import struct
import zipfile
from pathlib import Path

BEGIN, STOP = b"\x80\x02", b"."
MARK, EMPTY_DICT, SETITEM, SETITEMS, REDUCE = b"(", b"}", b"s", b"u", b"R"
LEGACY_HEAD = (
    pickle.dumps(0x1950A86A20F9469CFC6C, 2)
    + pickle.dumps(1001, 2)
    + pickle.dumps({"protocol_version": 1001, "little_endian": True}, 2)
)


def name(module: str, attribute: str) -> bytes:
    return f"c{module}\n{attribute}\n".encode()


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def number(value: int) -> bytes:
    if -(2**31) <= value < 2**31:
        return b"J" + struct.pack("<i", value)
    return b"\x8a\x09" + value.to_bytes(9, "little", signed=True)


def items(*parts: bytes) -> bytes:
    """A tuple."""
    return MARK + b"".join(parts) + b"t"


def call(module: str, attribute: str, *parts: bytes) -> bytes:
    return name(module, attribute) + items(*parts) + REDUCE


def storage(numel: bytes, *, view: bytes = b"") -> bytes:
    """By its key ``0``."""
    described = (text("storage"), name("torch", "FloatStorage"), text("0"), text("cpu"), numel)
    return items(*described, *((view,) if view else ())) + b"Q"


def tensor(stored: bytes, size: tuple[int, ...], stride: tuple[int, ...], offset: int = 0) -> bytes:
    return call(
        "torch._utils",
        "_rebuild_tensor_v2",
        *(stored, number(offset), items(*map(number, size)), items(*map(number, stride))),
        *(b"\x89", call("collections", "OrderedDict")),
    )


def mapping(**values: bytes) -> bytes:
    return EMPTY_DICT + MARK + b"".join(text(k) + v for k, v in values.items()) + SETITEMS


def zipped(path: Path, pickled: bytes, *, nbytes: int = 16, folder: str = "archive") -> Path:
    """A torch file with this pickle and one storage."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{folder}/data.pkl", BEGIN + pickled + STOP)
        archive.writestr(f"{folder}/byteorder", "little")
        archive.writestr(f"{folder}/data/0", b"\0" * nbytes)
        archive.writestr(f"{folder}/version", "3\n")
    return path


def legacy(path: Path, pickled: bytes) -> Path:
    """The older format, with one storage of four floats."""
    stored = struct.pack("<q", 4) + b"\0" * 16
    keys = pickle.dumps(["0"], 2)
    path.write_bytes(LEGACY_HEAD + BEGIN + pickled + STOP + keys + stored)
    return path


def sound(path: Path) -> Path:
    """What the others are variations of; torch reads it."""
    return zipped(path, mapping(w=tensor(storage(number(4)), (2, 2), (2, 1))))


def storage_beyond_file(folder: Path) -> Path:
    """8 GB in 16 bytes; the number comes from the memo, out of sight of a search."""
    claim = tensor(storage(b"h\x05"), (2_000_000_000,), (1,))
    kept = mapping(n=number(2_000_000_000) + b"q\x05", w=claim)
    return zipped(folder / "beyond_file.pt", kept)


def storage_beyond_old_file(folder: Path) -> Path:
    claim = tensor(storage(b"h\x05", view=b"N"), (2_000_000_000,), (1,))
    return legacy(folder / "beyond_old.pt", mapping(n=number(2_000_000_000) + b"q\x05", w=claim))


def view_beyond_storage(folder: Path) -> Path:
    view = items(text("v"), number(2), number(1000))
    return legacy(folder / "view.pt", mapping(w=tensor(storage(number(4), view=view), (4,), (1,))))


def tensor_beyond_storage(folder: Path) -> Path:
    return zipped(
        folder / "beyond.pt", mapping(w=tensor(storage(number(4)), (2, 2), (2, 1), offset=3))
    )


def negative_storage(folder: Path) -> Path:
    return zipped(folder / "negative.pt", mapping(w=tensor(storage(number(-4)), (0,), (1,))))


def lost_storage(folder: Path) -> Path:
    path = sound(folder / "whole.pt")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(folder / "lost.pt", "w") as new:
        for entry in old.namelist():
            if not entry.endswith("/0"):
                new.writestr(entry, old.read(entry))
    path.unlink()
    return folder / "lost.pt"


def deep_tuples(folder: Path) -> Path:
    """Hashing such a key overflows the C stack: a crash, not an exception."""
    key = number(1) + b"\x85" * 200_000
    return zipped(folder / "deep.pt", EMPTY_DICT + key + number(1) + SETITEM)


def laughing_dicts(folder: Path) -> Path:
    """Each holds the one before 1,000 times: 10^12 entries to walk through."""
    parts = EMPTY_DICT + text("w") + tensor(storage(number(4)), (4,), (1,)) + SETITEM + b"q\x01"
    for level in range(1, 5):
        again = b"".join(text(f"{i}") + bytes((0x68, level)) for i in range(1000))
        parts = EMPTY_DICT + MARK + text("inner") + parts + again + SETITEMS
        parts += b"q" + bytes((level + 1,))
    return zipped(folder / "laughing.pt", parts)


def own_parent(folder: Path) -> Path:
    """A dict that holds itself, and no weights."""
    return zipped(folder / "own_parent.pt", EMPTY_DICT + b"q\x01" + text("x") + b"h\x01" + SETITEM)


def two_names(folder: Path) -> Path:
    """One name for two tensors: the second replaces the first without a word."""
    one, other = (tensor(storage(number(4)), shape, (1,)) for shape in ((4,), (2,)))
    pickled = EMPTY_DICT + MARK + text("w") + one + text("w") + other + SETITEMS
    return zipped(folder / "two_names.pt", pickled)


def codec_bomb(folder: Path) -> Path:
    """Every call doubles the bytes: 2^40 of them."""
    value = call("_codecs", "encode", text("x" * 16), text("latin1"))
    for _ in range(36):
        value = call("_codecs", "encode", value, text("hex"))
    return zipped(folder / "codec.pt", mapping(w=value))


def buffer_bomb(folder: Path) -> Path:
    return zipped(folder / "buffer.pt", mapping(w=call("builtins", "bytearray", number(2**33))))


def numpy_bomb(folder: Path) -> Path:
    """An array of 2^33 pointers, each written when it is made."""
    kind = call("numpy", "dtype", text("O8"), b"\x89", b"\x88")
    array = call(
        "numpy.core.multiarray",
        "_reconstruct",
        *(name("numpy", "ndarray"), items(number(2**33)), kind),
    )
    return zipped(folder / "numpy.pt", mapping(w=array))


def numpy_type_lie(folder: Path) -> Path:
    """An integer type told that it is an array of 10^9 of them: numpy would read past the end."""
    parts = items(call("numpy", "dtype", text("i8")), items(number(10**9)))
    kind = call("numpy", "dtype", text("i8"), b"\x89", b"\x88")
    state = items(number(3), text("<"), parts, b"N", b"N", number(-1), number(-1), number(0))
    raw = call("_codecs", "encode", text("12345678"), text("latin1"))
    value = call("numpy.core.multiarray", "scalar", kind + state + b"b", raw)
    return zipped(folder / "numpy_type.pt", mapping(w=value))


def tensor_constructor(folder: Path) -> Path:
    """torch lets its own classes be called: 16 GB that nobody asked for."""
    return zipped(folder / "made.pt", mapping(w=call("torch", "FloatTensor", number(2**32))))


def endless_lists(folder: Path) -> Path:
    """A million and a half lists, a byte each."""
    pickled = MARK + b"]" * 1_500_000 + b"t"
    return zipped(folder / "lists.pt", pickled)


def copies(folder: Path) -> Path:
    """One tuple of 10,000 numbers, copied 10,000 times: 8 bytes each for 3 in the file."""
    long = MARK + b"K\x01" * 10_000 + b"tq\x01"
    again = b"".join(name("torch", "Size") + b"h\x01\x85R" for _ in range(20_000))
    return zipped(folder / "copies.pt", MARK + long + again + b"t")


def payload_by_protocol_4(folder: Path) -> Path:
    """Names put on the stack, which torch's reader does not know."""
    stack = b"\x8c\x05posix\x8c\x05mkdir\x93"
    where = str(folder / "canary")
    return zipped(folder / "protocol4.pt", stack + text(where) + b"\x85R")


def two_folders(folder: Path) -> Path:
    """Which of the two pickles is read depends on the program."""
    path = sound(folder / "two.pt")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("other/data.pkl", BEGIN + mapping() + STOP)
    return path


def two_cases(folder: Path) -> Path:
    path = sound(folder / "cases.pt")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("archive/DATA.pkl", BEGIN + mapping() + STOP)
    return path


def huge_directory(folder: Path) -> Path:
    """A table of contents of 40 MB; most of the file is a hole."""
    path = folder / "directory.pt"
    sound(path)
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 60_000, 60_000, 40_000_000, 1000, 0)
    with path.open("r+b") as file:
        file.truncate(50_000_000)
        file.seek(0, 2)
        file.write(end)
    return path
