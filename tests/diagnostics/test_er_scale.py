"""The two gradients against autograd on the plain loss and rank."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from clcurv.curvature.objective import Objective
from clcurv.diagnostics.er_scale import measure_er_scale
from clcurv.diagnostics.erank import effective_rank
from clcurv.diagnostics.features import measure_features
from clcurv.diagnostics.window import er_window
from clcurv.errors import NumericalError
from clcurv.inputs.dataset import Samples


def case(n=90):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 4))
    return net, Samples(torch.randn(n, 5), torch.randint(0, 4, (n,)))


def norm(grads):
    return sum(float(g.square().sum()) for g in grads if g is not None) ** 0.5


def test_both_gradients_are_those_of_autograd():
    net, samples = case()
    found = measure_er_scale(
        net, samples, Objective(), measure_features(net, samples), batch_size=40,
        dtype=torch.float64,
    )  # fmt: skip
    net.double()
    x = samples.inputs.double()
    params = list(net.parameters())
    loss = functional.cross_entropy(net(x), samples.targets)
    rank = (effective_rank(net[:2](x)) + effective_rank(net[:4](x))) / 2
    assert found.window == 90  # fewer than the smallest window: all
    assert found.layers == ("2", "4")
    assert found.effective_rank == pytest.approx(rank.item(), rel=1e-6)
    assert found.task_gradient == pytest.approx(norm(torch.autograd.grad(loss, params)), rel=1e-5)
    expected = norm(torch.autograd.grad(rank, params, allow_unused=True))
    assert found.er_gradient == pytest.approx(expected, rel=1e-4)
    assert found.ratio == pytest.approx(found.er_gradient / found.task_gradient)


def test_the_window_has_rows_for_every_feature():
    net, samples = case(n=700)
    features = measure_features(net, samples)
    assert er_window(features, 700) == 100
    from dataclasses import replace

    wide = [replace(features[0], d=400), features[1]]
    assert er_window(wide, 700) == 600
    assert er_window([replace(features[0], d=4000)], 700) == 1200
    positions = [replace(features[0], d=400, n=7000)]  # ten rows a sample
    assert er_window(positions, 700) == 100


def test_the_model_comes_back_as_it_was():
    net, samples = case()
    net.train()
    net[0].weight.requires_grad_(False)
    before = [p.clone() for p in net.parameters()]
    measure_er_scale(net, samples, Objective(), measure_features(net, samples))
    assert net.training
    assert not net[0].weight.requires_grad
    assert all(p.grad is None for p in net.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))


def test_dead_features_have_no_gradient():
    net, samples = case()
    features = measure_features(net, samples)
    with torch.no_grad():
        net[0].bias[:] = -1e3
        net[2].bias[:] = -1e3
    found = measure_er_scale(net, samples, Objective(), features)
    assert (found.effective_rank, found.er_gradient) == (0.0, 0.0)


def test_a_loss_that_is_not_finite():
    net, samples = case()
    features = measure_features(net, samples)
    with torch.no_grad():
        net[4].bias[0] = float("nan")
    with pytest.raises(NumericalError, match="gradient of the loss is not finite"):
        measure_er_scale(net, samples, Objective(), features)
