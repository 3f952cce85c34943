from __future__ import annotations

import pytest
import torch
from kappa_results import make_document, make_layer
from torch import nn


class Net(nn.Module):
    """Eleven blocks, so that blocks.1 and blocks.10 both exist."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(11))
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        return self.head(x)


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net()


@pytest.fixture
def make_report():
    """A report on a model: one group for each listed module, s falling by a factor."""

    def build(model, modules, *, head=("head",), factor=0.8):
        layers = []
        for depth, name in enumerate([*modules, *head]):
            params = {
                n: p for n, p in model.named_parameters() if n == name or n.startswith(name + ".")
            }
            layers.append(
                make_layer(
                    name, depth, factor**depth, param_names=tuple(params),
                    numel=sum(p.numel() for p in params.values()), is_head=name in head,
                )
            )  # fmt: skip
        return make_document(layers=layers)

    return build


@pytest.fixture
def report(net, make_report):
    return make_report(net, ["stem", *(f"blocks.{i}" for i in range(11))])
