"""Effective rank against closed forms, and its gradient against finite differences."""

import math

import pytest
import torch
from torch import nn

from clcurv.diagnostics.erank import effective_rank, mean_effective_rank
from clcurv.errors import MismatchError


def test_identity_has_full_rank_and_an_outer_product_rank_one():
    assert effective_rank(torch.eye(7)).item() == pytest.approx(7)
    outer = torch.outer(torch.randn(30), torch.randn(8))
    assert effective_rank(outer).item() == pytest.approx(1, abs=1e-5)


def test_known_singular_values():
    # Entropy of (1/2, 1/4, 1/4) is 1.5 ln 2.
    q, _ = torch.linalg.qr(torch.randn(20, 3, dtype=torch.float64))
    a = q * torch.tensor([2.0, 1.0, 1.0], dtype=torch.float64)
    assert effective_rank(a).item() == pytest.approx(2**1.5)


@pytest.mark.parametrize("factor", [1e-12, 3.0, 1e12])
def test_scale_does_not_matter(factor):
    a = torch.randn(40, 10, dtype=torch.float64)
    assert effective_rank(factor * a).item() == pytest.approx(effective_rank(a).item())


def _differences(a, step=1e-6):
    gradient = torch.zeros(a.shape, dtype=a.dtype)
    for i in range(a.numel()):
        sides = []
        for sign in (1, -1):
            moved = a.clone(memory_format=torch.contiguous_format)
            moved.view(-1)[i] += sign * step
            sides.append(effective_rank(moved).item())
        gradient.view(-1)[i] = (sides[0] - sides[1]) / (2 * step)
    return gradient


@pytest.mark.parametrize("shape", [(9, 4), (4, 9)])
def test_gradient_is_that_of_finite_differences(shape):
    torch.manual_seed(0)
    a = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(effective_rank(a), a)
    torch.testing.assert_close(found, _differences(a.detach()), rtol=1e-5, atol=1e-7)


def test_gradient_where_singular_values_coincide():
    # erank has its maximum at equal values: the gradient is zero, not NaN.
    q, _ = torch.linalg.qr(torch.randn(12, 5, dtype=torch.float64))
    a = q.clone().requires_grad_()
    (found,) = torch.autograd.grad(effective_rank(a), a)
    assert found.abs().max() < 1e-10
    pair = (q * torch.tensor([3.0, 1, 1, 2, 2], dtype=torch.float64)).requires_grad_()
    (found,) = torch.autograd.grad(effective_rank(pair), pair)
    torch.testing.assert_close(found, _differences(pair.detach()), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rank_deficient_matrices_have_a_finite_gradient_that_grows_the_rank(dtype):
    torch.manual_seed(1)
    a = (torch.randn(30, 3, dtype=dtype) @ torch.randn(3, 10, dtype=dtype)).requires_grad_()
    rank = effective_rank(a)
    (gradient,) = torch.autograd.grad(rank, a)
    assert rank.item() <= 3
    assert gradient.isfinite().all()
    assert effective_rank(a + 1e-2 * a.norm() * gradient / gradient.norm()) > rank


def test_zeros_and_nonfinite_values():
    assert effective_rank(torch.zeros(4, 3)).item() == 0
    assert math.isnan(effective_rank(torch.tensor([[1.0, float("nan")]])).item())


def _normed():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)
    )


def test_mean_over_layers_of_all_batches_together():
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 7), nn.Tanh(), nn.Linear(7, 3))
    x = torch.randn(50, 6)
    first = net[:2](x)
    second = net[:4](x)
    expected = (effective_rank(first) + effective_rank(second)) / 2
    found = mean_effective_rank(net, [x[:20], x[20:]], ["2", "4"])
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)


def test_a_training_network_is_not_disturbed():
    net = _normed().train()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    state = torch.get_rng_state()
    mean_effective_rank(net, [torch.randn(32, 6, generator=torch.Generator())], ["4"])
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())
    assert net[3].training
    assert torch.equal(state, torch.get_rng_state())  # no dropout was drawn
    assert not net[4]._forward_pre_hooks


def test_a_layer_that_does_not_run_is_named():
    class Idle(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.idle = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.used(x)

    with pytest.raises(MismatchError, match="layer idle does not run"):
        mean_effective_rank(Idle(), [torch.randn(5, 4)], ["idle"])
