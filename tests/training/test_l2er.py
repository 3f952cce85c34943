"""L2-ER in loops: against the two steps written out, and against torch's own weight decay."""

import copy
import json
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional

from clcurv.diagnostics.erank import effective_rank
from clcurv.errors import InputError, MismatchError, UsageError
from clcurv.training import L2ER

DOCUMENT = {
    "schema": "clcurv.l2er",
    "schema_version": "1.0",
    "tool": {"name": "clcurv", "version": "0.1.0"},
    "created": "2026-01-01T00:00:00Z",
    "complete": True,
    "verdict": "at risk",
    "evidence": "",
    "arch": "given:Sequential",
    "stream": "permuted:3",
    "weight_decay": 1e-2,
    "er_lr": 0.05,
    "er_every": 3,
    "er_layers": ["2", "4"],
    "window": 30,
    "order": [],
    "lr": 0.1,
    "objective": {"lambda": 5e-3, "beta": 0.1},
    "derivation": "by hand",
}


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)
    ).double()


def batches(count, size=10, seed=1):
    g = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(size, 6, generator=g, dtype=torch.float64),
            torch.randint(0, 3, (size,), generator=g),
        )
        for _ in range(count)
    ]


def train(model, optimizer, data, reg=None):
    returned = []
    for x, y in data:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        returned.append(reg.step(x) if reg else None)
    return returned


def same(a, b):
    pairs = zip(a.parameters(), b.parameters(), strict=True)
    return all(torch.allclose(p, q, rtol=1e-12, atol=1e-14) for p, q in pairs)


def by_hand(model, data, *, lr=0.1, decay=1e-2, er_lr=0.05, every=3, window=30):
    """Task step with coupled decay every batch; ascent on the window every third; then anew."""
    held = []
    for x, y in data:
        loss = functional.cross_entropy(model(x), y)
        grads = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for p, g in zip(model.parameters(), grads, strict=True):
                p -= lr * (g + decay * p)
        held.append(x)
        if len(held) == every:
            w = torch.cat(held)[-window:]
            rank = (effective_rank(model[:2](w)) + effective_rank(model[:4](w))) / 2
            grads = torch.autograd.grad(rank, list(model.parameters()), allow_unused=True)
            with torch.no_grad():
                for p, g in zip(model.parameters(), grads, strict=True):
                    p += 0 if g is None else er_lr * g
            held = []


@pytest.mark.parametrize("window", [100, 30, 14])
@pytest.mark.parametrize("hand_over", [True, False])
def test_the_steps_are_those_of_the_published_order(window, hand_over):
    data = batches(8)
    expected, model = net(), net()
    by_hand(expected, data, window=window)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    document = {**DOCUMENT, "window": window}
    if hand_over:
        reg = L2ER.from_json(model, document, optimizer=optimizer)
    else:
        reg = L2ER.from_json(model, document)
        optimizer.param_groups[0]["weight_decay"] = reg.weight_decay
    with reg:
        returned = train(model, optimizer, data, reg)
    assert same(model, expected)
    assert [r is not None for r in returned] == [False, False, True] * 2 + [False, False]
    assert (reg.steps, reg.skipped, reg.effective_rank) == (2, 0, returned[5])


def test_the_rank_grows():
    model, data = net(), batches(60)
    with L2ER.from_json(model, {**DOCUMENT, "weight_decay": 0.0}) as reg:
        ranks = [r for x, _ in data if (r := reg.step(x)) is not None]
    assert ranks[-1] > 1.2 * ranks[0]


def test_decay_is_coupled_in_adamw_too():
    data = batches(5)
    model, other = net(), net()
    adam = torch.optim.Adam(other.parameters(), lr=0.01, weight_decay=1e-2)
    train(other, adam, data)
    adamw = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0)
    with L2ER.from_json(model, {**DOCUMENT, "er_lr": 0.0}, optimizer=adamw):
        train(model, adamw, data)
    assert same(model, other)


def test_a_second_weight_decay_is_refused():
    model = net()
    with pytest.raises(UsageError, match=r"already has a weight decay of 0\.01"):
        L2ER.from_json(model, DOCUMENT, optimizer=torch.optim.AdamW(model.parameters()))


