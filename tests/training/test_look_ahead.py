from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from clcurv.curvature.objective import Objective
from clcurv.errors import ArchitectureError, DataError, NumericalError, ResourceError, UsageError
from clcurv.inputs.dataset import Samples
from clcurv.inputs.live import wrap_module
from clcurv.training.fit import fit, scored_classes, split_validation
from clcurv.training.look_ahead import LookAheadOptions, look_ahead

CE = Objective()


class Mixed(nn.Module):
    """Dropout, BatchNorm and a frozen part."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.frozen = nn.Linear(6, 6)
        self.body = nn.Linear(6, 12)
        self.norm = nn.BatchNorm1d(12)
        self.drop = nn.Dropout(0.3)
        self.fc = nn.Linear(12, classes)
        self.frozen.requires_grad_(False)

    def forward(self, x):
        return self.fc(self.drop(torch.relu(self.norm(self.body(self.frozen(x))))))


def clouds(n=90, classes=3, width=6, seed=0):
    """Well separated classes."""
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % classes
    centres = 4 * torch.eye(classes, width)
    return Samples(centres[y] + torch.randn(n, width, generator=g), y)


@pytest.fixture
def mixed():
    torch.manual_seed(0)
    return wrap_module(Mixed())


def snapshot(model):
    return (
        {n: t.clone() for n, t in model.state_dict().items()},
        {n: p.requires_grad for n, p in model.named_parameters()},
        {n: m.training for n, m in model.named_modules()},
        {n: None if p.grad is None else p.grad.clone() for n, p in model.named_parameters()},
    )


def same(a, b):
    tensors = all(torch.equal(a[0][n], b[0][n]) for n in a[0])
    grads = all(
        (a[3][n] is None and b[3][n] is None) or torch.equal(a[3][n], b[3][n]) for n in a[3]
    )
    return tensors and grads and a[1:3] == b[1:3]


def test_the_copy_learns_and_the_given_model_is_untouched(mixed):
    model = mixed.model
    model.train()
    model.norm.eval()
    model(clouds().inputs).sum().backward()
    addresses = {n: p.data_ptr() for n, p in model.named_parameters()}
    before, random = snapshot(model), torch.get_rng_state()
    ahead, report = look_ahead(mixed, clouds(), CE, LookAheadOptions(lr=1e-2, batch_size=16))
    assert same(snapshot(model), before)
    assert {n: p.data_ptr() for n, p in model.named_parameters()} == addresses
    assert torch.equal(torch.get_rng_state(), random)
    assert report.score_after > 0.9 > report.score_before
    assert report.loss_after < report.loss_before
    assert report.steps == len(report.history) * 5  # 72 samples in batches of 16
    assert report.optimizer == "adamw"
    assert report.new_classes == 0
    assert not any(m.training for m in ahead.model.modules())
    assert all(p.grad is None for p in ahead.model.parameters())
    mine = dict(ahead.model.named_parameters())
    assert not {p.data_ptr() for p in mine.values()} & set(addresses.values())
    assert torch.equal(mine["frozen.weight"], model.frozen.weight)
    assert not torch.equal(mine["body.weight"], model.body.weight)


def test_it_trains_in_train_mode(mixed):
    """BatchNorm's statistics move, dropout is drawn."""
    ahead, _ = look_ahead(mixed, clouds(), CE, LookAheadOptions(lr=1e-2, epochs=2))
    assert int(ahead.model.norm.num_batches_tracked) == 2 * 3
    assert not torch.equal(ahead.model.norm.running_mean, mixed.model.norm.running_mean)
    bare = copy.deepcopy(mixed.model)
    bare.drop.p = 0.0
    other, _ = look_ahead(wrap_module(bare), clouds(), CE, LookAheadOptions(lr=1e-2, epochs=2))
    assert not torch.equal(other.model.fc.weight, ahead.model.fc.weight)


def test_the_seed_decides(mixed):
    def weights(seed):
        options = LookAheadOptions(lr=1e-2, epochs=2, seed=seed)
        torch.randn(3)  # the global generator does not matter
        return look_ahead(mixed, clouds(), CE, options)[0].model.fc.weight

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_new_classes_get_rows_of_their_own(mixed):
    samples = clouds(n=100, classes=5)
    ahead, report = look_ahead(mixed, samples, CE, LookAheadOptions(lr=1e-2, epochs=20))
    assert ahead.num_classes == ahead.model.fc.out_features == 5
    assert report.new_classes == 2
    assert report.score_after > 0.9
    assert mixed.model.fc.out_features == 3
    assert ahead.head_params == mixed.head_params


