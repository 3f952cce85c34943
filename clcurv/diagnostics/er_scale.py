"""The gradient of the effective rank beside that of the task's loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from clcurv.curvature.numerics import borrowed, exact_numerics
from clcurv.curvature.objective import Objective
from clcurv.diagnostics.erank import mean_effective_rank
from clcurv.diagnostics.sensitivity import move_samples
from clcurv.diagnostics.spectrum import LayerFeatures
from clcurv.diagnostics.survey import gradient_squares, within_memory
from clcurv.diagnostics.window import er_window
from clcurv.errors import NumericalError
from clcurv.inputs.dataset import Batch, Samples


@dataclass(frozen=True)
class ErScale:
    """How long a step up the effective rank is, measured on one network and its data.

    Attributes:
        er_gradient: ‖∇ mean_l erank_l‖ over all parameters, on a window of samples.
        task_gradient: ‖∇L‖ of the mean loss over all samples.
        effective_rank: mean_l erank_l on the window.
        layers: Hooked modules, in order of execution.
        window: Samples in the window.
    """

    er_gradient: float
    task_gradient: float
    effective_rank: float
    layers: tuple[str, ...]
    window: int

    @property
    def ratio(self) -> float | None:
        """‖∇ mean_l erank_l‖ / ‖∇L‖; None where the task has no gradient."""
        return self.er_gradient / self.task_gradient if self.task_gradient > 0 else None


def measure_er_scale(
    model: nn.Module,
    samples: Samples,
    objective: Objective,
    features: Sequence[LayerFeatures],
    *,
    batch_size: int = 64,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> ErScale:
    """Norms of both gradients, in eval mode.

    Args:
        model: Comes back as it was.
        samples: The task's; a window of them is drawn for the effective rank.
        objective: The task's loss.
        features: Of these samples (`measure_features`): the layers, and how large a window they
            need.
        batch_size: Largest micro-batch.
        device, dtype: Of the passes.

    Raises:
        NumericalError: A gradient that is not finite.
        ResourceError: Out of memory with a single sample.
    """
    layers = tuple(x.name for x in features)
    params = list(model.parameters())
    wanted = min(er_window(features, len(samples)), len(samples))
    moved = move_samples(samples, str(device), dtype)
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(samples.seed))

    def rank_gradient(size: int) -> tuple[float, float, int]:
        batch = _rows(moved, order[:size])
        rank = mean_effective_rank(model, [batch.inputs], layers)
        if not rank.requires_grad:  # a network whose features are all zero
            return float(rank.detach()), 0.0, size
        grads = torch.autograd.grad(rank, params, allow_unused=True)
        square = sum(float(g.double().square().sum()) for g in grads if g is not None)
        return float(rank.detach()), square**0.5, size

    with (
        borrowed(model, params, dtype=dtype, device=device),
        exact_numerics(model),
        torch.enable_grad(),
    ):
        rank, er_gradient, window = within_memory(rank_gradient, wanted)
        task = gradient_squares(model, {"all": params}, moved, batch_size, objective)["all"] ** 0.5
    for value, name in ((er_gradient, "effective rank"), (rank, "effective rank"), (task, "loss")):
        if not value < float("inf"):
            raise NumericalError(
                f"the gradient of the {name} is not finite",
                hint="clcurv reads the weights as they are: check the checkpoint and the inputs",
            )
    return ErScale(er_gradient, task, rank, layers, window)


def _rows(samples: Samples, rows: torch.Tensor) -> Batch:
    rows = rows.to(samples.targets.device)
    if isinstance(samples.inputs, torch.Tensor):
        return Batch(samples.inputs[rows], samples.targets[rows])
    return Batch({k: v[rows] for k, v in samples.inputs.items()}, samples.targets[rows])
