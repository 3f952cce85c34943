"""The importance penalty as a callback of the Hugging Face ``Trainer`` and of Lightning."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from clcurv.errors import UsageError

if TYPE_CHECKING:
    from clcurv.training.penalty import ImportancePenalty


class PenaltyCallback(TrainerCallback):  # type: ignore[misc]
    """Made by `ImportancePenalty.callback`; its hook is removed as training ends."""

    def __init__(self, penalty: ImportancePenalty) -> None:
        self.penalty = penalty
        self._handle: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._remove()  # an earlier training that was interrupted
        optimizer = kwargs["optimizer"]
        # Accelerate's wrapper steps the real one, after a gradient scaler has unscaled.
        self._handle = self.penalty.attach(getattr(optimizer, "optimizer", optimizer))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._remove()

    def _remove(self) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None


def lightning_callback(penalty: ImportancePenalty) -> Any:
    """A callback of the Lightning that is installed, under either of its names.

    Raises:
        UsageError: None is.
    """
    base = _callback_class()

    def on_before_optimizer_step(self: Any, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        self.penalty.add_gradient_()

    made = type(
        "ImportancePenaltyCallback", (base,), {"on_before_optimizer_step": on_before_optimizer_step}
    )()
    made.penalty = penalty
    return made


def _callback_class() -> Any:
    for name in ("lightning.pytorch", "pytorch_lightning"):
        try:
            return importlib.import_module(name).Callback
        except ModuleNotFoundError:
            continue
    raise UsageError(
        "Lightning is not installed",
        hint="in a LightningModule: def on_before_optimizer_step(self, optimizer): "
        "self.penalty.add_gradient_()",
    )
