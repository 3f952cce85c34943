"""Data and batches made by the user's own code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from clcurv.errors import DataError, UsageError
from clcurv.inputs.user_code import import_code, is_code, raised_at

BatchFunction = Callable[[Any], Any]
_BATCH = 32


def live_data(
    data: Any, *, batch_fn: str | BatchFunction | None = None, trust_code: bool = False
) -> Any:
    """Data as `clcurv.inputs.dataset.load_samples` takes it.

    Args:
        data: ``file.py:function`` or ``package.module:function``, called without arguments, which
            returns anything that `given_source` takes: ``(x, y)``, a data set, a loader. Other
            values come back as they are.
        batch_fn: A function, or the name of one, from a batch of the loader (or a list of samples
            of a data set, as a ``collate_fn`` gets it) to ``(inputs, targets)``; the inputs are a
            tensor, or a dict of tensors for ``model(**inputs)``.
        trust_code: Allow code outside installed packages.

    Raises:
        UnsafeFileError: Code outside installed packages without `trust_code`.
        ArchitectureError: The code cannot be imported.
        DataError: It fails, or a batch is not what is expected.
        UsageError: A batch function beside a path.
    """
    if isinstance(data, str) and is_code(data) and not Path(data).exists():
        name, make = data, import_code(data, trust_code=trust_code)
        data = _called(name, make)
        if data is None or isinstance(data, str | Path):
            raise DataError(
                f"{name} returned {data!r}, not data", hint="return (x, y), a Dataset or a loader"
            )
    if batch_fn is None or data is None:
        return data
    if isinstance(data, str | Path):
        raise UsageError(
            f"a batch function takes the batches of a loader, and {data} is a path",
            hint="--data file.py:function, which returns the loader",
        )
    label = batch_fn if isinstance(batch_fn, str) else getattr(batch_fn, "__name__", "batch_fn")
    function = (
        import_code(batch_fn, trust_code=trust_code) if isinstance(batch_fn, str) else batch_fn
    )
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, list):
        data = DataLoader(data, batch_size=_BATCH, collate_fn=list)
    known = hasattr(data, "__len__")
    return _Mapped(data, function, label) if known else _map(data, function, label)


class _Mapped:
    """The batches of a loader of known length, through the user's function."""

    def __init__(self, loader: Any, function: BatchFunction, label: str) -> None:
        self._loader, self._function, self._label = loader, function, label

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return _map(self._loader, self._function, self._label)


def _map(loader: Any, function: BatchFunction, label: str) -> Iterator[tuple[Any, Any]]:
    for i, batch in enumerate(loader):
        pair = _called(f"{label} on batch {i}", function, batch)
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise DataError(
                f"{label} returned a {type(pair).__name__} for batch {i}",
                hint="return (inputs, targets)",
            )
        yield pair[0], pair[1]


def _called(name: str, function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:
        # The user's code can raise anything.
        told = (str(error).splitlines() or [""])[0]
        raise DataError(
            f"{name} failed ({type(error).__name__}: {told})", hint=raised_at(error, function)
        ) from error
