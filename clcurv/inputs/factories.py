"""``package.module:factory`` or ``file.py:factory`` -> the user's own model."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from clcurv.errors import ArchitectureError, MismatchError, UnsafeFileError
from clcurv.inputs.checkpoint import Weights
from clcurv.inputs.heads import find_head
from clcurv.inputs.matching import arrange
from clcurv.inputs.vision import Built, check_width

_WIDTH_NAMES = ("num_classes", "num_labels", "n_classes", "num_outputs")


def is_factory(arch: str) -> bool:
    """Whether `arch` has the form ``module:function``."""
    module, colon, name = arch.rpartition(":")
    return bool(colon and module and name.isidentifier())


def build_factory(
    arch: str,
    weights: Weights,
    *,
    num_classes: int | None = None,
    trust_code: bool = False,
    by_order: bool = False,
) -> Built:
    """Call the user's factory; give it the number of classes if it takes one.

    Args:
        arch: ``package.module:factory`` or ``path/to/file.py:factory``.
        weights: The checkpoint, whose head tells the number of classes.
        num_classes: What the user says the head has.
        trust_code: Allow code outside installed packages.
        by_order: Name the tensors by their order.

    Raises:
        UnsafeFileError: Code outside installed packages without `trust_code`.
        ArchitectureError: It cannot be imported or called, or returns no module.
        MismatchError: The head has another number of classes than asked for.
    """
    factory = _import(arch, trust_code=trust_code)
    takes = _width_argument(factory)
    model = _call(arch, factory, {takes: num_classes} if takes and num_classes else {})
    tensors = arrange(weights, model.state_dict(), by_order=by_order)
    head, width = find_head(model)
    in_file = next((int(tensors[n].shape[0]) for n in head if n in tensors), None)
    if in_file is not None:
        check_width(in_file, num_classes)
        if takes and in_file != width:
            model = _call(arch, factory, {takes: in_file})
            width = find_head(model)[1]
    notes = (f"model built by {arch}",) if takes is None else (f"model built by {arch}({takes})",)
    return Built(model, tensors, width, notes=notes)


def _import(arch: str, *, trust_code: bool) -> Callable[..., Any]:
    source, _, name = arch.rpartition(":")
    is_file = source.endswith(".py") or "/" in source
    outside = is_file or not _is_installed(source.split(".", 1)[0])
    if outside and not trust_code:
        raise UnsafeFileError(
            f"{arch} would run code from outside the installed packages",
            hint="if it is yours, add --trust-code",
        )
    try:
        module = _load_file(Path(source)) if is_file else _load_module(source)
    except Exception as error:
        # Importing runs the user's code, which can raise anything.
        raise ArchitectureError(
            f"{source} cannot be imported ({type(error).__name__}: {error})"
        ) from error
    factory = getattr(module, name, None)
    if not callable(factory):
        raise ArchitectureError(f"{source} has no function or class {name!r}")
    found: Callable[..., Any] = factory
    return found


def _is_installed(package: str) -> bool:
    """Installed by a package manager, or part of Python."""
    return (
        package in sys.stdlib_module_names or package in importlib.metadata.packages_distributions()
    )


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    spec = importlib.util.spec_from_file_location(f"_clcurv_user_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError("not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    with _on_path(path.parent):
        spec.loader.exec_module(module)
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


def _width_argument(factory: Callable[..., Any]) -> str | None:
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return None
    return next((name for name in _WIDTH_NAMES if name in parameters), None)


def _call(arch: str, factory: Callable[..., Any], kwargs: dict[str, Any]) -> nn.Module:
    try:
        model = factory(**kwargs)
    except MismatchError:
        raise
    except Exception as error:
        raise ArchitectureError(f"{arch} failed ({type(error).__name__}: {error})") from error
    if not isinstance(model, nn.Module):
        raise ArchitectureError(
            f"{arch} returned a {type(model).__name__}, not a torch.nn.Module",
            hint="name a function without required arguments that returns the model",
        )
    return model
