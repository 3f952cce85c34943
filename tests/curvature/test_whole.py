"""The whole network as one matrix against the dense oracles; several vectors at once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from curvature_cases import CASES, Case, case_of
from oracles import DENSE, row_hessians, rows_of, term_losses
from torch import Tensor, nn

from clcurv.curvature import operators
from clcurv.curvature.fisher import EmpiricalFisherGraph
from clcurv.curvature.ggn import GGNGraph
from clcurv.curvature.hessian import HessianGraph
from clcurv.curvature.numerics import borrowed, exact_numerics
from clcurv.curvature.objective import Objective
from clcurv.curvature.operators import BlockOperator, vectors_together
from clcurv.curvature.whole import (
    WHOLE,
    dense,
    gram,
    gram_rows,
    products_with,
    weighted_residual,
)
from clcurv.errors import NumericalError, UsageError
from clcurv.inputs.dataset import Samples

GRAPHS = {"hessian": HessianGraph, "ggn": GGNGraph, "empirical-fisher": EmpiricalFisherGraph}


@contextmanager
def operator_on(case: Case, kind: str, size: int = 5, **options) -> Iterator[BlockOperator]:
    params = list(case.model.parameters())
    with exact_numerics(case.model), borrowed(case.model, params, dtype=torch.float64):
        yield BlockOperator(
            GRAPHS[kind],
            case.model,
            {WHOLE: params},
            case.samples.split(size),
            case.objective,
            **options,
        )


def oracle(case: Case, kind: str) -> Tensor:
    params = list(case.model.parameters())
    samples = case.samples
    return DENSE[kind](case.model, samples.inputs, samples.targets, case.objective.name, params)


@pytest.mark.parametrize("kind", list(GRAPHS))
@pytest.mark.parametrize("name", ["conv", "attention", "next_token", "regression", "one_hot"])
def test_dense_is_the_oracles_matrix(name: str, kind: str) -> None:
    """Ragged micro-batches, tied weights, masked tokens, both losses."""
    case = case_of(name)
    expected = oracle(case, kind)
    with operator_on(case, kind, keep_graphs=2, together=8) as operator:
        found = dense(operator)
    assert torch.allclose(found, expected, atol=1e-10 * float(expected.abs().max()))


@pytest.mark.parametrize("kind", list(GRAPHS))
@pytest.mark.parametrize("name", list(CASES))
def test_vectors_together_are_vectors_one_by_one(name: str, kind: str) -> None:
    case = case_of(name)
    with operator_on(case, kind) as operator:
        torch.manual_seed(0)
        vectors = torch.randn(5, operator.numel(WHOLE), dtype=torch.float64)
        one_by_one = products_with(operator, vectors)
    with operator_on(case, kind, together=3) as operator:
        together = products_with(operator, vectors)
        assert operator.product_samples[WHOLE] == 5 * len(case.samples)
    assert torch.allclose(together, one_by_one, atol=1e-12 * float(one_by_one.abs().max()))


class Unbatchable(torch.autograd.Function):
    """Its second backward asks for a number, which batched tensors do not have."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        if float(g.detach().abs().max()) < 0:
            raise AssertionError
        return 2 * x * g


class Square(nn.Module):
    def __init__(self, *, batchable: bool) -> None:
        super().__init__()
        self.batchable = batchable

    def forward(self, x: Tensor) -> Tensor:
        return x**2 if self.batchable else Unbatchable.apply(x)


def squares(*, batchable: bool) -> Case:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), Square(batchable=batchable), nn.Linear(4, 2)).double()
    return Case(model, Samples(torch.randn(7, 3).double(), torch.randint(2, (7,))), Objective())


def test_what_cannot_be_batched_is_taken_one_by_one() -> None:
    case, expected = squares(batchable=False), oracle(squares(batchable=True), "hessian")
    with operator_on(case, "hessian", together=8) as operator:
        found = dense(operator)
        assert operator.notes == ["products taken 1 at a time"]
    assert torch.allclose(found, expected, atol=1e-12)


