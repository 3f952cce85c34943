"""Features of layers against their activations taken by hand."""

import pytest
import timm
import torch
from torch import nn
from torch.nn import functional
from transformers import BertConfig, BertForSequenceClassification

from clcurv.diagnostics.features import measure_features
from clcurv.errors import MismatchError, NumericalError, UsageError
from clcurv.inputs.dataset import Samples


def samples_of(inputs):
    first = inputs if isinstance(inputs, torch.Tensor) else next(iter(inputs.values()))
    return Samples(inputs, torch.zeros(len(first), dtype=torch.int64))


def erank(values):
    p = values / values.sum()
    return float((-(p * p.log()).sum()).exp())


def check(found, rows):
    """Both readings, the approximate rank, n and d, from the singular values of the rows."""
    sigma = torch.linalg.svdvals(rows.double())
    assert found.erank == pytest.approx(erank(sigma), rel=1e-6)
    assert found.erank_covariance == pytest.approx(erank(sigma**2), rel=1e-6)
    held = (sigma**2).cumsum(0) / (sigma**2).sum()
    assert found.approximate_rank == int((held < 0.99).sum()) + 1
    assert (found.n, found.d, found.ceiling) == (*rows.shape, min(rows.shape))


def mlp(d=10, width=12, act=nn.ReLU):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(d, width), act(), nn.Linear(width, width), act(), nn.Linear(width, 3)
    )


@pytest.mark.parametrize("batch_size", [7, 64])
def test_linear_layers_take_their_inputs_after_the_nonlinearity(batch_size):
    net, x = mlp(), torch.randn(100, 10)
    second, third = measure_features(net, samples_of(x), batch_size=batch_size)
    assert (second.name, third.name) == ("2", "4")  # the first layer's input is the data
    check(second, net[:2](x).detach())
    check(third, net[:4](x).detach())
    assert second.enough


def test_exact_ranks():
    class Fixed(nn.Module):
        def __init__(self, rows):
            super().__init__()
            self.rows, self.head = nn.Parameter(rows), nn.Linear(rows.shape[1], 2)

        def forward(self, x):
            return self.head(x @ self.rows)

    (full,) = measure_features(Fixed(torch.eye(9)), samples_of(torch.eye(9)))
    assert full.erank == pytest.approx(9)
    assert full.erank_covariance == pytest.approx(9)
    assert not full.enough
    one = Fixed(torch.outer(torch.randn(9), torch.randn(9)))
    (single,) = measure_features(one, samples_of(torch.randn(60, 9)), dtype=torch.float64)
    assert single.erank == pytest.approx(1, abs=1e-6)
    assert single.approximate_rank == 1


def test_convolutions_take_channels_as_features_and_positions_as_rows():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 4, 2), nn.ReLU(),
        nn.Flatten(), nn.Linear(36, 2),
    )  # fmt: skip
    x = torch.randn(11, 1, 10, 10)
    conv, head = measure_features(net, samples_of(x), batch_size=4)
    check(conv, net[:3](x).detach().permute(0, 2, 3, 1).reshape(-1, 6))
    check(head, net[:6](x).detach())
    assert conv.dormant is not None  # seen through the pooling
    assert not head.enough


def test_idle_units():
    net, x = mlp(width=10), torch.randn(200, 10)
    with torch.no_grad():
        net[0].bias[:3] = -1e3  # dead
        net[0].weight[3] = 0
        net[0].weight[3, 0] = 1.0
        net[0].bias[3] = -x[:, 0].topk(2).values.mean()  # active on one row in 200
    first, _ = measure_features(net, samples_of(x))
    assert first.dead == pytest.approx(0.3)
    assert first.dormant == pytest.approx(0.4)


@pytest.mark.parametrize("act", [nn.Tanh, nn.LeakyReLU, nn.Identity])
def test_what_is_never_off_has_no_idle_units(act):
    assert measure_features(mlp(act=act), samples_of(torch.randn(60, 10)))[0].dormant is None


@pytest.mark.parametrize("function", [functional.relu, functional.relu6, functional.gelu])
def test_nonlinearities_that_are_no_modules(function):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(5, 8), nn.Linear(8, 2)

        def forward(self, x):
            return self.b(function(self.a(x)).view(len(x), -1))

    assert measure_features(Net(), samples_of(torch.randn(60, 5)))[0].dormant is not None


def bert():
    torch.manual_seed(0)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=24, max_position_embeddings=12, num_labels=3, pad_token_id=0,
        )
    ).eval()  # fmt: skip


def test_tokens_are_rows_and_padding_is_left_out():
    net = bert()
    ids = torch.randint(1, 50, (20, 8))
    mask = (torch.arange(8) < torch.randint(2, 9, (20, 1))).long()
    ids = ids * mask
    found = {
        x.name: x
        for x in measure_features(net, samples_of({"input_ids": ids, "attention_mask": mask}))
    }
    embedded = net.bert.embeddings(ids).detach()
    names = [n for n in found if n.endswith(("query", "key", "value"))]
    assert len(names) == 1  # they share one input
    check(found[names[0]], embedded[mask.bool()])
    hidden = next(x for n, x in found.items() if n.endswith("output.dense") and x.d == 24)
    assert (hidden.n, hidden.dormant is None) == (int(mask.sum()), False)
    assert found["classifier"].n == 20


