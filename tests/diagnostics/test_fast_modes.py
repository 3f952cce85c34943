"""Fast modes against dense eigenvectors and against gradient descent on the linearised loss."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from curvature_cases import Case, case_of
from oracles import row_hessians, rows_of, term_losses
from torch import Tensor, nn

from clcurv.curvature.objective import Objective
from clcurv.diagnostics.fast_modes import fast_band, measure_fast_modes
from clcurv.diagnostics.spectrum import FastModes
from clcurv.errors import NumericalError, UsageError
from clcurv.inputs.dataset import Samples


def dense_modes(case: Case) -> tuple[np.ndarray, np.ndarray, Tensor, Tensor]:
    """Eigenvalues of C^{1/2} J Jᵀ C^{1/2}/T, the residual's energy in each, G, and r_0."""
    loss, samples = case.objective.name, case.samples
    case.model.eval()
    params = list(case.model.parameters())
    rows, targets = rows_of(case.model, samples.inputs, samples.targets, loss)
    jacobian = torch.stack(
        [
            torch.cat(
                [g.reshape(-1) for g in torch.autograd.grad(value, params, retain_graph=True)]
            )
            for value in rows.reshape(-1)
        ]
    )
    (slope,) = torch.autograd.grad(term_losses(rows, targets, loss).sum(), rows)
    values, vectors = torch.linalg.eigh(row_hessians(rows.detach(), loss))
    roots = vectors * values.clamp(min=0).sqrt()[:, None] @ vectors.mT
    root = torch.block_diag(*roots)
    gram = root @ jacobian @ jacobian.T @ root / len(rows)
    start = torch.linalg.pinv(root, rtol=1e-10) @ slope.reshape(-1)
    mu, modes = torch.linalg.eigh((gram + gram.T) / 2)
    return mu.numpy(), (modes.T @ start).square().numpy(), gram, start


def measured(case: Case, method: str, **options) -> FastModes:
    options = {"lr": 0.1, "steps": 200, "dtype": "float64", "batch_size": 5, **options}
    params = {"all": list(case.model.parameters())}
    return measure_fast_modes(
        case.model, params, case.samples, case.objective, method=method, **options
    )


class TestBand:
    def test_its_edges_shrink_to_gamma(self) -> None:
        lower, upper = fast_band(0.01, 2000, gamma=0.01)
        for mu in (lower, upper):
            assert abs(1 - 0.01 * mu) ** 2000 == pytest.approx(0.01, rel=1e-6)
        assert lower == pytest.approx(math.log(100) / (0.01 * 2000), rel=2e-3)

    def test_momentum_quickens(self) -> None:
        assert fast_band(0.01, 50, 0.9) == pytest.approx(fast_band(0.1, 50))

    def test_many_steps_keep_their_digits(self) -> None:
        lower, _ = fast_band(1e-3, 10**9, gamma=0.5)
        assert lower == pytest.approx(math.log(2) / 1e6, rel=1e-8)

    @pytest.mark.parametrize(
        "bad",
        [(0.0, 10), (-1.0, 10), (math.nan, 10), (math.inf, 10), (0.1, 0), (0.1, 10, 1.0),
         (0.1, 10, -0.1), (0.1, 10, 0.0, 0.0), (0.1, 10, 0.0, 1.0)],
    )  # fmt: skip
    def test_refuses_what_is_out_of_range(self, bad: tuple) -> None:
        with pytest.raises(UsageError):
            fast_band(*bad)


@pytest.mark.parametrize("method", ["gram", "lanczos-quadrature"])
@pytest.mark.parametrize("lr", [0.03, 0.3])
@pytest.mark.parametrize("name", ["conv", "attention", "next_token", "regression", "one_hot"])
def test_share_is_the_dense_eigendecompositions(name: str, lr: float, method: str) -> None:
    case = case_of(name)
    mu, energy, _, _ = dense_modes(case)
    lower, upper = fast_band(lr, 200)
    inside = (mu >= lower) & (mu <= upper)
    assert inside.any()
    found = measured(case, method, lr=lr)
    assert (found.lower, found.upper) == (lower, upper)
    assert found.status == "ok"
    assert found.share == pytest.approx(energy[inside].sum() / energy.sum(), rel=1e-6)
    slope = mu * energy
    assert found.gradient_share == pytest.approx(slope[inside].sum() / slope.sum(), rel=1e-6)
    if method == "gram":
        assert found.count == inside.sum()
        assert found.half_steps is None
    else:
        assert found.half_steps == pytest.approx(found.share, rel=1e-3)


