"""Models without memory: names, shapes and order of execution are all that is asked of them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

# What parameters and buffers are made with. Numbers that a constructor computes with (arange,
# linspace, tensor) stay real.
_MAKERS = frozenset((torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn))


class _Hollow(TorchFunctionMode):
    """Puts new tensors on the meta device, whatever device their maker names."""

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        if func in _MAKERS:
            named["device"] = "meta"
        return func(*args, **named)


@contextmanager
def hollow() -> Iterator[None]:
    """Modules made inside have shapes but no values; loading into them does nothing.

    Code that looks at a value raises; the caller then does the same outside.
    """
    with warnings.catch_warnings(), _Hollow():
        warnings.simplefilter("ignore")  # one for every tensor that is loaded
        yield