def test_fused_encoders_show_their_layers():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    net = nn.Sequential(
        nn.Linear(4, 8), nn.TransformerEncoder(layer, 1), nn.Flatten(), nn.Linear(24, 2)
    )
    names = [x.name for x in measure_features(net, samples_of(torch.randn(9, 3, 4)))]
    assert "1.layers.0.linear2" in names


def test_the_model_comes_back_as_it_was():
    net = timm.create_model("resnet18", channels=[4, 4, 8, 8], num_classes=3).train()
    net.conv1.weight.requires_grad_(False)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    found = measure_features(net, samples_of(torch.randn(6, 3, 32, 32)))
    assert "conv1" not in [x.name for x in found]
    assert net.training
    assert not net.conv1.weight.requires_grad
    assert all(p.grad is None for p in net.parameters())
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())
    assert not any(m._forward_pre_hooks for m in net.modules())


def test_layers_by_name():
    x = samples_of(torch.randn(60, 10))
    assert [f.name for f in measure_features(mlp(), x, layers=["4"])] == ["4"]
    with pytest.raises(UsageError, match="no linear or convolutional layer is called 'nope'"):
        measure_features(mlp(), x, layers=["nope"])


def test_refusals():
    with pytest.raises(UsageError, match="all take the data"):
        measure_features(nn.Sequential(nn.Linear(4, 2)), samples_of(torch.randn(9, 4)))
    with pytest.raises(MismatchError, match="cannot be run on the data"):
        measure_features(mlp(), samples_of(torch.randn(9, 4)))
    bad = torch.randn(40, 10)
    bad[13] = float("nan")
    with pytest.raises(NumericalError, match="layer 2 is not finite on one of samples 10 to 19"):
        measure_features(mlp(), samples_of(bad), batch_size=10)


def stderr(rows, owners):
    """√Σ over samples of (∂erank/∂weight)², by central differences of the dense definition."""
    rows, h = rows.double(), 1e-5
    total = 0.0
    for owner in owners.unique():
        sides = []
        for sign in (1, -1):
            weights = 1 + sign * h * (owners == owner).double()
            sides.append(erank(torch.linalg.svdvals(rows * weights.sqrt()[:, None])))
        total += ((sides[0] - sides[1]) / (2 * h)) ** 2
    return total**0.5


@pytest.mark.parametrize("batch_size", [4, 64])
def test_errors_over_the_samples_whatever_rows_they_have(batch_size):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 2)
    )
    x = torch.randn(50, 1, 6, 6)
    conv, head = measure_features(net, samples_of(x), batch_size=batch_size, dtype=torch.float64)
    net = net.double()
    rows = net[:2](x.double()).detach().permute(0, 2, 3, 1).reshape(-1, 6)
    of_conv = torch.arange(50).repeat_interleave(16)
    assert conv.erank_stderr == pytest.approx(stderr(rows, of_conv), rel=1e-5)
    rows = net[:5](x.double()).detach()
    assert head.erank_stderr == pytest.approx(stderr(rows, torch.arange(50)), rel=1e-4)


def test_errors_of_padded_tokens_and_of_a_module_that_runs_twice():
    net = bert().double()
    ids = torch.randint(1, 50, (20, 8))
    mask = (torch.arange(8) < torch.randint(2, 9, (20, 1))).long()
    given = samples_of({"input_ids": ids * mask, "attention_mask": mask})
    query = next(
        x for x in measure_features(net, given, dtype=torch.float64) if x.name.endswith("query")
    )
    rows = net.bert.embeddings(ids * mask).detach()[mask.bool()]
    owners = torch.arange(20).repeat_interleave(mask.sum(1))
    assert query.erank_stderr == pytest.approx(stderr(rows, owners), rel=1e-4)

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(5, 5), nn.Linear(5, 5)

        def forward(self, x):
            return self.b(torch.tanh(self.b(torch.tanh(self.a(x)))))

    torch.manual_seed(0)
    twice, x = Twice().double(), torch.randn(30, 5, dtype=torch.float64)
    (found,) = measure_features(twice, samples_of(x), batch_size=7, dtype=torch.float64)
    once = torch.tanh(twice.a(x)).detach()
    rows = torch.cat([once, torch.tanh(twice.b(once)).detach()])
    owners = torch.arange(30).repeat(2)
    assert found.erank_stderr == pytest.approx(stderr(rows, owners), rel=1e-5)


def test_rows_that_belong_to_no_sample_have_no_error():
    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(5, 6), nn.Linear(6, 2)

        def forward(self, x):
            hidden = torch.relu(self.a(x))
            return self.b(torch.cat([hidden, hidden.mean(0, keepdim=True)]))[: len(x)]

    (found,) = measure_features(Pooled(), samples_of(torch.randn(30, 5)), batch_size=8)
    assert found.erank_stderr is None
    assert found.erank > 1
