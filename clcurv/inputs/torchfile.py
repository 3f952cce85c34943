"""`torch.load` on an untrusted file: nothing is executed and nothing huge is allocated."""

from __future__ import annotations

import argparse
import collections
import pathlib
import pickle
import pickletools
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from clcurv.errors import ClcurvError, CorruptFileError, ResourceError, UnsafeFileError
from clcurv.inputs.filetype import Kind, describe_size

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


def _plain_dict(_factory: object = None) -> dict[Any, Any]:
    return {}


def _plain_list(items: object = (), _maxlen: object = None) -> list[Any]:
    return list(items) if isinstance(items, list | tuple) else []


def _safe_globals() -> list[Any]:
    """What timm and Lightning training files hold besides tensors, and nothing else.

    Paths become pure paths (they touch no disk); numpy's two module layouts share
    one function. None of these runs code given in the file.
    """
    dtypes = {type(np.dtype(code)) for code in "?bhilqBHILQefdFD"}
    allowed: list[Any] = [
        argparse.Namespace,
        # torch's unpickler fills plain dicts and lists only, so these are read as such.
        (_plain_dict, "collections.defaultdict"),
        (_plain_list, "collections.deque"),
        list,
        dict,
        int,
        float,
        np.dtype,
        np.ndarray,
        *dtypes,
    ]
    scalar = np.float64(0).__reduce__()[0]
    rebuild = np.zeros(0).__reduce__()[0]
    for package in ("numpy.core", "numpy._core"):
        allowed.append((scalar, f"{package}.multiarray.scalar"))
        allowed.append((rebuild, f"{package}.multiarray._reconstruct"))
    for module in ("pathlib", "pathlib._local"):
        allowed.append((pathlib.PurePosixPath, f"{module}.PosixPath"))
        allowed.append((pathlib.PurePosixPath, f"{module}.PurePosixPath"))
        allowed.append((pathlib.PureWindowsPath, f"{module}.WindowsPath"))
        allowed.append((pathlib.PureWindowsPath, f"{module}.PureWindowsPath"))
    return allowed


def read_torch(path: Path, kind: Kind, *, max_bytes: int) -> Any:
    """Unpickle a torch file with ``weights_only=True``.

    Args:
        path: A file that `identify` called `kind`.
        kind: ``torch`` (zip) or ``torch-legacy``.
        max_bytes: Refuse larger files, and files that claim larger tensors.

    Raises:
        UnsafeFileError: It needs code to be run, or claims more than it holds.
        CorruptFileError: It cannot be read to its end.
        ResourceError: It does not fit into `max_bytes`.
    """
    size = path.stat().st_size
    if size > max_bytes:
        raise too_large(path, size, max_bytes)
    _check_claims(path, size, kind)
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


def too_large(path: Path, size: int, max_bytes: int) -> ResourceError:
    """The error for weights that do not fit into the memory allowed."""
    return ResourceError(
        f"{path} needs {describe_size(size)} of memory, the limit is {describe_size(max_bytes)}",
        hint="use a machine with more memory",
    )


def _explain(path: Path, size: int, error: Exception) -> ClcurvError:
    names = sorted(_blocked(path))
    if names:
        shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        if any(_is_dangerous(name) for name in names):
            return UnsafeFileError(
                f"{path} would run code when opened ({shown}); it was not opened",
                hint="do not use this file; get the weights as safetensors",
            )
        return UnsafeFileError(
            f"{path} holds pickled Python objects ({shown}), not just weights; "
            "opening it would run their code",
            hint="where it was made, re-save it: model = torch.load(FILE, weights_only=False); "
            "torch.save(model.state_dict(), 'weights.pt')",
        )
    if isinstance(error, pickle.UnpicklingError) and "operand" in str(error):
        return UnsafeFileError(
            f"{path} was pickled with a protocol that cannot be read safely",
            hint="re-save it with torch.save and its default pickle protocol",
        )
    if "allocate" in str(error):
        return UnsafeFileError(f"{path} asks for more memory than there is")
    return CorruptFileError(
        f"{path} is damaged or cut short ({describe_size(size)}): torch cannot read it to its end",
        hint="copy or download it again",
    )


