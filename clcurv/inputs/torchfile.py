"""`torch.load` on an untrusted file: nothing is executed and nothing huge is allocated."""

from __future__ import annotations

import argparse
import io
import pathlib
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clcurv.errors import (
    ClcurvError,
    CorruptFileError,
    InputError,
    NotWeightsError,
    ResourceError,
    UnsafeFileError,
)
from clcurv.inputs.filetype import RESAVE, Kind, describe_size
from clcurv.inputs.torchscan import Claims, scan

# Modules whose functions have no business in a weights file.
_DANGEROUS = frozenset(
    (
        *("os", "posix", "nt", "sys", "subprocess", "shutil", "socket", "runpy", "importlib"),
        *("pty", "ctypes", "webbrowser", "code", "marshal", "pickle", "operator", "functools"),
        *("timeit", "pip", "bdb", "pdb", "asyncio", "multiprocessing"),
    )
)
_DANGEROUS_BUILTINS = frozenset(
    (
        *("eval", "exec", "compile", "open", "getattr", "setattr", "delattr", "__import__"),
        *("input", "breakpoint", "globals"),
    )
)
_LEGACY_PICKLES = 5  # magic number, protocol, system, the object, keys of its storages
_ANOTHER = "copy or download it again"


class NeedsCodeError(UnsafeFileError):
    """The file holds pickled objects: reading it would run code that it names."""


def _plain_dict(_factory: object = None) -> dict[Any, Any]:
    return {}


def _plain_list(items: object = (), _maxlen: object = None) -> list[Any]:
    return list(items) if isinstance(items, list | tuple) else []


def _inert(*_arguments: object) -> None:
    """Stands for types that are only named, such as a defaultdict's factory."""


class NumpyType:
    """Stands for a numpy dtype, whose own unpickling can be made to read foreign memory."""

    def __init__(self, code: object = "f8", *_rest: object) -> None:
        self.value = np.dtype(str(code))
        self._check()

    def __setstate__(self, state: Any) -> None:
        _, order, parts, names, fields, size, *_ = state
        if not (parts is names is fields is None) or order not in ("<", ">", "|", "="):
            raise pickle.UnpicklingError("a structured numpy type")
        if self.value.kind in "SU":
            width = int(size) // (4 if self.value.kind == "U" else 1)
            self.value = np.dtype(f"{self.value.kind}{width}")
        self.value = self.value.newbyteorder(order)
        self._check()

    def _check(self) -> None:
        if self.value.kind not in "biufcSU" or not 0 < self.value.itemsize <= 4096:
            raise pickle.UnpicklingError(f"numpy type {self.value}")


class NumpyArray:
    """Stands for a numpy array.

    Attributes:
        value: Its content.
    """

    def __init__(self, *_arguments: object) -> None:
        self.value = np.zeros(0)

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, raw = state
        flat = _from_bytes(dtype, raw)
        self.value = flat.reshape(shape, order="F" if fortran else "C")


def _from_bytes(dtype: Any, raw: Any) -> np.ndarray[Any, Any]:
    if not isinstance(dtype, NumpyType) or not isinstance(raw, bytes):
        raise pickle.UnpicklingError("numpy data of a kind that weights do not need")
    return np.frombuffer(raw, dtype.value)


def _numpy_scalar(dtype: object, raw: object = None) -> Any:
    (value,) = _from_bytes(dtype, raw)
    return value