def test_gradient_descent_by_hand():
    """Full batches of a squared loss: the weights after k steps in closed form."""
    torch.manual_seed(0)
    x = torch.randn(20, 3, dtype=torch.float64)
    y = torch.randn(20, 1, dtype=torch.float64)
    loaded = wrap_module(nn.Linear(3, 1, bias=False, dtype=torch.float64), task="regression")
    w = loaded.model.weight.detach().clone()
    options = LookAheadOptions(
        optimizer="sgd", lr=0.1, momentum=0.5, weight_decay=0.01, epochs=4, batch_size=20,
        validation=0.0, patience=None,
    )  # fmt: skip
    ahead, report = look_ahead(loaded, Samples(x, y), Objective("mse"), options, dtype="float64")
    speed = torch.zeros_like(w)
    for _ in range(4):
        grad = 2 * (w @ x.T - y.T) @ x / 20 + 0.01 * w
        speed = 0.5 * speed + grad
        w = w - 0.1 * speed
    torch.testing.assert_close(ahead.model.weight.detach(), w)
    final = float((x @ w.T - y).square().mean())
    assert report.loss_after == pytest.approx(final)
    assert report.score_after == pytest.approx(-final)
    assert report.steps == 4
    assert report.momentum == 0.5


def test_clipping_is_of_task_and_penalty_together():
    class Pull:
        def __init__(self, p):
            self.p = p

        def add_gradient_(self):
            self.p.grad.add_(100.0)

    model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    before = float(model.weight.detach())
    options = LookAheadOptions(
        optimizer="sgd", lr=0.5, momentum=0.0, epochs=1, batch_size=9, validation=0, grad_clip=0.1
    )
    x = torch.ones(4, 1, dtype=torch.float64)
    penalty = Pull(model.weight)
    fit(model, Samples(x, x), Objective("mse"), options, penalty=penalty, dtype="float64")
    assert float(model.weight.detach()) == pytest.approx(before - 0.5 * 0.1)


def test_the_best_epoch_is_kept(mixed):
    """A rate that spoils things again: the score reported is that of the weights returned."""
    samples = clouds(n=60)
    options = LookAheadOptions(optimizer="sgd", lr=1.0, epochs=12, patience=None, batch_size=8)
    ahead, report = look_ahead(mixed, samples, CE, options)
    assert report.score_after == max(report.history)
    assert len(report.history) == 12
    assert not report.stopped_early
    _, held = split_validation(samples, fraction=0.2, seed=0)
    with torch.no_grad():
        hits = ahead.model(samples.inputs[held]).argmax(1) == samples.targets[held]
    assert float(hits.float().mean()) == pytest.approx(report.score_after)


def test_patience_ends_it(mixed):
    options = LookAheadOptions(lr=1e-12, epochs=50, patience=2)
    _, report = look_ahead(mixed, clouds(), CE, options)
    assert report.stopped_early
    assert len(report.history) < 50


def test_progress_counts_steps(mixed):
    seen = []
    options = LookAheadOptions(lr=1e-3, epochs=2, batch_size=16)
    look_ahead(mixed, clouds(), CE, options, progress=lambda *told: seen.append(told))
    assert seen == [("look-ahead", i, 10) for i in range(1, 11)]


def test_a_single_left_over_sample_joins_the_batch_before(mixed):
    samples = clouds(n=17)
    options = LookAheadOptions(lr=1e-3, epochs=1, batch_size=8, validation=0)
    _, report = look_ahead(mixed, samples, CE, options)  # BatchNorm refuses a batch of one
    assert report.steps == 2


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_divergence_is_an_error_with_a_way_out(mixed, optimizer):
    before = snapshot(mixed.model)
    options = LookAheadOptions(optimizer=optimizer, lr=1e30, epochs=5)
    with pytest.raises(NumericalError, match=r"look-ahead diverged: the loss is (nan|inf)") as e:
        look_ahead(mixed, clouds(), CE, options)
    assert "smaller learning rate, for example 1e+29" in e.value.hint
    assert same(snapshot(mixed.model), before)


def test_data_that_are_bad_from_the_start(mixed):
    samples = clouds()
    samples.inputs[3, 0] = float("nan")
    with pytest.raises(NumericalError, match="before any training"):
        look_ahead(mixed, samples, CE, LookAheadOptions(validation=0))


