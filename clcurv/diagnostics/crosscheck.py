"""A second opinion: PyHessian's power iteration on the same blocks and data."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from clcurv.curvature.objective import Objective
from clcurv.curvature.operators import LayerParams, gradients_by_layer
from clcurv.diagnostics.kappa import CrossCheck, LayerSensitivity
from clcurv.inputs.dataset import Batch

MAX_ITERATIONS = 200
TOLERANCE = 1e-4
EACH_END = 3


def pyhessian_check(
    model: nn.Module,
    params: LayerParams,
    layers: Sequence[LayerSensitivity],
    batches: Sequence[Batch],
    objective: Objective,
    tell: Callable[[str, int, int], None],
) -> tuple[CrossCheck, ...]:
    """PyHessian's dominant eigenvalue of the most and the least sensitive layers.

    Power iteration finds the eigenvalue of largest absolute value, so it is compared with that
    one of ours: s, or λ_min where that is larger. Always the Hessian, whatever was measured.

    Args:
        model: In eval mode, in the measurement's precision and on its device.
        params: Layer name -> parameters.
        layers: What was measured.
        batches: The same data.
        objective: The same loss.
        tell: Progress, called with (stage, done, total).
    """
    from pyhessian import hessian

    ranked = sorted((x for x in layers if x.s is not None and x.s > 0), key=lambda x: -(x.s or 0))
    chosen = ranked if len(ranked) <= 2 * EACH_END else ranked[:EACH_END] + ranked[-EACH_END:]
    terms = sum(objective.terms(b.targets) for b in batches)
    rows = sum(len(b) for b in batches)
    every = list(model.parameters())
    before = [p.requires_grad for p in every]
    checks = []
    try:
        for i, layer in enumerate(chosen):
            tell("PyHessian", i, len(chosen))
            wanted = _depended_on(model, params[layer.name], batches[0], objective)
            for p in every:
                p.requires_grad_(id(p) in wanted)
            with _its_habits(every[0]):
                theirs = hessian(
                    _Forward(model, objective),
                    # It weighs batches by their rows; the loss is a mean over terms.
                    lambda output, targets: (
                        objective.losses(output, targets).sum() * (rows / terms / len(targets))
                    ),
                    dataloader=[(_Inputs(b), b.targets) for b in batches],
                    cuda=every[0].is_cuda,
                )
                values, _ = theirs.eigenvalues(maxIter=MAX_ITERATIONS, tol=TOLERANCE, top_n=1)
            s = float(layer.s or 0.0)
            low = layer.lambda_min
            ours = low if low is not None and -low > s else s
            checks.append(
                CrossCheck(
                    layer.name, ours, float(values[0]), abs(float(values[0]) - ours) / abs(ours)
                )
            )
        tell("PyHessian", len(chosen), len(chosen))
    finally:
        for p, required in zip(every, before, strict=True):
            p.requires_grad_(required)
            p.grad = None
    return tuple(checks)


def _depended_on(
    model: nn.Module, params: Sequence[nn.Parameter], batch: Batch, objective: Objective
) -> set[int]:
    """Ids of those parameters that the loss depends on: PyHessian stumbles over others."""
    for p in params:
        p.requires_grad_(True)
    grads = gradients_by_layer(objective.loss_sum(model, batch), {"": params})[""]
    return {id(p) for p, g in zip(params, grads, strict=True) if g is not None and g.requires_grad}


@contextmanager
def _its_habits(like: Tensor) -> Iterator[None]:
    """Its random vectors come from the global generator in the default dtype; it warns a lot."""
    dtype = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # backward(create_graph=True) warns every time
        torch.manual_seed(0)
        torch.set_default_dtype(like.dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)


class _Inputs:
    """A batch's inputs in the shape of the tensor PyHessian expects."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def size(self, _dim: int) -> int:
        return len(self.batch)

    def to(self, _device: object) -> _Inputs:
        return self


class _Forward(nn.Module):
    """The model called by clcurv's convention."""

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, inputs: _Inputs) -> Any:
        return self.objective.output(self.model, inputs.batch)