def _safe_globals() -> list[Any]:
    """What timm and Lightning training files hold besides tensors, and nothing else.

    Each is a stand-in, or a type that touches nothing when it is made and filled: paths become
    pure paths, containers plain ones (torch fills only these), and numpy, in the layouts of its
    versions 1 and 2, is not called on a file's word.
    """
    allowed: list[Any] = [
        argparse.Namespace,
        (_plain_dict, "collections.defaultdict"),
        (_plain_list, "collections.deque"),
        *((_inert, f"builtins.{kind}") for kind in ("list", "dict", "tuple", "str")),
        *((_inert, f"builtins.{kind}") for kind in ("int", "float", "bool")),
        (_inert, "numpy.ndarray"),
        (NumpyType, "numpy.dtype"),
        (NumpyArray, "numpy.core.multiarray._reconstruct"),
        (NumpyArray, "numpy._core.multiarray._reconstruct"),
        (_numpy_scalar, "numpy.core.multiarray.scalar"),
        (_numpy_scalar, "numpy._core.multiarray.scalar"),
    ]
    for module in ("pathlib", "pathlib._local"):
        allowed.append((pathlib.PurePosixPath, f"{module}.PosixPath"))
        allowed.append((pathlib.PurePosixPath, f"{module}.PurePosixPath"))
        allowed.append((pathlib.PureWindowsPath, f"{module}.WindowsPath"))
        allowed.append((pathlib.PureWindowsPath, f"{module}.PureWindowsPath"))
    return allowed


def _safe_names() -> frozenset[str]:
    return frozenset(
        item[1] if isinstance(item, tuple) else f"{item.__module__}.{item.__qualname__}"
        for item in _safe_globals()
    )


def read_torch(path: Path, kind: Kind, *, max_bytes: int) -> Any:
    """Unpickle a torch file with ``weights_only=True``, after looking at all that it asks for.

    Args:
        path: A file that `identify` called `kind`.
        kind: ``torch`` (zip) or ``torch-legacy``.
        max_bytes: Refuse larger files, and files that claim larger tensors.

    Raises:
        NeedsCodeError: It needs code to be run.
        UnsafeFileError: It claims more than it holds.
        CorruptFileError: It cannot be read to its end.
        ResourceError: It does not fit into `max_bytes`.
    """
    size = path.stat().st_size
    if size > max_bytes:
        raise too_large(path, size, max_bytes)
    blocked = _check_claims(path, size, kind).blocked
    if blocked:
        raise _needs_code(path, sorted(blocked))
    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals(_safe_globals()):
            warnings.simplefilter("ignore")
            # Given a path, torch would choose its reader by the suffix.
            with path.open("rb") as stream:
                return torch.load(stream, map_location="cpu", weights_only=True)
    except ClcurvError:
        raise
    except MemoryError as error:
        raise UnsafeFileError(f"{path} asks for more memory than there is") from error
    except Exception as error:
        # torch raises a dozen classes here, from KeyError to RuntimeError.
        raise _explain(path, size, error) from error


def read_pickled(path: Path, kind: Kind, *, max_bytes: int) -> Any:
    """Unpickle a file with all the code it names. Only for files of a trusted origin.

    Args:
        path: A torch file, or a plain pickle.
        kind: ``torch``, ``torch-legacy`` or ``pickle``.
        max_bytes: Refuse larger files.

    Raises:
        NotWeightsError: Its classes are not installed here.
        CorruptFileError: Anything else that goes wrong while it runs.
        ResourceError: It does not fit into `max_bytes`.
    """
    size = path.stat().st_size
    if size > max_bytes:
        raise too_large(path, size, max_bytes)
    try:
        with warnings.catch_warnings(), path.open("rb") as stream:
            warnings.simplefilter("ignore")
            if kind == "pickle":
                return pickle.load(stream)
            return torch.load(stream, map_location="cpu", weights_only=False)
    except (ImportError, AttributeError) as error:
        raise NotWeightsError(
            f"{path} needs code that is not there ({type(error).__name__}: {_first_line(error)})",
            hint="install the package it was made with, or run where its module can be imported",
        ) from error
    except Exception as error:
        raise CorruptFileError(
            f"{path} cannot be unpickled ({type(error).__name__}: {_first_line(error)})"
        ) from error


