"""Parameters that a part of the data never meets: found, and measured on all the data."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clcurv.curvature.objective import Objective
from clcurv.diagnostics.coverage import unmet_layers
from clcurv.diagnostics.sensitivity import measure_kappa
from clcurv.inputs.dataset import Batch, Samples
from clcurv.inputs.layers import discover_layers


class Words(nn.Module):
    """A vocabulary, a hidden layer and a head, fitted to random labels."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.emb = nn.Embedding(vocabulary, 6)
        self.mid, self.head = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.above(self.emb(ids).mean(1))

    def above(self, rows: Tensor) -> Tensor:
        return self.head(torch.relu(self.mid(rows)))


def fitted(seed: int, words: int = 400) -> tuple[Words, Tensor, Tensor]:
    torch.manual_seed(seed)
    model, ids, labels = (
        Words(words),
        torch.randint(0, words, (480, 1)),
        torch.randint(0, 4, (480,)),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(model(ids), labels).backward()
        optimizer.step()
    return model, ids, labels


def top_of_words(model: Words, ids: Tensor, labels: Tensor) -> float:
    """With a word a sample the embedding's block falls into a block for each word."""
    double = Words(len(model.emb.weight)).double()
    double.load_state_dict(model.state_dict())
    rows = double.emb.weight.detach()
    blocks = torch.zeros(len(rows), 6, 6, dtype=torch.float64)
    for word, label in zip(ids[:, 0], labels, strict=True):

        def loss(row: Tensor, label: Tensor = label) -> Tensor:
            return F.cross_entropy(double.above(row)[None], label[None])

        blocks[word] += torch.autograd.functional.hessian(loss, rows[word]) / len(ids)
    return float(torch.linalg.eigvalsh(blocks).max())


@pytest.mark.parametrize("lambda_min", [True, False])
@pytest.mark.parametrize("seed", [1, 5, 9])
def test_words_that_the_scout_never_meets(seed: int, lambda_min: bool) -> None:
    model, ids, labels = fitted(seed)
    truth = top_of_words(model, ids, labels)
    result = measure_kappa(
        model,
        discover_layers(model, Batch(ids[:2], labels[:2]), granularity="module"),
        Samples(ids, labels),
        Objective(),
        seed=seed,
        lambda_min=lambda_min,
    )
    assert result.layers[0].s == pytest.approx(truth, rel=1e-2)


def unmet(model: nn.Module, x: Tensor, part: int) -> tuple[frozenset[str], bool]:
    samples = Samples(x, torch.arange(len(x)) % 3)
    params = {name: [p] for name, p in model.named_parameters()}
    whole = samples.split(8)
    return unmet_layers(model, params, whole[:part], whole, Objective())


def test_units_that_are_off_on_a_part() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3))
    x = torch.randn(64, 3)
    x[:, 0] = -1.0
    x[32:, 0] = 1.0
    with torch.no_grad():
        model[0].weight[0] = torch.tensor([5.0, 0.0, 0.0])  # on in the second half alone
        model[0].bias[0] = 0.0
    found, read = unmet(model, x, 4)
    assert read
    assert {"0.weight", "0.bias", "2.weight"} == found
    assert unmet(model, x, 8) == (frozenset(), False)


def test_what_no_sample_meets_is_nobodys_loss() -> None:
    model, ids, _ = fitted(0, words=9)
    model.emb = nn.Embedding.from_pretrained(
        torch.cat([model.emb.weight.detach(), torch.randn(5, 6)]), freeze=False
    )
    samples = Samples(ids, torch.arange(len(ids)) % 4)
    params = {"emb": list(model.emb.parameters())}
    whole = samples.split(60)
    assert unmet_layers(model, params, whole[:2], whole, Objective()) == (frozenset(), True)
