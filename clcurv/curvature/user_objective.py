"""The user's own loss function as an objective."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from clcurv.curvature.objective import Objective, part
from clcurv.errors import MismatchError, UsageError
from clcurv.inputs.dataset import Batch
from clcurv.inputs.modules import out_of_memory
from clcurv.inputs.user_code import raised_at

UserLoss = Callable[[Any, Tensor], Tensor]
CHECKED_SAMPLES = 4
CHECK_TOLERANCE = 1e-3  # of the loss, in float32: other batch sizes take other kernels


@dataclass(frozen=True)
class UserObjective(Objective):
    """A loss given as a function, which must be a mean over samples.

    Attributes:
        name: What the report calls it.
        function: Called with the model's output as the model returns it (a tensor, a tuple, a
            Hugging Face output, ...) and the batch's targets (n, ...). Returns one loss a
            sample, shape (n,), or their mean, a scalar; with its graph.
        version: Of the code, for runs that are resumed.
    """

    name: str = "custom"
    function: UserLoss | None = None
    version: str = ""

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise UsageError(f"{self.name} is no function of (output, targets)")

    def terms(self, targets: Tensor) -> int:
        return len(targets)

    def rows(self, output: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Refused: nothing is known of the outputs, so there is no Gauss-Newton form.

        Raises:
            UsageError: Always.
        """
        raise UsageError(
            f"the loss {self.name} is a function of its own: only its Hessian can be taken",
            hint="--operator hessian, or one of clcurv's own losses",
        )

    def output(self, model: nn.Module, batch: Batch) -> Any:
        return model(batch.inputs) if isinstance(batch.inputs, Tensor) else model(**batch.inputs)

    def losses(self, output: Any, targets: Tensor) -> Tensor:
        """One loss a sample, (n,).

        Raises:
            MismatchError: The function fails, or returns something else.
        """
        assert self.function is not None
        try:
            value = self.function(output, targets)
        except Exception as error:
            if out_of_memory(error):
                raise
            # The user's code can raise anything.
            told = (str(error).splitlines() or [""])[0]
            raise MismatchError(
                f"the loss {self.name} failed on a batch of {len(targets)} "
                f"({type(error).__name__}: {told})",
                hint=raised_at(error, self.function),
            ) from error
        if not isinstance(value, Tensor) or not value.is_floating_point():
            raise MismatchError(f"the loss {self.name} returned a {_kind(value)}, not a tensor")
        if value.ndim == 0:
            return value.expand(len(targets))
        if value.shape != targets.shape[:1]:
            raise MismatchError(
                f"the loss {self.name} returned shape {tuple(value.shape)} for "
                f"{len(targets)} samples",
                hint="return one loss a sample, or their mean",
            )
        return value

    def hits(self, output: Any, targets: Tensor) -> None:
        return None

    @torch.no_grad()
    def check(self, model: nn.Module, batch: Batch) -> None:
        """Whether the loss of a batch is the mean of its samples' losses.

        Everything is measured in micro-batches and divided by the number of samples once, so
        another loss (a sum, a contrastive one, one weighted by class counts) would give numbers
        that depend on the batch size. Takes forward passes of eight samples at most.

        Raises:
            MismatchError: It is not.
        """
        ones = [part(batch, i, i + 1) for i in range(min(CHECKED_SAMPLES, len(batch)))]
        few = part(batch, 0, len(ones))
        together = self.losses(self.output(model, few), few.targets).double()
        alone = torch.cat([self.losses(self.output(model, one), one.targets) for one in ones])
        whole, mean = float(together.mean()), float(alone.double().mean())
        size = max(abs(whole), float(alone.abs().mean()))
        if abs(whole - mean) > CHECK_TOLERANCE * size:  # never true of NaN: told elsewhere
            raise MismatchError(
                f"the loss {self.name} of {len(few)} samples together is {whole:.6g}, the mean of "
                f"their own is {mean:.6g}: it is no mean over samples",
                hint="return one loss a sample (reduction='none')",
            )

    @torch.no_grad()
    def curvature_scores(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor, None]:
        """Ones, the losses, and None: the function does not tell which samples curve it most."""
        loss = self.losses(self.output(model, batch), batch.targets).double()
        return torch.ones_like(loss), loss, None


def _kind(value: object) -> str:
    return str(value.dtype) if isinstance(value, Tensor) else type(value).__name__
