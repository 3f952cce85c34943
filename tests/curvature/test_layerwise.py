"""Layer by layer against samples' own gradients, for every kind of layer and odd use of one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.pytorch_utils import Conv1D

from clcurv.curvature.importance_sums import Sums
from clcurv.curvature.layer_gradients import supported
from clcurv.curvature.layerwise import Layerwise
from clcurv.curvature.numerics import borrowed
from clcurv.curvature.objective import Objective
from clcurv.curvature.output_seeds import Seeds
from clcurv.curvature.per_sample import add_plainly
from clcurv.inputs.dataset import Batch

N = 5


class Twice(nn.Module):
    """One layer on two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(torch.tanh(self.a(x)))


class InPlace(nn.Module):
    """What is written over an output must not change its slope."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.b(self.a(x))
        y += x
        return self.act(y)


class Tied(nn.Module):
    """A table that is also the output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(7, 4), nn.Linear(4, 7)
        self.out.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(torch.tanh(self.table(ids)))


class Positions(nn.Module):
    """Positions are looked up once for the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.place = nn.Embedding(7, 4, padding_idx=0), nn.Embedding(6, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return torch.tanh(self.table(ids) + self.place(torch.arange(ids.shape[1])[None]))


class Windows(nn.Module):
    """A layer whose first dimension is not the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.a(x.reshape(-1, 3))).reshape(len(x), -1)


class Loose(nn.Module):
    """A parameter of no layer, and a layer whose weight is used from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.a, self.idle = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.tanh(self.a(x) * self.scale), self.idle.weight)


def floats(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(N, *shape).double()


def ids() -> Tensor:
    return torch.randint(7, (N, 6))


KINDS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "linear": (lambda: nn.Linear(4, 3), floats(4)),
    "linear on tokens": (lambda: nn.Linear(4, 3), floats(6, 4)),
    "linear on a grid": (lambda: nn.Linear(4, 3, bias=False), floats(2, 3, 4)),
    "transposed": (lambda: Conv1D(3, 4), floats(4)),
    "transposed on tokens": (lambda: Conv1D(3, 4), floats(6, 4)),
    "convolution": (lambda: nn.Conv2d(3, 4, 3), floats(3, 6, 7)),
    "stride, padding": (
        lambda: nn.Conv2d(3, 4, (3, 2), stride=(2, 1), padding=(1, 0)),
        floats(3, 7, 6),
    ),
    "dilation": (lambda: nn.Conv2d(3, 4, 2, dilation=2), floats(3, 6, 6)),
    "groups": (lambda: nn.Conv2d(4, 6, 3, groups=2), floats(4, 5, 5)),
    "depthwise": (lambda: nn.Conv2d(4, 4, 3, groups=4, bias=False), floats(4, 5, 5)),
    "one dimension": (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2), floats(4, 9)),
    "layer norm": (lambda: nn.LayerNorm(4), floats(6, 4)),
    "layer norm over two": (lambda: nn.LayerNorm((6, 4)), floats(2, 6, 4)),
    "layer norm of rows": (lambda: nn.LayerNorm(4), floats(4)),
    "group norm": (lambda: nn.GroupNorm(2, 4), floats(4, 3, 3)),
    "batch norm": (lambda: nn.BatchNorm2d(4), floats(4, 3, 3)),
    "batch norm of rows": (lambda: nn.BatchNorm1d(4), floats(4)),
    "embedding": (lambda: nn.Embedding(7, 4), ids),
    "padding": (lambda: nn.Embedding(7, 4, padding_idx=2), ids),
    "twice": (Twice, floats(4)),
    "in place": (InPlace, floats(2, 4, 4)),
    "tied": (Tied, ids),
    "positions": (Positions, ids),
}
LEFT = {
    "windows": (Windows, floats(6), {"a.weight", "a.bias"}),
    "loose": (Loose, floats(4), {"scale", "idle.weight", "idle.bias"}),
    "reflected": (
        lambda: nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"),
        floats(2, 4, 4),
        {"weight", "bias"},
    ),
    "lstm": (lambda: nn.GRUCell(4, 3), floats(4), None),
}


def prepared(make: Callable[[], nn.Module], data: Callable[[], Tensor]) -> tuple[nn.Module, Batch]:
    torch.manual_seed(0)
    model = make().double().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    for p in model.parameters():
        p.data += 0.3 * torch.randn_like(p)
    return model, Batch(data(), torch.zeros(N, 1).double())


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("estimator", ["mas", "fisher-empirical", "fisher"])
def test_every_kind_of_layer(name: str, estimator: str) -> None:
    model, batch = prepared(*KINDS[name])
    params = dict(model.named_parameters())
    with torch.no_grad():
        width = model(batch.inputs)[0].numel()
    batch = Batch(batch.inputs, torch.randn(N, width).double())
    seeds = Seeds(estimator, Objective("mse"))
    noise = torch.zeros(N, 1)
    groups = {n: [n] for n in params}
    fast, plain = Sums(params, groups), Sums(params, groups)
    with borrowed(model, list(params.values()), dtype=torch.float64):
        engine = Layerwise(model, params, seeds, batch)
        assert not engine.left
        fast.begin_chunk(N)
        rows = engine.add(batch, noise, fast)
        assert rows.shape == (N, 1, width)
        per_sample = {n: fast._chunk[n].clone() for n in params}
        for i in range(N):
            one = Batch(batch.inputs[i : i + 1], batch.targets[i : i + 1])
            add_plainly(model, params, seeds, one, noise[i : i + 1], plain)
            for n in params:
                assert torch.allclose(plain._chunk[n], per_sample[n][i : i + 1], atol=1e-12), n
    for n in params:
        assert torch.allclose(fast.total(n), plain.total(n), atol=1e-12), n
        assert bool(plain.total(n).any())


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_to_others(name: str) -> None:
    make, data, expected = LEFT[name]
    model, batch = prepared(make, data)
    params = dict(model.named_parameters())
    engine = Layerwise(model, params, Seeds("mas", Objective("mse")), batch)
    assert set(engine.left) == (set(params) if expected is None else expected)
    assert set(engine.covered) == set(params) - set(engine.left)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_subclasses_may_compute_anything() -> None:
    class Other(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    assert supported(nn.Linear(2, 2))
    assert not supported(Other(2, 2))
    assert not supported(nn.BatchNorm1d(2, track_running_stats=False))
    assert not supported(nn.Embedding(2, 2, max_norm=1.0))


def test_large_layers_are_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    from clcurv.curvature import layerwise

    model, batch = prepared(*KINDS["linear on tokens"])
    params = dict(model.named_parameters())
    seeds = Seeds("mas", Objective("mse"))
    found = []
    for block in (layerwise.BLOCK, 2 * 12):
        monkeypatch.setattr(layerwise, "BLOCK", block)
        sums = Sums(params, {n: [n] for n in params})
        sums.begin_chunk(N)
        Layerwise(model, params, seeds, batch).add(batch, torch.zeros(N, 1), sums)
        found.append((sums.total("weight").clone(), sums._chunk["weight"].clone()))
    assert torch.allclose(found[0][0], found[1][0])
    assert torch.allclose(found[0][1], found[1][1])
