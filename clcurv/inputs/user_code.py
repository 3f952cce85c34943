"""``package.module:name`` or ``file.py:name`` -> the user's own function or class."""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from clcurv.errors import ArchitectureError, UnsafeFileError

if TYPE_CHECKING:
    from torch import nn

_OUR_PREFIXES = ("timm:", "torchvision:", "hf:")  # of architectures


def is_code(name: str) -> bool:
    """Whether `name` has the form ``module:function``; a Windows drive is none."""
    module, colon, function = name.rpartition(":")
    return bool(colon and len(module) > 1 and function.isidentifier())


def import_code(name: str, *, trust_code: bool) -> Callable[..., Any]:
    """The function or class that `name` means.

    Code of installed packages runs; code from files and from the working folder only with
    `trust_code`. Nothing is imported before that is known.

    Args:
        name: ``package.module:function`` or ``path/to/file.py:function``.
        trust_code: Allow code outside installed packages.

    Raises:
        UnsafeFileError: Code outside installed packages without `trust_code`.
        ArchitectureError: It cannot be imported, or has no such function.
    """
    if not trust_code:
        _check_trusted(name)
    source, _, function = name.rpartition(":")
    try:
        module = _load_file(Path(source)) if _is_file(source) else _load_module(source)
    except (Exception, SystemExit) as error:
        # Importing runs the user's code, which can raise anything.
        told = (str(error).splitlines() or [""])[0]
        raise ArchitectureError(
            f"{source} cannot be imported ({type(error).__name__}: {told})"
        ) from error
    found = getattr(module, function, None)
    if not callable(found):
        there = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        own = [n for n in there if getattr(getattr(module, n), "__module__", "") == module.__name__]
        raise ArchitectureError(
            f"{source} has no function or class {function!r}",
            hint=f"it has {', '.join(own[:5])}" if own else None,
        )
    result: Callable[..., Any] = found
    return result


def code_version(function: Callable[..., Any]) -> str:
    """sha256 (hex) of the file that holds the function; "" where there is none."""
    try:
        path = inspect.getsourcefile(inspect.unwrap(function))
        return hashlib.sha256(Path(path).read_bytes()).hexdigest() if path else ""
    except (TypeError, OSError):
        return ""


def model_version(model: nn.Module) -> str:
    """sha256 (hex) of what a network is made of: its modules as they print, and their code."""
    kinds = {type(module) for module in model.modules()}
    parts = [repr(model), *sorted(code_version(kind) for kind in kinds)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _check_trusted(name: str) -> None:
    source = name.rpartition(":")[0]
    if _is_file(source) or not _is_installed(source.split(".", 1)[0]):
        raise UnsafeFileError(
            f"{name} would run code from outside the installed packages",
            hint="if it is yours, add --trust-code",
        )


def _is_file(source: str) -> bool:
    return source.endswith(".py") or "/" in source or "\\" in source


def _is_installed(package: str) -> bool:
    """Installed by a package manager, or part of Python."""
    return (
        package in sys.stdlib_module_names or package in importlib.metadata.packages_distributions()
    )


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    # One module a file, however often it is named: a loss and a model may share their classes.
    mark = hashlib.sha256(str(path.resolve()).encode() + path.read_bytes()).hexdigest()[:12]
    name = f"_clcurv_user_{path.stem}_{mark}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError("not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _on_path(path.parent):
            spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _load_module(name: str) -> ModuleType:
    with _on_path(Path.cwd()):
        return importlib.import_module(name)


@contextmanager
def _on_path(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def raised_at(error: BaseException, function: Callable[..., Any]) -> str | None:
    """``mine.py, line 12``: the last line of the user's own file that led to an error."""
    try:
        path = inspect.getsourcefile(inspect.unwrap(function))
    except TypeError:
        return None
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
    return f"{path}, line {lines[-1]}" if lines else None


def refuse_untrusted(names: Iterable[object], *, trust_code: bool) -> None:
    """Refuses what `import_code` would, before anything is loaded; other values are no code.

    Raises:
        UnsafeFileError: Code outside installed packages.
    """
    for name in names:
        if trust_code or not isinstance(name, str) or not is_code(name) or Path(name).exists():
            continue
        if not name.startswith(_OUR_PREFIXES):
            _check_trusted(name)