def too_large(path: Path, size: int, max_bytes: int) -> ResourceError:
    """The error for weights that do not fit into the memory allowed."""
    return ResourceError(
        f"{path} needs {describe_size(size)} of memory, the limit is {describe_size(max_bytes)}",
        hint="raise the limit (--max-bytes), or use a machine with more memory",
    )


def _needs_code(path: Path, names: list[str]) -> NeedsCodeError:
    shown = ", ".join(name[:80] for name in names[:3]) + (", ..." if len(names) > 3 else "")
    if any(_is_dangerous(name) for name in names):
        return NeedsCodeError(
            f"{path} would run code when opened ({shown}); it was not opened",
            hint="do not use this file; get the weights as safetensors",
        )
    return NeedsCodeError(
        f"{path} holds pickled Python objects ({shown}), not just weights; "
        "opening it would run their code",
        hint="where it was made, re-save it: model = torch.load(FILE, weights_only=False); "
        f"{RESAVE} (or, for a file you made yourself, --unsafe-pickle)",
    )


def _explain(path: Path, size: int, error: Exception) -> InputError:
    if isinstance(error, pickle.UnpicklingError):
        return UnsafeFileError(
            f"{path} cannot be read safely: its pickle does what weights do not need",
            hint=f"re-save it where it was made: {RESAVE}",
        )
    if "allocate" in str(error):
        return UnsafeFileError(f"{path} asks for more memory than there is")
    return CorruptFileError(
        f"{path} is damaged or cut short ({describe_size(size)}): torch cannot read it to its end",
        hint=_ANOTHER,
    )


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[0][:200]


def _is_dangerous(name: str) -> bool:
    module, _, attribute = name.rpartition(".")
    root = module.split(".")[0]
    return root in _DANGEROUS or (root == "builtins" and attribute in _DANGEROUS_BUILTINS)


def _check_claims(path: Path, size: int, kind: Kind) -> Claims:
    """Every tensor lies inside its storage, and every storage inside the file.

    The old format allocates what its pickle claims before reading a byte of it.

    Raises:
        UnsafeFileError: They do not.
        CorruptFileError: The pickle, or a storage, is missing or cut short.
    """
    also = _safe_names()
    if kind == "torch-legacy":
        with path.open("rb") as stream:
            claims = scan(stream, where=str(path), pickles=_LEGACY_PICKLES, also=also)
        total = sum(claims.storages.values())
        if total > size:
            raise UnsafeFileError(
                f"{path} ({describe_size(size)}) claims {total:,} bytes of tensors: it is cut "
                "short or made to exhaust the machine"
            )
        return claims
    pickled, records = _zip_records(path, size)
    claims = scan(io.BytesIO(pickled), where=str(path), also=also)
    for key, claim in claims.storages.items():
        held = records.get(f"data/{key}")
        if held is None and not claims.blocked:
            raise CorruptFileError(f"{path} lacks the storage {key!r}", hint=_ANOTHER)
        if held is not None and claim > held:
            raise UnsafeFileError(
                f"{path} claims {claim:,} bytes for storage {key!r}, which has {held:,}"
            )
    return claims


def _zip_records(path: Path, size: int) -> tuple[bytes, dict[str, int]]:
    """The pickle, and the size of every entry, without their folder's name."""
    try:
        with zipfile.ZipFile(path) as archive:
            records = {e.filename.split("/", 1)[-1]: e.file_size for e in archive.infolist()}
            name = next(n for n in archive.namelist() if n.split("/", 1)[-1] == "data.pkl")
            pickled = archive.read(name)
        with path.open("rb") as stream:
            as_torch = torch._C.PyTorchFileReader(stream).get_record("data.pkl")
    except Exception as error:
        # zipfile and torch raise many classes on damaged input.
        raise CorruptFileError(
            f"{path} is damaged or cut short ({describe_size(size)})", hint=_ANOTHER
        ) from error
    if as_torch != pickled:
        raise UnsafeFileError(
            f"{path} is a zip archive that different programs read differently; it was not opened"
        )
    return pickled, records
