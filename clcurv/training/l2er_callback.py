"""L2-ER as a callback of the Hugging Face ``Trainer``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import TrainerCallback

from clcurv.errors import CorruptFileError

if TYPE_CHECKING:
    from clcurv.training.l2er import L2ER

STATE_FILE = "l2er.pt"


class L2erCallback(TrainerCallback):  # type: ignore[misc]
    """Made by `L2ER.callback`. Hooks are set as training begins and removed as it ends.

    The Trainer gives its callbacks no batch, so the inputs are noted as the model is called. A
    step of the optimizer counts as one mini-batch, also where gradients are accumulated over
    several. State goes into ``l2er.pt`` of every checkpoint folder and is read from there when
    training resumes.
    """

    def __init__(self, regulariser: L2ER) -> None:
        self.regulariser = regulariser
        self._seen: list[Any] = []
        self._stepping = False
        self._handle: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._resume(args, state)
        optimizer = kwargs["optimizer"]
        self.regulariser.attach(getattr(optimizer, "optimizer", optimizer))
        self._handle = self.regulariser.model.register_forward_pre_hook(
            self._note, with_kwargs=True
        )

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        seen, self._seen = self._seen, []
        self._stepping = True
        try:
            self.regulariser.step_all(seen)
        finally:
            self._stepping = False

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        folder = _folder(args, state)
        if state.is_world_process_zero and folder.is_dir():
            torch.save(self.regulariser.state_dict(), folder / STATE_FILE)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._handle is not None:
            self._handle.remove()
        self.regulariser.close()

    def _note(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if module.training and torch.is_grad_enabled() and not self._stepping:
            self._seen.append(dict(kwargs) if kwargs else args[0])

    def _resume(self, args: Any, state: Any) -> None:
        given = getattr(args, "resume_from_checkpoint", None)
        folder = Path(given) if isinstance(given, str) else _folder(args, state)
        file = folder / STATE_FILE
        if state.global_step == 0 or not file.is_file():
            return
        try:
            saved = torch.load(file, weights_only=True)
        except Exception as error:  # torch raises any type on a damaged file
            raise CorruptFileError(
                f"{file}: the state of L2ER cannot be read ({type(error).__name__})",
                hint="delete it to go on with an empty window",
            ) from error
        self.regulariser.load_state_dict(saved)


def _folder(args: Any, state: Any) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"
