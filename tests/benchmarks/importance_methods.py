"""Per-sample importances as clcurv, a plain loop and BackPACK take them, on the same samples.

Every method returns parameter name -> mean over the samples of |g_n| (``mas``, g_n the gradient of
‖f(x_n)‖²) or g_n² (``fisher-empirical``, of the cross-entropy at the label), in float32 passes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clcurv.curvature.importance import measure_importance
from clcurv.curvature.objective import Objective
from clcurv.inputs.dataset import Samples

Found = dict[str, Tensor]
BATCH = 32


@dataclass(frozen=True)
class Method:
    """One way to take importances.

    Attributes:
        call: What is called, as the table shows it.
        estimator: ``mas`` | ``fisher-empirical``.
        run: Model in eval mode, samples -> importances.
        module, distribution: What it needs beside torch.
    """

    call: str
    estimator: str
    run: Callable[[nn.Module, Samples], Found]
    module: str = "torch"
    distribution: str = "torch"


def ours(estimator: str) -> Callable[[nn.Module, Samples], Found]:
    def run(model: nn.Module, samples: Samples) -> Found:
        found = measure_importance(model, samples, Objective(), estimator=estimator)
        return dict(found.tensors)

    return run


def one_by_one(estimator: str) -> Callable[[nn.Module, Samples], Found]:
    """A backward pass a sample, as most continual-learning code that squares per sample has it."""

    def run(model: nn.Module, samples: Samples) -> Found:
        params = dict(model.named_parameters())
        total = {n: torch.zeros_like(p) for n, p in params.items()}
        for batch in samples.split(1):
            value = slope_of(model(batch.inputs), batch.targets, estimator)
            grads = torch.autograd.grad(value, list(params.values()))
            for t, g in zip(total.values(), grads, strict=True):
                t += g.abs() if estimator == "mas" else g.square()
        return {n: t / len(samples) for n, t in total.items()}

    return run


def backpack_gradients(estimator: str) -> Callable[[nn.Module, Samples], Found]:
    """`BatchGrad`: all gradients of a batch at once, then |.| or squares summed over it."""

    def run(model: nn.Module, samples: Samples) -> Found:
        from backpack import backpack
        from backpack.extensions import BatchGrad

        model = extended(model)
        total = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
        for batch in samples.split(BATCH):
            with backpack(BatchGrad()):
                slope_of(model(batch.inputs), batch.targets, estimator).backward()
            for n, p in model.named_parameters():
                g = p.grad_batch
                total[n] += (g.abs() if estimator == "mas" else g.square()).sum(0)
                del p.grad_batch
                p.grad = None
        return {n: t / len(samples) for n, t in total.items()}

    return run


def backpack_squares(model: nn.Module, samples: Samples) -> Found:
    """`SumGradSquared`: squares summed without forming the gradients where a layer allows it."""
    from backpack import backpack, extend
    from backpack.extensions import SumGradSquared

    model, loss = extended(model), extend(nn.CrossEntropyLoss(reduction="sum"))
    total = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    for batch in samples.split(BATCH):
        with backpack(SumGradSquared()):
            loss(model(batch.inputs), batch.targets).backward()
        for n, p in model.named_parameters():
            total[n] += p.sum_grad_squared
            del p.sum_grad_squared
            p.grad = None
    return {n: t / len(samples) for n, t in total.items()}


def extended(model: nn.Module) -> nn.Module:
    """As its documentation extends networks that are no chain, such as ResNets: converted first."""
    from backpack import extend

    return extend(model, use_converter=not isinstance(model, nn.Sequential)).eval()


def slope_of(output: Tensor, labels: Tensor, estimator: str) -> Tensor:
    """What is differentiated, summed over the batch."""
    if estimator == "mas":
        return output.square().sum()
    return F.cross_entropy(output, labels, reduction="sum")


_BACKPACK = {"module": "backpack", "distribution": "backpack-for-pytorch"}
METHODS: dict[str, Method] = {
    "clcurv": Method("`measure_importance(...)`", "mas", ours("mas")),
    "loop": Method("a backward pass a sample", "mas", one_by_one("mas")),
    "backpack": Method("`BatchGrad()`", "mas", backpack_gradients("mas"), **_BACKPACK),
    "clcurv-fisher": Method(
        "`measure_importance(..., estimator='fisher-empirical')`",
        "fisher-empirical",
        ours("fisher-empirical"),
    ),
    "loop-fisher": Method(
        "a backward pass a sample", "fisher-empirical", one_by_one("fisher-empirical")
    ),
    "backpack-fisher": Method(
        "`BatchGrad()`", "fisher-empirical", backpack_gradients("fisher-empirical"), **_BACKPACK
    ),
    "backpack-squares": Method(
        "`SumGradSquared()`", "fisher-empirical", backpack_squares, **_BACKPACK
    ),
}