def test_without_memory_for_all_it_takes_fewer_together(monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of("regression")
    real = operators.pullback

    def pullback(outputs, vector, inputs, *, batched=False):
        if batched and len(vector[0]) > 2:
            raise torch.OutOfMemoryError("too many")
        return real(outputs, vector, inputs, batched=batched)

    monkeypatch.setattr("clcurv.curvature.hessian.pullback", pullback)
    with operator_on(case, "hessian", together=8) as operator:
        found = dense(operator)
        assert operator.notes == ["products taken 4 at a time", "products taken 2 at a time"]
    assert torch.allclose(found, oracle(case, "hessian"), atol=1e-12)


def test_small_products_go_together_on_a_cpu_and_all_on_a_gpu() -> None:
    assert vectors_together("cpu", 1e6) > 1
    assert vectors_together("cpu", 1e10) == 1
    assert vectors_together("cuda", 1e10) > 1


class TestGram:
    @pytest.mark.parametrize("kind", ["ggn", "empirical-fisher"])
    @pytest.mark.parametrize("name", list(CASES))
    def test_rows_make_both_matrices(self, name: str, kind: str) -> None:
        """AᵀA is the oracle's curvature, and AAᵀ has its non-zero eigenvalues."""
        case = case_of(name)
        expected = oracle(case, kind)
        params = list(case.model.parameters())
        with exact_numerics(case.model), borrowed(case.model, params, dtype=torch.float64):
            rows = gram_rows(kind, case.model, params, case.samples.split(5), case.objective)
        scale = float(expected.abs().max())
        assert torch.allclose(rows.T @ rows, expected, atol=1e-10 * scale)
        k = min(rows.shape)
        left, right = torch.linalg.eigvalsh(gram(rows)), torch.linalg.eigvalsh(expected)
        assert torch.allclose(left[-k:], right[-k:], atol=1e-10 * scale)

    def test_carries_the_objectives_scale(self) -> None:
        case = case_of("conv")
        params = list(case.model.parameters())
        case.model.eval()
        one, three = (
            gram(gram_rows("ggn", case.model, params, case.samples.split(4), Objective(scale=s)))
            for s in (1.0, 3.0)
        )
        assert torch.allclose(3 * one, three)

    def test_of_the_hessian_is_refused(self) -> None:
        case = case_of("conv")
        with pytest.raises(UsageError, match="not of the Hessian"):
            gram_rows("hessian", case.model, [], [], case.objective)

    def test_names_the_sample_that_is_not_finite(self) -> None:
        case = case_of("regression")
        inputs = case.samples.inputs
        assert isinstance(inputs, Tensor)
        inputs[3, 0] = torch.nan
        params = list(case.model.parameters())
        with pytest.raises(NumericalError, match="sample 3"):
            gram_rows("ggn", case.model, params, case.samples.split(4), case.objective)

    def test_what_cannot_be_batched_is_taken_row_by_row(self) -> None:
        case = squares(batchable=False)
        params = list(case.model.parameters())
        rows = gram_rows("ggn", case.model, params, case.samples.split(4), case.objective)
        expected = oracle(squares(batchable=True), "ggn")
        assert torch.allclose(rows.T @ rows, expected, atol=1e-12)


class TestResidual:
    @pytest.mark.parametrize("scale", [1.0, 2.5])
    @pytest.mark.parametrize("loss", ["cross-entropy", "mse"])
    def test_its_square_is_the_gradient_in_the_inverse_curvature(
        self, loss: str, scale: float
    ) -> None:
        """|s|² = ∇ᵀC⁺∇ with the oracle's C and ∇, by term."""
        torch.manual_seed(0)
        rows = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
        targets: Tensor = torch.randint(4, (6,))
        if loss == "mse":
            targets = torch.randn(6, 4, dtype=torch.float64)
        slope = scale * torch.autograd.grad(term_losses(rows, targets, loss).sum(), rows)[0]
        curved = scale * row_hessians(rows.detach(), loss)
        expected = torch.einsum("tc,tcd,td->t", slope, torch.linalg.pinv(curved), slope)
        found = weighted_residual(rows.detach(), targets, Objective(loss, scale))
        assert torch.allclose(found.square().sum(1), expected, rtol=1e-8)

    def test_of_a_certain_mistake_stays_finite(self) -> None:
        rows = torch.tensor([[0.0, 200.0]])
        found = weighted_residual(rows, torch.tensor([0]), Objective())
        assert float(found.square().sum()) == pytest.approx(math.exp(200.0))

    def test_meets_the_rows_of_the_gram_matrix(self) -> None:
        """Aᵀs/√T is the gradient of the mean loss."""
        for name in ("conv", "next_token", "regression", "one_hot"):
            case = case_of(name)
            params = list(case.model.parameters())
            samples = case.samples
            case.model.eval()
            a = gram_rows("ggn", case.model, params, samples.split(5), case.objective)
            rows, targets = rows_of(
                case.model, samples.inputs, samples.targets, case.objective.name
            )
            loss = term_losses(rows, targets, case.objective.name).mean()
            grads = torch.autograd.grad(loss, params, retain_graph=True)
            expected = torch.cat([g.reshape(-1) for g in grads])
            s = weighted_residual(rows.detach(), targets, case.objective).reshape(-1)
            assert torch.allclose(a.T @ s / len(rows) ** 0.5, expected, atol=1e-12)
