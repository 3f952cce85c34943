"""In which order a model's modules first run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from clcurv.errors import ClcurvError, MismatchError
from clcurv.inputs.dataset import Batch
from clcurv.inputs.modules import out_of_memory, written_back

NEVER = float("inf")


def execution_order(model: nn.Module, batch: Batch) -> Callable[[str], float]:
    """Run the model once, without gradients; return parameter name -> when its owner ran.

    A module whose weights are used by its parent's forward (``nn.MultiheadAttention``
    and its ``out_proj``) never runs itself; it counts as run when its nearest running
    ancestor below the root did. The model comes back as it was.

    Args:
        model: Any module.
        batch: At most two of its samples are used.

    Returns:
        A function that gives `NEVER` for parameters of modules that did not run.

    Raises:
        MismatchError: The model cannot be run on the batch.
    """
    ran: dict[str, float] = {}
    modes = {module: module.training for module in model.modules()}
    handles = []
    try:
        for name, module in model.named_modules():
            handles.append(module.register_forward_pre_hook(_recorder(name, ran)))
        model.eval()
        with torch.no_grad(), plain_attention(), written_back(model), forward_faults():
            _call(model, batch)
    finally:
        for handle in handles:
            handle.remove()
        for module, training in modes.items():
            module.training = training

    def order(param: str) -> float:
        path = param.rpartition(".")[0]
        if not path:
            return ran.get("", NEVER)
        while path:
            if path in ran:
                return ran[path]
            path = path.rpartition(".")[0]
        return NEVER

    return order


@contextmanager
def forward_faults() -> Iterator[None]:
    """What a model's forward raises on data that it does not take, as a `MismatchError`."""
    try:
        yield
    except (ClcurvError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a model may raise anything
        if out_of_memory(error):
            raise
        first = (str(error).strip().splitlines() or [""])[0]
        raise MismatchError(
            f"the model cannot be run on the data ({type(error).__name__}: {first})",
            hint="give the data in the shape that the model was trained on",
        ) from error


def _recorder(name: str, ran: dict[str, float]) -> Callable[..., None]:
    def record(*_: Any) -> None:
        ran.setdefault(name, float(len(ran)))

    return record


@contextmanager
def plain_attention() -> Iterator[None]:
    """Without the fused encoder path, which skips the submodules."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _call(model: nn.Module, batch: Batch) -> None:
    first = next(model.parameters())
    if isinstance(batch.inputs, Tensor):
        model(_moved(batch.inputs[:2], first))
    else:
        model(**{key: _moved(value[:2], first) for key, value in batch.inputs.items()})


def _moved(tensor: Tensor, like: Tensor) -> Tensor:
    """To the model's device, and to its precision if it is a float tensor."""
    dtype = like.dtype if tensor.is_floating_point() else tensor.dtype
    return tensor.to(device=like.device, dtype=dtype)