@pytest.mark.parametrize("name", ["conv", "attention", "next_token", "regression", "one_hot"])
def test_its_error_is_the_spread_of_its_influences(name: str) -> None:
    """∂share/∂(weight of a sample) by central differences of the dense definition."""
    case = case_of(name)
    mu, _, gram, start = dense_modes(case)
    lower, upper = fast_band(0.3, 200)
    inside = np.flatnonzero((mu >= lower) & (mu <= upper))
    assert inside[-1] == len(mu) - 1  # counted from the top, as the weights change
    targets = case.samples.targets
    terms = [case.objective.terms(targets[i : i + 1]) for i in range(len(targets))]
    owners = torch.arange(len(terms)).repeat_interleave(
        torch.tensor(terms) * (len(start) // sum(terms))
    )

    def share(weights: Tensor) -> float:
        root = weights.sqrt()[owners]
        _, modes = torch.linalg.eigh(root[:, None] * gram * root)
        scaled = root * start
        held = (modes[:, -len(inside) :].T @ scaled).square().sum()
        return float(held / scaled.square().sum())

    h, total = 1e-5, 0.0
    for i in range(len(terms)):
        step = h * torch.nn.functional.one_hot(torch.tensor(i), len(terms)).double()
        total += ((share(1 + step) - share(1 - step)) / (2 * h)) ** 2
    found = measured(case, "gram", lr=0.3)
    assert found.share == pytest.approx(share(torch.ones(len(terms)).double()), rel=1e-6)
    assert found.share_stderr == pytest.approx(math.sqrt(total), rel=1e-4)
    assert measured(case, "lanczos-quadrature", lr=0.3).share_stderr is None


@pytest.mark.parametrize("name", ["regression", "conv"])
def test_fast_modes_are_what_descent_on_the_linearised_loss_fits(name: str) -> None:
    """K steps leave of the residual what the slow modes hold, up to γ² of the fast ones."""
    case = case_of(name)
    _, _, gram, start = dense_modes(case)
    lr, steps, gamma = 0.05, 400, 1e-3
    residual = start.clone()
    for _ in range(steps):
        residual = residual - lr * (gram @ residual)
    found = measured(case, "gram", lr=lr, steps=steps, gamma=gamma)
    left = float(residual.square().sum() / start.square().sum())
    assert left <= 1 - found.share + gamma**2
    # The slow modes shrink too, but never to γ.
    assert left >= (1 - found.share) * gamma**2


def test_too_few_lanczos_steps_say_so() -> None:
    """A ladder of eigenvalues with the edge in its midst."""
    torch.manual_seed(0)
    d = 60
    model = nn.Linear(d, 1, bias=False).double()
    x = torch.diag(torch.logspace(-2, 1, d).double().sqrt() * d**0.5)
    case = Case(model, Samples(x, torch.randn(d, 1).double()), Objective("mse"))
    options = {"lr": 0.1, "steps": 100, "batch_size": 60}
    few = measured(case, "lanczos-quadrature", lanczos_steps=6, **options)
    many = measured(case, "lanczos-quadrature", lanczos_steps=60, **options)
    assert few.status == "not-resolved"
    assert "6 and 3" in few.reason
    assert many.status == "ok"
    assert many.share == pytest.approx(measured(case, "gram", **options).share, rel=1e-6)


def test_the_method_is_chosen_by_size() -> None:
    case = case_of("conv")
    assert measured(case, "auto").method == "gram"
    assert measured(case, "auto", memory=20_000, lanczos_steps=8).method == "lanczos"


def test_terms_that_carry_the_residual_are_counted() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 2).double()
    x = torch.randn(200, 4).double()
    y = (model(x).argmax(1)).long()
    y[0] = 1 - y[0]
    model.weight.data *= 40
    model.bias.data *= 40
    found = measured(Case(model, Samples(x, y), Objective()), "gram")
    assert found.carrying_terms == pytest.approx(1.0, abs=0.1)
    assert "1 of 200 loss terms" in found.notes[0]


@pytest.mark.parametrize("method", ["gram", "lanczos-quadrature"])
def test_without_a_residual_nothing_is_fitted(method: str) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    x = torch.randn(8, 3).double()
    found = measured(Case(model, Samples(x, model(x).detach()), Objective("mse")), method)
    assert (found.share, found.status) == (0.0, "below-resolution")


@pytest.mark.parametrize("method", ["gram", "lanczos-quadrature"])
def test_an_edge_under_rounding(method: str) -> None:
    found = measured(case_of("conv"), method, lr=10.0, steps=10**9, dtype="float32")
    assert found.status == "below-resolution"


def test_a_mistake_too_certain_for_the_model_is_named() -> None:
    model = nn.Linear(1, 2, bias=False).double()
    model.weight.data = torch.tensor([[0.0], [2000.0]]).double()
    x, y = torch.ones(6, 1).double(), torch.tensor([1, 1, 1, 0, 1, 1])
    with pytest.raises(NumericalError, match="loss term 3"):
        measured(Case(model, Samples(x, y), Objective()), "lanczos-quadrature")


def test_dense_is_no_way_to_fast_modes() -> None:
    with pytest.raises(UsageError):
        measured(case_of("conv"), "dense")
