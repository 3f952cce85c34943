"""The user's own loss: dense Hessians of it, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import clcurv
from clcurv.curvature.importance import measure_importance
from clcurv.curvature.objective import Objective
from clcurv.curvature.user_objective import UserObjective
from clcurv.errors import MismatchError, UsageError
from clcurv.inputs.dataset import Batch, Samples

GAMMA = 2.0


def focal(output: Tensor, targets: Tensor) -> Tensor:
    log_p = output.log_softmax(1).gather(1, targets[:, None])[:, 0]
    return -((1 - log_p.exp()) ** GAMMA) * log_p


def focal_mean(output: Tensor, targets: Tensor) -> Tensor:
    return focal(output, targets).mean()


def network(seed: int = 3) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def data(n: int = 21, seed: int = 4) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, 5, generator=g, dtype=torch.float64), torch.randint(3, (n,), generator=g)


def top_of_block(model: nn.Module, name: str, loss: Callable[[Tensor], Tensor]) -> float:
    """Largest eigenvalue of the dense Hessian of loss(θ_block)."""
    params = dict(model.named_parameters())
    names = [n for n in params if n.startswith(name)]
    sizes = [params[n].numel() for n in names]

    def of(flat: Tensor) -> Tensor:
        parts = zip(names, flat.split(sizes), strict=True)
        return loss({n: v.view_as(params[n]) for n, v in parts})  # type: ignore[arg-type]

    flat = torch.cat([params[n].detach().reshape(-1) for n in names])
    return float(torch.linalg.eigvalsh(torch.autograd.functional.hessian(of, flat))[-1])


@pytest.mark.parametrize("loss", [focal, focal_mean])
@pytest.mark.parametrize("batch_size", [None, 4])
def test_kappa_of_an_own_loss_is_the_dense_hessians(loss: Any, batch_size: int | None) -> None:
    model, (x, y) = network(), data()
    report = clcurv.kappa(
        model, data=(x.float(), y), loss=loss, dtype="float64", tol=1e-8, batch_size=batch_size
    )
    xs = x.float().double()

    def mean(parts: Any) -> Tensor:
        return focal(torch.func.functional_call(model, parts, xs), y).mean()

    assert report.document.data.accuracy is None
    for layer in report.document.groups:
        name = layer.name + "."
        assert layer.s == pytest.approx(top_of_block(model, name, mean), rel=1e-6)


def test_an_own_cross_entropy_gives_the_numbers_of_the_built_in_one() -> None:
    model, given = network(), data()
    own = clcurv.kappa(model, data=given, loss=F.cross_entropy, dtype="float64", cross_check=True)
    built_in = clcurv.kappa(model, data=given, dtype="float64")
    for a, b in zip(own.document.groups, built_in.document.groups, strict=True):
        assert a.s == pytest.approx(b.s, rel=1e-3)
    checks = own.document.cross_check
    assert checks
    assert all(abs(c.relative_difference) < 0.01 for c in checks)


class Pair(nn.Module):
    """Returns more than a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.a, self.b = nn.Linear(5, 4), nn.Linear(4, 3), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Any:
        h = self.trunk(x).tanh()
        return {"a": self.a(h), "b": self.b(h)}


def test_the_function_gets_the_output_as_the_model_returns_it() -> None:
    torch.manual_seed(0)
    model, (x, y) = Pair().double(), data()

    def both(output: dict[str, Tensor], targets: Tensor) -> Tensor:
        square = output["b"][:, 0].square()
        return F.cross_entropy(output["a"], targets, reduction="none") + square

    objective = UserObjective(function=both)
    samples = Samples(inputs=x, targets=y)
    batch = samples.split(len(y))[0]
    objective.check(model, batch)
    assert float(objective.loss_sum(model, batch).detach()) == pytest.approx(
        float(both(model(x), y).sum().detach())
    )


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda o, t: F.cross_entropy(o, t, reduction="sum"), "no mean over samples"),
        (lambda o, t: (o - o.mean(0)).square().mean(), "no mean over samples"),
        (lambda o, t: F.cross_entropy(o, t).item(), "not a tensor"),
        (lambda o, t: o.argmax(1), "not a tensor"),
        (lambda o, t: o, "shape"),
        (lambda o: o, "TypeError"),
        (lambda o, t: o.nothing, "AttributeError"),
    ],
)
def test_other_functions_are_refused(function: Any, says: str) -> None:
    x, y = data()
    with pytest.raises(MismatchError, match=says):
        UserObjective(function=function).check(network(), Batch(x, y))


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(UsageError, match="no function"):
        UserObjective(function=SimpleNamespace())  # type: ignore[arg-type]


@pytest.mark.parametrize("operator", ["ggn", "fisher", "empirical-fisher"])
def test_matrices_that_need_to_know_the_loss_are_refused(operator: str) -> None:
    with pytest.raises(UsageError, match="focal is yours"):
        clcurv.kappa(network(), data=data(), loss=focal, operator=operator)


def test_mas_does_not_depend_on_the_loss() -> None:
    x, y = data()
    samples = Samples(inputs=x, targets=y)
    own = measure_importance(
        network(), samples, UserObjective(name="mine", function=focal), dtype="float64"
    )
    plain = measure_importance(network(), samples, Objective(), dtype="float64")
    assert own.loss == "mine"
    assert own.mean_loss is None
    for name, value in plain.tensors.items():
        assert torch.allclose(own.tensors[name], value, rtol=1e-12)
    with pytest.raises(UsageError, match="likelihood"):
        measure_importance(
            network(), samples, UserObjective(function=focal), estimator="fisher-empirical"
        )