def test_healthy_streams_get_plain_training():
    zeros = dict.fromkeys(("weight_decay", "er_lr"), 0.0) | dict.fromkeys(("er_every", "window"), 0)
    model, other, data = net(), net(), batches(5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    reg = L2ER.from_json(model, {**DOCUMENT, **zeros, "er_layers": []}, optimizer=optimizer)
    assert not reg.active
    train(model, optimizer, data, reg)
    train(other, torch.optim.SGD(other.parameters(), lr=0.1), data)
    assert same(model, other)


def test_nothing_is_left_behind():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with L2ER.from_json(model, DOCUMENT, optimizer=optimizer) as reg:
        train(model, optimizer, batches(4), reg)
        assert optimizer._optimizer_step_pre_hooks
        reg.step(batches(1)[0][0])
        grads = [p.grad.clone() for p in model.parameters()]
        assert reg.step(batches(1)[0][0]) is not None
        assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), grads, strict=True))
    assert not optimizer._optimizer_step_pre_hooks
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_resumed_runs_take_the_same_steps(tmp_path):
    data, model = batches(8), net()
    whole = copy.deepcopy(model)
    train(whole, o := torch.optim.SGD(whole.parameters(), lr=0.1), data,
          L2ER.from_json(whole, DOCUMENT, optimizer=o))  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    reg = L2ER.from_json(model, DOCUMENT, optimizer=optimizer)
    train(model, optimizer, data[:4], reg)
    torch.save({"model": model.state_dict(), "l2er": reg.state_dict()}, tmp_path / "c.pt")
    saved = torch.load(tmp_path / "c.pt", weights_only=True)
    later = net(seed=5)
    later.load_state_dict(saved["model"])
    optimizer = torch.optim.SGD(later.parameters(), lr=0.1)
    reg = L2ER.from_json(later, DOCUMENT, optimizer=optimizer)
    reg.load_state_dict(saved["l2er"])
    train(later, optimizer, data[4:], reg)
    assert same(later, whole)
    assert reg.steps == 2
    with pytest.raises(InputError, match="not a state of L2ER"):
        reg.load_state_dict({"batches": 1})


def test_not_a_number_is_stepped_over():
    model = net()
    reg = L2ER.from_json(model, DOCUMENT)
    before = copy.deepcopy(model)
    bad = torch.full((10, 6), float("nan"), dtype=torch.float64)
    with pytest.warns(UserWarning, match="a step was left out"):
        assert [reg.step(bad) for _ in range(3)] == [None] * 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        assert [reg.step(bad) for _ in range(3)] == [None] * 3
    assert same(model, before)
    assert (reg.steps, reg.skipped) == (0, 2)
    assert [reg.step(x) for x, _ in batches(3)][2] is not None  # the window was emptied


def test_degenerate_features_stay_finite():
    model = net()
    with torch.no_grad():
        model[0].weight[1:] = model[0].weight[0]  # rank one, and equal singular values below
        model[2].weight.zero_()
        model[2].bias.zero_()  # zeros: no rank at all in the second layer
    reg = L2ER.from_json(model, DOCUMENT)
    for x, _ in batches(9):
        reg.step(x)
    assert reg.steps == 3
    assert all(bool(p.isfinite().all()) for p in model.parameters())


class Keywords(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = net()

    def forward(self, values, attention_mask=None):
        return self.body(values)


@pytest.mark.parametrize("form", [lambda x: {"values": x}, lambda x: ({"values": x}, 1)])
def test_batches_of_keywords(form):
    model = Keywords()
    reg = L2ER.from_json(model, {**DOCUMENT, "er_layers": ["body.2", "body.4"], "window": 14})
    assert [reg.step(form(x)) for x, _ in batches(3)][2] is not None
    with pytest.raises(UsageError, match="takes what the model was called with, not str"):
        reg.step("x")


def test_prefixes_and_wrappers():
    model = nn.Module()
    model.add_module("module", net())
    reg = L2ER.from_json(model, DOCUMENT)
    assert reg.layers == ("2", "4")
    assert L2ER.from_json(Keywords(), DOCUMENT).layers == ("body.2", "body.4")
    with pytest.raises(MismatchError, match="layer '6' of the recommendation is not in the model"):
        L2ER.from_json(net(), {**DOCUMENT, "er_layers": ["2", "6"]})


def test_documents_from_files(tmp_path):
    path = tmp_path / "l2er.json"
    path.write_text(json.dumps(DOCUMENT))
    reg = L2ER.from_json(net(), path)
    assert (reg.weight_decay, reg.er_lr, reg.er_every, reg.window) == (1e-2, 0.05, 3, 30)
    with pytest.raises(InputError, match="partial"):
        L2ER.from_json(net(), {**DOCUMENT, "complete": False})
    with pytest.raises(InputError, match=r"clcurv\.schedule"):
        L2ER.from_json(net(), {**DOCUMENT, "schema": "clcurv.schedule"})
    with pytest.raises(UsageError, match="needs a window"):
        L2ER.from_json(net(), {**DOCUMENT, "window": 1})
    with pytest.raises(UsageError, match="no layer is named"):
        L2ER.from_json(net(), {**DOCUMENT, "er_layers": []})
    with pytest.raises(UsageError, match="er_lr must be"):
        L2ER(net(), weight_decay=0, er_lr=-1, er_every=1, layers=["2"], window=10)