def _is_dangerous(name: str) -> bool:
    module, _, attribute = name.rpartition(".")
    root = module.split(".")[0]
    return root in _DANGEROUS or (root == "builtins" and attribute in _DANGEROUS_BUILTINS)


def _blocked(path: Path) -> set[str]:
    """Globals in the file's pickles that `torch.load` would refuse."""
    found = _all_globals(path)
    with torch.serialization.safe_globals(_safe_globals()):
        listed = torch.serialization.get_safe_globals()
    known = {
        item[1] if isinstance(item, tuple) else f"{item.__module__}.{item.__qualname__}"
        for item in listed
    }
    return {n for n in found - known if not _torch_allows(n)}


def _torch_allows(name: str) -> bool:
    """torch's own list: its storages, tensors, dtypes, rebuild functions, OrderedDict, ..."""
    if name in (
        "collections.OrderedDict",
        "collections.Counter",
        "_codecs.encode",
        "builtins.bytearray",
        "builtins.set",
        "builtins.complex",
    ):
        return True
    root, _, attribute = name.rpartition(".")
    return name.startswith(("torch._utils.", "torch._tensor.", "torch.serialization.")) or (
        root in ("torch", "torch.storage", "torch.nn.parameter", "torch.cuda", "torch.sparse")
        and bool(attribute)
    )


def _all_globals(path: Path) -> set[str]:
    """Names of all globals, read without executing anything; empty if unreadable."""
    found: set[str] = set()
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                for name in archive.namelist():
                    if name.split("/", 1)[-1] == "data.pkl":
                        with archive.open(name) as stream:
                            found |= _globals_of(stream)
        else:
            with path.open("rb") as stream:
                for _ in range(4):  # magic, protocol, system, object
                    found |= _globals_of(stream)
    except Exception:
        # Whatever is wrong with the pickle, the caller then says "damaged".
        return found
    return found


def _globals_of(stream: IO[bytes]) -> set[str]:
    found: set[str] = set()
    strings: list[str] = []
    for opcode, argument, _ in pickletools.genops(stream):
        if opcode.name in ("GLOBAL", "INST"):
            module, _, attribute = str(argument).partition(" ")
            module = {"__builtin__": "builtins", "copy_reg": "copyreg"}.get(module, module)
            found.add(f"{module}.{attribute}")
        elif opcode.name == "STACK_GLOBAL" and len(strings) >= 2:
            found.add(f"{strings[-2]}.{strings[-1]}")
        elif isinstance(argument, str):
            strings.append(argument)
    return found


def _storage_claims(stream: IO[bytes]) -> Iterator[int]:
    """Element counts in the persistent ids ``('storage', type, key, location, numel, ...)``."""
    numbers: list[int] = []
    for opcode, argument, _ in pickletools.genops(stream):
        if opcode.name == "MARK":
            numbers = []
        elif opcode.name == "BINPERSID":
            yield max(numbers, default=0)
        elif isinstance(argument, int) and opcode.name in ("BININT", "BININT1", "BININT2", "LONG1"):
            numbers.append(argument)


def _check_claims(path: Path, size: int, kind: Kind) -> None:
    """No storage has more elements than the file has bytes.

    The old format allocates what its pickle claims before reading a byte of it.
    """
    try:
        if kind == "torch":
            with zipfile.ZipFile(path) as archive:
                name = next(n for n in archive.namelist() if n.split("/", 1)[-1] == "data.pkl")
                with archive.open(name) as stream:
                    claim = max(_storage_claims(stream), default=0)
        else:
            with path.open("rb") as stream:
                for _ in range(3):  # magic number, protocol, system
                    collections.deque(pickletools.genops(stream), maxlen=0)
                claim = max(_storage_claims(stream), default=0)
    except Exception as error:
        # pickletools and zipfile raise many classes on damaged input.
        raise CorruptFileError(
            f"{path} is damaged or cut short ({describe_size(size)})",
            hint="copy or download it again",
        ) from error
    if claim > size:
        raise UnsafeFileError(
            f"{path} ({describe_size(size)}) claims a tensor of {claim:,} elements: it is cut "
            "short or made to exhaust the machine"
        )