def test_empty_and_tiny_tasks(mixed):
    with pytest.raises(DataError, match="has no samples"):
        look_ahead(mixed, Samples(torch.zeros(0, 6), torch.zeros(0, dtype=torch.int64)), CE)
    with pytest.raises(DataError, match="has one sample"):
        look_ahead(mixed, Samples(torch.zeros(1, 6), torch.zeros(1, dtype=torch.int64)), CE)
    nothing = Samples(torch.zeros(4, 6), torch.full((4,), -100))
    with pytest.raises(DataError, match="nothing in the validation part"):
        look_ahead(mixed, nothing, CE)


def test_all_frozen_and_unknown_dtype(mixed):
    with pytest.raises(UsageError, match="unknown dtype"):
        look_ahead(mixed, clouds(), CE, dtype="bfloat16")
    mixed.model.requires_grad_(False)
    with pytest.raises(UsageError, match="all are frozen"):
        look_ahead(mixed, clouds(), CE)


def test_a_module_that_cannot_be_copied(mixed):
    mixed.model.held = mixed.model.fc.weight * 2  # no leaf: deepcopy refuses it
    with pytest.raises(ArchitectureError, match="cannot be copied"):
        look_ahead(mixed, clouds(), CE)


def test_running_out_of_memory_halves_the_batch():
    """The same mathematics in parts; a network with BatchNorm cannot be cut."""

    class Small(nn.Module):
        limit = 99

        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(6, 3)

        def forward(self, x):
            if self.training and len(x) > self.limit:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return self.fc(x)

    torch.manual_seed(0)
    loaded = wrap_module(Small())
    options = LookAheadOptions(lr=1e-2, epochs=2, batch_size=16)

    def trained():
        return look_ahead(loaded, clouds(), CE, options, dtype="float64")[0].model.fc.weight

    whole = trained()
    Small.limit = 5
    torch.testing.assert_close(trained(), whole)
    Small.limit = 0
    with pytest.raises(ResourceError, match="with 1 samples"):
        trained()
    Small.limit = 5
    loaded.model.norm = nn.BatchNorm1d(3)
    with pytest.raises(ResourceError, match="with 16 samples"):
        trained()


@pytest.mark.parametrize(("fraction", "held"), [(0.2, 8), (0.5, 19), (0.01, 1)])
def test_every_class_gives_its_share(fraction, held):
    y = torch.tensor([0] * 30 + [1] * 7 + [2] * 1)
    samples = Samples(torch.zeros(38, 1), y)
    learn, score = split_validation(samples, fraction=fraction, seed=3)
    assert sorted([*learn.tolist(), *score.tolist()]) == list(range(38))
    assert set(y[learn].tolist()) == {0, 1, 2}
    assert abs(len(score) - held) <= 1
    again = split_validation(samples, fraction=fraction, seed=3)[1]
    assert torch.equal(again, score)


def test_width_that_labels_need():
    y = torch.tensor([0, 4, -100])
    assert scored_classes(Samples(torch.zeros(3, 1), y), CE) == 5
    assert scored_classes(Samples(torch.zeros(3, 1), y), Objective("next-token")) == 0
    assert scored_classes(Samples(torch.zeros(3, 1), y.float()), Objective("mse")) == 0


def test_vit_and_bert():
    import timm
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    vit = timm.create_model(
        "vit_tiny_patch16_224", img_size=16, patch_size=8, embed_dim=16, depth=1, num_heads=2,
        num_classes=2, drop_path_rate=0.1,
    )  # fmt: skip
    y = torch.arange(40) % 3
    images = torch.randn(40, 3, 16, 16) + y[:, None, None, None]
    options = LookAheadOptions(lr=3e-3, epochs=8, batch_size=8)
    ahead, report = look_ahead(wrap_module(vit), Samples(images, y), CE, options)
    assert report.new_classes == 1
    assert ahead.model.num_classes == 3
    assert report.score_after > report.score_before
    config = BertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=8, num_labels=2,
    )  # fmt: skip
    bert = wrap_module(BertForSequenceClassification(config))
    tokens = {
        "input_ids": (y[:, None] * 6 + torch.randint(0, 6, (40, 6))),
        "attention_mask": torch.ones(40, 6, dtype=torch.int64),
    }
    ahead, report = look_ahead(bert, Samples(tokens, y), CE, options)
    assert ahead.model.config.num_labels == 3
    assert report.score_after > 0.8
