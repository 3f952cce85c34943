from __future__ import annotations

import dataclasses
import json
import os

import pytest
import torch
from torch import nn

from clcurv.curvature.importance import measure_importance
from clcurv.curvature.objective import Objective
from clcurv.errors import CorruptFileError, MismatchError, NumericalError, UsageError
from clcurv.inputs.dataset import Samples
from clcurv.inputs.live import wrap_module
from clcurv.training.look_ahead import LookAheadOptions, look_ahead
from clcurv.training.penalty import ImportancePenalty
from clcurv.training.search import search
from clcurv.training.search_state import load_trials

CE = Objective()
OPTIONS = LookAheadOptions(optimizer="sgd", lr=0.05, epochs=4, batch_size=16, patience=None)


class Net(nn.Module):
    def __init__(self, classes=2):
        super().__init__()
        self.body = nn.Linear(8, 12)
        self.fc = nn.Linear(12, classes)

    def forward(self, x):
        return self.fc(torch.relu(self.body(x)))


def clouds(labels, n=60, seed=0):
    g = torch.Generator().manual_seed(seed)
    y = torch.tensor(labels).repeat(n // len(labels))
    return Samples(4 * torch.eye(6, 8)[y] + torch.randn(len(y), 8, generator=g), y)


@pytest.fixture(scope="module")
def past():
    """A network after the task of classes 0 and 1, and its importance."""
    torch.manual_seed(0)
    options = dataclasses.replace(OPTIONS, epochs=10)
    loaded, _ = look_ahead(wrap_module(Net()), clouds([0, 1]), CE, options)
    return loaded, measure_importance(loaded.model, clouds([0, 1]), CE)


@pytest.fixture(scope="module")
def current():
    return clouds([2, 3], seed=1)


def run(past, current, **more):
    return search(*past, current, CE, OPTIONS, max_trials=3, **more)


def known(trials):
    return [dataclasses.replace(t, seconds=0.0) for t in trials]


@pytest.fixture(scope="module")
def found(past, current):
    return run(past, current)


def test_phases_in_order_and_the_recommendation_is_one_of_the_trials(past, current, found):
    names = [t.phase for t in found.trials]
    assert names[:3] == ["reference"] * 3
    assert sorted(names, key=["reference", "uniform", "lambda-down", "lambda-up"].index) == names
    assert found.reference.lambda_ == 0.0
    assert found.chosen in found.trials
    assert found.look_ahead.new_classes == 2
    assert found.look_ahead.lr == found.reference.lr
    assert found.look_ahead.score_after == found.reference.score  # the same training
    largest = max(float(t.max()) for t in past[1].tensors.values())
    first = next(t for t in found.trials if t.phase == "uniform")
    assert first.lambda_ == pytest.approx(1 / (found.reference.lr * largest))
    assert found.resumed == 0


def test_the_recommendation_can_be_done_again(past, current, found):
    """Its λ and α' in a training of one's own give its score."""
    from clcurv.training.fit import fit
    from clcurv.training.look_ahead import ready_copy

    copy, _ = ready_copy(past[0], current, CE, seed=0)
    penalty = ImportancePenalty(copy.model, found.multipliers, lambda_=found.lambda_)
    options = dataclasses.replace(OPTIONS, lr=found.learning_rate)
    done = fit(copy.model, current, CE, options, penalty=penalty)
    assert done.score_after == found.chosen.score
    assert done.loss_after == pytest.approx(found.chosen.loss, rel=1e-5)


def test_relative_multipliers_by_hand(past, current, found):
    """α' = λ_up α above τ = .8 mean α_rel, λ_down α below, from the importances themselves."""
    from clcurv.training.search_plan import RELATIVE

    assert found.chosen.phase in RELATIVE
    for name, now in found.importance.tensors.items():
        then = torch.zeros_like(now)
        then[: len(past[1].tensors[name])] = past[1].tensors[name]
        share = torch.where(then + now > 0, then / (then + now), 0.0)
        tau = 0.8 * float(share.mean())
        low = torch.tensor(1 / max(tau, 0.05)).ceil()
        start = next(t for t in found.trials if t.phase == "uniform").lambda_
        high = max(start / found.uniform.lambda_, float(low))
        up = float(low) + found.m * (high - float(low))
        expected = torch.where(share > tau, up, found.lambda_down) * then
        torch.testing.assert_close(
            found.multipliers[name].double(), expected, rtol=1e-5, atol=1e-12, msg=name
        )


def test_nothing_given_is_touched(past, current):
    model, importance = past[0].model, past[1]
    before = {n: t.clone() for n, t in model.state_dict().items()}
    alpha = {n: t.clone() for n, t in importance.tensors.items()}
    random = torch.get_rng_state()
    run(past, current)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert all(torch.equal(t, alpha[n]) for n, t in importance.tensors.items())
    assert model.fc.out_features == 2


@pytest.mark.parametrize("after", [1, 3, 5])
def test_an_interrupted_search_goes_on(past, current, found, tmp_path, after):
    path, seen = tmp_path / "search.json", []

    def stop(trial):
        seen.append(trial)
        if len(seen) == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(past, current, state=path, on_trial=stop)
    assert len(json.loads(path.read_text())["trials"]) == after
    rest = []
    again = run(past, current, state=path, on_trial=rest.append)
    assert again.resumed == after
    assert known([*seen, *rest]) == known(found.trials) == known(again.trials)
    assert known([again.chosen]) == known([found.chosen])
    for name, value in found.multipliers.items():
        assert torch.equal(again.multipliers[name], value)
    last = run(past, current, state=path, on_trial=pytest.fail)  # nothing left to do
    assert last.resumed == len(last.trials)


def test_a_state_of_another_search_is_refused(past, current, tmp_path):
    path = tmp_path / "search.json"
    run(past, current, state=path)
    before = path.read_bytes()
    with pytest.raises(UsageError, match="belongs to another search") as caught:
        run(past, clouds([2, 3], seed=5), state=path)
    assert "delete" in caught.value.hint
    with pytest.raises(UsageError, match="belongs to another search"):
        run(past, current, state=path, allowed_drop=0.2)
    path.write_text('{"schema": "clcurv.report"}')
    with pytest.raises(UsageError, match="no state of a search"):
        run(past, current, state=path)
    for damaged in (before[:200], b"{" * 3, before.replace(b'"phase"', b'"phrase"')):
        path.write_bytes(damaged)
        with pytest.raises(CorruptFileError, match="state is damaged"):
            run(past, current, state=path)
        assert path.read_bytes() == damaged


def test_what_does_not_fit_is_refused_before_the_first_trial(past, current):
    loaded, alpha = past

    def refused(error, match, **changes):
        held = dataclasses.replace(alpha, **changes)
        with pytest.raises(error, match=match):
            search(loaded, held, current, CE, OPTIONS, on_trial=pytest.fail)

    refused(MismatchError, "n samples 61", n_samples=61)
    refused(MismatchError, "loss mse", loss="mse")
    refused(MismatchError, "another model", tensors={"other": torch.ones(2)})
    zero = {n: torch.zeros_like(t) for n, t in alpha.tensors.items()}
    with pytest.raises(NumericalError, match="nothing to hold"):
        search(loaded, dataclasses.replace(alpha, tensors=zero), current, CE, OPTIONS)
    with pytest.raises(UsageError, match="validation part"):
        search(loaded, alpha, current, CE, dataclasses.replace(OPTIONS, validation=0.0))


def test_diverging_rates_are_noted(past, current):
    found = run(past, current, learning_rates=(1e30, 0.05))
    assert [t.status for t in found.trials[:2]] == ["diverged", "ok"]
    assert found.learning_rate == 0.05
    assert "1 of" in found.notes[-1]
    with pytest.raises(NumericalError, match="every learning rate"):
        run(past, current, learning_rates=(1e30,))
    broken = dataclasses.replace(current, inputs=current.inputs * float("inf"))
    with pytest.raises(NumericalError, match="before any training"):
        run(past, broken)


def test_weights_of_layers_are_in_every_multiplier(past, current, found):
    """Twice everything is half of λ and the same trainings; of one layer it is another penalty."""
    twice = run(past, current, weights=dict.fromkeys(past[1].tensors, 2.0))
    penalised = [t for t in found.trials if t.lambda_]
    assert [2 * t.lambda_ for t in twice.trials if t.lambda_] == pytest.approx(
        [t.lambda_ for t in penalised]
    )
    assert [t.loss for t in twice.trials] == pytest.approx([t.loss for t in found.trials])
    one = run(past, current, weights={"body.weight": 0.5})
    torch.testing.assert_close(one.multipliers["body.bias"], found.multipliers["body.bias"])
    torch.testing.assert_close(
        one.multipliers["body.weight"], 0.5 * found.multipliers["body.weight"]
    )


def test_progress_names_the_trials(past, current):
    stages = set()
    run(past, current, progress=lambda stage, done, total: stages.add(stage))
    assert {"reference 1", "reference 3", "uniform 1", "look-ahead", "lambda-down 1"} <= stages


@pytest.mark.parametrize("content", [None, b"PK\x03\x04\xff", b"[]"])
def test_what_is_no_state_is_never_said_to_be_deletable(tmp_path, content):
    path = tmp_path / "data.npz"
    if content is None:
        os.mkfifo(path)  # to read it would wait without end
    else:
        path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        load_trials(path, "key")
    assert caught.value.hint == "name another file"
