"""Layers with cheap second derivatives: held against torch's own double backward in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from clcurv.curvature.lean import lean_graphs


def _normed(*shape: int, **options):
    norm = nn.LayerNorm(shape, **options)
    for p in norm.parameters():
        nn.init.normal_(p, 1.0, 0.3)
    return norm


def _batch_norm(kind, channels: int, **options):
    norm = kind(channels, **options)
    for p in norm.parameters():
        nn.init.normal_(p, 1.0, 0.3)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2.0)
    return norm


class InPlace(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.silu(x, inplace=True).mul_(2)


class Continued(nn.Module):
    """Goes on in place with what the normalisation returned."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, x.shape[-1:]).mul_(3).sub_(0.1)


def network(middle: nn.Module, *, image: bool) -> nn.Module:
    if image:
        return nn.Sequential(nn.Conv2d(2, 4, 3), middle, nn.Flatten(), nn.Linear(4 * 4, 3))
    return nn.Sequential(nn.Linear(5, 6), middle, nn.Flatten(), nn.Linear(4 * 6, 3))


MIDDLES = {
    "gelu": (nn.GELU, False),
    "gelu-tanh": (lambda: nn.GELU(approximate="tanh"), False),
    "silu": (nn.SiLU, False),
    "silu in place": (InPlace, False),
    "layer norm": (lambda: _normed(6), False),
    "layer norm without bias": (lambda: _normed(6, bias=False), False),
    "layer norm without weight": (lambda: nn.LayerNorm(6, elementwise_affine=False), False),
    "layer norm over two dimensions": (lambda: _normed(4, 6), False),
    "layer norm continued in place": (Continued, False),
    "two norms": (lambda: nn.Sequential(_normed(6), nn.GELU(), _normed(6)), False),
    "batch norm": (lambda: _batch_norm(nn.BatchNorm2d, 4), True),
    "batch norm without weight": (lambda: _batch_norm(nn.BatchNorm2d, 4, affine=False), True),
    "batch norm of rows": (lambda: _batch_norm(nn.BatchNorm1d, 4), False),
}


def made(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    make, image = MIDDLES[name]
    torch.manual_seed(3)
    model = network(make(), image=image).double().eval()
    x = torch.randn(7, 2, 4, 4) if image else torch.randn(7, 4, 5)
    return model, x.double().requires_grad_(), torch.randint(3, (7,))


def dense(model: nn.Module, x: Tensor, y: Tensor, *, lean: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Loss, gradient and Hessian over the parameters and the input."""
    variables = [*model.parameters(), x]
    if lean:
        with lean_graphs():
            output = model(x)
    else:
        output = model(x)
    loss = functional.cross_entropy(output, y) + output.pow(3).sum()
    grads = torch.autograd.grad(loss, variables, create_graph=True)
    flat = torch.cat([g.reshape(-1) for g in grads])
    rows = []
    for value in flat:
        row = torch.autograd.grad(value, variables, retain_graph=True, materialize_grads=True)
        rows.append(torch.cat([r.reshape(-1) for r in row]))
    return loss.detach(), flat.detach(), torch.stack(rows)


@pytest.mark.parametrize("name", MIDDLES)
def test_value_gradient_and_hessian_are_torchs(name: str) -> None:
    model, x, y = made(name)
    for ours, theirs in zip(
        dense(model, x, y, lean=True), dense(model, x, y, lean=False), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", MIDDLES)
def test_several_vectors_at_once(name: str) -> None:
    model, x, y = made(name)
    variables = list(model.parameters())
    vectors = [torch.randn(3, *p.shape, dtype=p.dtype) for p in variables]
    with lean_graphs():
        output = model(x)
    grads = torch.autograd.grad(functional.cross_entropy(output, y), variables, create_graph=True)
    together = torch.autograd.grad(
        grads, variables, vectors, retain_graph=True, is_grads_batched=True
    )
    for k in range(3):
        alone = torch.autograd.grad(grads, variables, [v[k] for v in vectors], retain_graph=True)
        for a, b in zip(together, alone, strict=True):
            torch.testing.assert_close(a[k], b)


@pytest.mark.parametrize("name", ["gelu", "layer norm", "silu"])
def test_a_plain_gradient_is_torchs(name: str) -> None:
    model, x, y = made(name)
    with lean_graphs():
        output = model(x)
    ours = torch.autograd.grad(functional.cross_entropy(output, y), list(model.parameters()))
    theirs = torch.autograd.grad(functional.cross_entropy(model(x), y), list(model.parameters()))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", ["gelu", "layer norm"])
def test_a_third_derivative_is_refused_and_never_wrong(name: str) -> None:
    model, x, y = made(name)
    with lean_graphs():
        loss = functional.cross_entropy(model(x), y)
    (grad,) = torch.autograd.grad(loss, x, create_graph=True)
    with pytest.raises(RuntimeError, match="third derivative"):
        torch.autograd.grad(grad.sum(), x, create_graph=True)


def test_batch_statistics_are_left_to_torch() -> None:
    norm, x = nn.BatchNorm1d(3).train(), torch.randn(8, 3)
    with lean_graphs():
        out = norm(x)
    assert float(out.detach().mean()) == pytest.approx(0, abs=1e-6)
    assert norm.num_batches_tracked == 1


def test_without_gradients_nothing_is_rewritten() -> None:
    with torch.no_grad(), lean_graphs():
        assert torch.equal(nn.GELU()(torch.ones(3)), functional.gelu(torch.ones(3)))


class Count(TorchDispatchMode):
    """Operations that read or write whole tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.found = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not func.is_view:
            self.found += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("name", "part"), [("gelu", 0.75), ("layer norm", 0.65), ("batch norm", 0.7)]
)
def test_a_product_takes_fewer_operations(name: str, part: float) -> None:
    model, x, y = made(name)
    weight = next(model.parameters())
    counts = []
    for lean in (True, False):
        if lean:
            with lean_graphs():
                output = model(x)
        else:
            output = model(x)
        loss = functional.cross_entropy(output, y)
        (grad,) = torch.autograd.grad(loss, weight, create_graph=True)
        with Count() as count:
            torch.autograd.grad(grad, weight, torch.ones_like(grad), retain_graph=True)
        counts.append(count.found)
    assert counts[0] <= part * counts[1], counts
