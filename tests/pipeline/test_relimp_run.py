"""`clcurv.relimp` on tiny linear networks whose importances are known in closed form."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kappa_results import make_document, make_layer
from torch import nn

import clcurv
from clcurv.diagnostics.importance_file import load_importance
from clcurv.errors import (
    DataError,
    InputError,
    MismatchError,
    NotWeightsError,
    NumericalError,
    ResourceError,
    UsageError,
)
from clcurv.pipeline import plan_relimp
from clcurv.report.document import write_json
from clcurv.training import ImportancePenalty, load_multipliers

CLASSES, HALF, HIDDEN, N = 3, 5, 4, 36
QUICK: dict[str, Any] = {"samples": N, "epochs": 2, "lr": 0.05, "dtype": "float64"}


class Net(nn.Module):
    """f(x) = V W x: features of the first half matter to one task, the others to the other."""

    def __init__(self, seed: int = 0, hidden: int = HIDDEN) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.body = nn.Linear(2 * HALF, hidden, bias=False)
        self.head = nn.Linear(hidden, CLASSES, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def task(seed: int, features: slice | None, first: int = 0, n: int = N) -> tuple[Any, Any]:
    """Inputs that are zero outside `features`; a class shifts them by its own vector."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % CLASSES
    x = np.zeros((n, 2 * HALF), dtype=np.float32)
    where = slice(0, 2 * HALF) if features is None else features
    width = x[:, where].shape[1]
    x[:, where] = rng.standard_normal((CLASSES, width))[y] + rng.standard_normal((n, width))
    return x, y + first


PAST, CURRENT = task(1, slice(0, HALF)), task(2, slice(HALF, None))
BOTH = task(3, None)


def mas(net: nn.Module, x: np.ndarray) -> dict[str, np.ndarray]:
    """mean |∂‖V W x‖²/∂θ|: 2 Vᵀf xᵀ for W and 2 f (W x)ᵀ for V."""
    v = net.head.weight.detach().double().numpy()
    w = net.body.weight.detach().double().numpy()
    x = x.astype(np.float64)
    h = x @ w.T
    f = h @ v.T
    return {
        "body.weight": np.abs(2 * np.einsum("nk,nd->nkd", f @ v, x)).mean(0),
        "head.weight": np.abs(2 * np.einsum("nc,nh->nch", f, h)).mean(0),
    }


def test_disjoint_tasks_on_disjoint_parameters_separate_completely() -> None:
    net = Net()
    report = clcurv.relimp(net, past=PAST, current=CURRENT, **QUICK)
    body = report.result.layers[0]
    assert (body.name, body.protected, body.shared, body.free) == ("body", 0.5, 0.0, 0.5)
    assert report.document.shares.model_dump() == {"protected": 0.5, "shared": 0.0, "free": 0.5}
    assert body.overlap == 0
    (tensor,) = [t for t in report.result.tensors if t.name == "body.weight"]
    assert tensor.tau == pytest.approx(0.4, rel=1e-6)
    expected = mas(net, PAST[0])["body.weight"]
    assert (expected[:, HALF:] == 0).all()
    held = report.multipliers["body.weight"].numpy()
    np.testing.assert_allclose(held, 3 * expected, rtol=1e-6)  # λ_up = ⌈1/0.4⌉
    assert (tensor.lambda_up, report.result.lambda_down) == (3.0, 1.0)
    largest = max(float(m.max()) for m in report.multipliers.values())
    assert report.result.lambda_ == pytest.approx(1 / (0.05 * largest))
    assert report.document.penalty.lambda_ == report.document.penalty.ceiling


def test_a_past_task_equal_to_the_current_one_gives_one_half() -> None:
    settings = {**QUICK, "lr": 1e-12, "epochs": 1}  # the copy stays where the network is
    report = clcurv.relimp(Net(), past=BOTH, current=BOTH, **settings)
    for tensor in report.result.tensors:
        assert tensor.relative_mean == pytest.approx(0.5, abs=1e-6)
        assert tensor.tau == pytest.approx(0.4, abs=1e-6)
    agreed = report.document.agreement
    assert (agreed.overlap, agreed.rank_correlation) == (1.0, pytest.approx(1.0))
    assert report.document.past.accuracy == report.document.current.accuracy


def test_importances_are_the_closed_form_and_the_network_is_left_alone() -> None:
    net = Net().train()
    net.body.weight.requires_grad_(True)
    before = {n: t.clone() for n, t in net.state_dict().items()}
    report = clcurv.relimp(net, past=BOTH, current=CURRENT, **QUICK)
    for name, expected in mas(net, BOTH[0]).items():
        np.testing.assert_allclose(report.past.tensors[name].numpy(), expected, rtol=1e-9)
    assert all(torch.equal(t, before[n]) for n, t in net.state_dict().items())
    assert net.training
    assert net.body.weight.grad is None
    moved = mas(net, CURRENT[0])["body.weight"]
    assert not np.allclose(report.current.tensors["body.weight"].numpy(), moved, rtol=1e-3)
    ahead = report.document.look_ahead
    assert (ahead.optimizer, ahead.epochs, ahead.steps) == ("adamw", 2, 2)
    assert ahead.loss_after < ahead.loss_before


def test_both_forms_and_given_factors() -> None:
    asked = {"lambda_up": 2.0, "lambda_down": 0.25, "lambda_": 7.0, "tau": "fixed"}
    paper = clcurv.relimp(Net(), past=BOTH, current=CURRENT, **QUICK, **asked)
    code = clcurv.relimp(
        Net(), past=BOTH, current=CURRENT, multiplier_form="code", **QUICK, **asked
    )
    past, now = (x.tensors["body.weight"].numpy() for x in (paper.past, paper.current))
    relative = past / (past + now)
    expected = np.where(relative > 0.5, 2.0, 0.25) * past
    np.testing.assert_allclose(paper.multipliers["body.weight"].numpy(), expected, rtol=1e-5)
    held = code.multipliers["body.weight"].numpy()
    np.testing.assert_allclose(held, relative * expected, rtol=1e-5)
    assert (paper.result.lambda_, paper.document.estimator.multiplier) == (7.0, "paper")
    assert code.document.estimator.multiplier == "code"


def test_without_the_past_data_the_file_stands_for_them(tmp_path: Path) -> None:
    kept: list[Any] = []
    asked = {**QUICK, "samples": 30, "estimator": "fisher"}
    report = clcurv.relimp(Net(), past=PAST, current=BOTH, on_past=kept.append, **asked)
    assert kept == [report.past]
    report.save_importance(tmp_path / "imp.safetensors")
    later = clcurv.relimp(
        Net(),
        past_importance=tmp_path / "imp.safetensors",
        current=BOTH,
        **{k: v for k, v in QUICK.items() if k != "samples"},  # the file's
    )
    assert (later.document.past.kind, later.document.past.n_samples) == ("file", 30)
    assert later.document.estimator.estimator == "fisher"
    assert later.document.current.n_samples == 30
    for name, held in report.multipliers.items():
        torch.testing.assert_close(later.multipliers[name], held, rtol=1e-5, atol=1e-12)
    assert later.document.past.accuracy == report.document.past.accuracy


def test_tasks_are_accumulated(tmp_path: Path) -> None:
    net = Net()
    first = clcurv.relimp(net, past=PAST, samples=N, dtype="float64")
    path = tmp_path / "imp.safetensors"
    first.save_importance(path)
    both = clcurv.relimp(net, past_importance=path, past=CURRENT, samples=N, dtype="float64")
    assert (both.document.past.kind, both.document.past.accumulated) == ("file+data", 2)
    a, b = (mas(net, x)["body.weight"] for x, _ in (PAST, CURRENT))
    np.testing.assert_allclose(both.past.tensors["body.weight"].numpy(), (a + b) / 2, rtol=1e-6)
    largest = clcurv.relimp(
        net, past_importance=path, past=CURRENT, samples=N, dtype="float64", accumulate="max"
    )
    held = largest.past.tensors["body.weight"].numpy()
    np.testing.assert_allclose(held, np.maximum(a, b), rtol=1e-6)


def test_only_the_past_can_be_measured() -> None:
    report = clcurv.relimp(Net(), past=PAST, samples=N)
    assert (report.result, dict(report.multipliers)) == (None, {})
    doc = report.document
    assert (doc.current, doc.penalty, doc.look_ahead, doc.shares) == (None, None, None, None)
    assert doc.complete
    expected = mas(Net(), PAST[0])["body.weight"].mean()
    assert doc.layers[0].past_mean == pytest.approx(expected, rel=1e-5)
    assert doc.layers[0].past_stderr > 0


def test_new_classes_grow_the_head_and_nothing_holds_their_rows() -> None:
    net = Net()
    new = (CURRENT[0], CURRENT[1] + CLASSES)
    report = clcurv.relimp(net, past=PAST, current=new, **QUICK)
    assert report.document.look_ahead.new_classes == CLASSES
    assert report.multipliers["head.weight"].shape == (2 * CLASSES, HIDDEN)
    assert (report.multipliers["head.weight"][CLASSES:] == 0).all()
    assert (report.multipliers["head.weight"][:CLASSES] > 0).all()
    assert net.head.out_features == CLASSES
    assert any("3 classes are new to the head (3, 4, 5), 0 are known" in w
               for w in report.document.warnings)  # fmt: skip
    assert report.document.current.class_counts == {"3": 12, "4": 12, "5": 12}


def test_the_larger_task_is_cut_to_the_smaller() -> None:
    small = (CURRENT[0][:20], CURRENT[1][:20])
    report = clcurv.relimp(Net(), past=PAST, current=small, **QUICK)
    assert (report.document.past.n_samples, report.document.current.n_samples) == (20, 20)
    assert sum(report.document.past.class_counts.values()) == 20
    assert any("measured on 20 samples" in w for w in report.document.warnings)
    freely = clcurv.relimp(Net(), past=PAST, current=small, samples_may_differ=True, **QUICK)
    assert (freely.document.past.n_samples, freely.document.current.n_samples) == (N, 20)
    assert report.past.digest != freely.past.digest


def schedule(path: Path, net: nn.Module) -> dict[str, float]:
    """A κ report on such a network; its λ by layer."""
    layers = [
        make_layer(n, i, 10.0 ** (2 - i), param_names=(f"{n}.weight",), numel=40, is_head=head)
        for i, (n, head) in enumerate(
            [("body", False), ("mid", False), ("late", False), ("head", True)]
        )
    ]
    document = make_document(layers=layers)
    write_json(document, path)
    return {g.name: g.lambda_ for g in document.groups}


def test_a_schedule_weighs_the_layers(tmp_path: Path) -> None:
    net = Deep()
    weights = schedule(tmp_path / "kappa.json", net)
    assert len({round(w, 6) for w in weights.values()}) > 2
    plain = clcurv.relimp(net, past=BOTH, current=CURRENT, **QUICK)
    asked = {"schedule": tmp_path / "kappa.json", **QUICK}
    weighed = clcurv.relimp(net, past=BOTH, current=CURRENT, **asked)
    for name, held in plain.multipliers.items():
        expected = held * weights[name.partition(".")[0]]
        torch.testing.assert_close(weighed.multipliers[name], expected)
    assert weighed.about["schedule"] == str(tmp_path / "kappa.json")
    weighed.save_multipliers(tmp_path / "alpha.safetensors")
    with pytest.raises(UsageError, match="schedule"):
        ImportancePenalty.from_file(
            net, tmp_path / "alpha.safetensors", schedule=tmp_path / "kappa.json"
        )


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(2 * HALF, HIDDEN, bias=False)
        self.mid = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.late = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.head = nn.Linear(HIDDEN, CLASSES, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.late(self.mid(self.body(x))))


def test_the_side_file_holds_a_network_back(tmp_path: Path) -> None:
    net = Net()
    report = clcurv.relimp(net, past=PAST, current=CURRENT, **QUICK)
    path = tmp_path / "alpha.safetensors"
    report.save_multipliers(path)
    read = load_multipliers(path)
    assert read.lambda_ == report.result.lambda_
    assert read.about["estimator"] == "mas"
    penalty = ImportancePenalty.from_file(net, path)
    with torch.no_grad():
        net.body.weight += 0.5
    held = report.multipliers["body.weight"].sum()
    expected = report.result.lambda_ / 2 * float(held) * 0.25
    assert penalty.value() == pytest.approx(expected, rel=1e-5)


def test_the_same_numbers_are_the_same_bytes(tmp_path: Path) -> None:
    report = clcurv.relimp(Net(), past=PAST, current=CURRENT, **QUICK)
    for save in (report.save_multipliers, report.save_importance):
        written = set()
        for _ in range(20):
            save(tmp_path / "file")
            written.add((tmp_path / "file").read_bytes())
        assert len(written) == 1


SEARCH: dict[str, Any] = {**QUICK, "search": True, "max_trials": 2, "validation": 0.25}


def test_a_search_is_told_kept_and_resumed(tmp_path: Path) -> None:
    told: list[Any] = []
    asked = {**SEARCH, "state": tmp_path / "state.json"}
    report = clcurv.relimp(Net(), past=BOTH, current=CURRENT, on_trial=told.append, **asked)
    found = report.document.search
    assert [t.phase for t in found.trials[:2]] == ["reference", "reference"]
    assert [t.number for t in told] == [t.number for t in found.trials]
    assert found.trials[found.chosen].lambda_ == report.result.lambda_
    assert report.result.learning_rate == found.trials[found.reference].lr
    for name, held in report.search.multipliers.items():
        torch.testing.assert_close(report.multipliers[name].double(), held.double())
    again = clcurv.relimp(Net(), past=BOTH, current=CURRENT, **asked)
    assert again.document.search.resumed == len(found.trials)
    assert again.result.lambda_ == report.result.lambda_
    with pytest.raises(UsageError, match="another search"):
        clcurv.relimp(Net(1), past=BOTH, current=CURRENT, **asked)


def test_where_no_relative_penalty_will_do_the_uniform_one_is_recommended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from clcurv.training import search as module
    from clcurv.training import search_plan

    monkeypatch.setattr(module, "chosen_trial", search_plan.uniform_trial)
    net = Net()
    report = clcurv.relimp(net, past=BOTH, current=CURRENT, **SEARCH)
    assert report.document.penalty.kind == "uniform"
    expected = mas(net, BOTH[0])["body.weight"]
    np.testing.assert_allclose(report.multipliers["body.weight"].numpy(), expected, rtol=1e-6)
    assert (report.result.lambda_up, report.result.lambda_down) == (1.0, 1.0)


def test_a_searched_relative_penalty_is_weighed_as_in_its_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a schedule, at another learning rate than the one given, and with λ's own decay."""
    from clcurv.training import search as module

    def last_relative(trials: Any) -> Any:
        return [t for t in trials if t.phase in module.RELATIVE][-1]

    monkeypatch.setattr(module, "chosen_trial", last_relative)
    monkeypatch.setattr(module, "is_acceptable", lambda *given: False)
    monkeypatch.setattr(module, "LEARNING_RATES", (0.5,))
    schedule(tmp_path / "kappa.json", Deep())
    report = clcurv.relimp(
        Deep(), past=BOTH, current=CURRENT, schedule=tmp_path / "kappa.json", lambda_decay=0.25,
        **{**SEARCH, "max_trials": 3},
    )  # fmt: skip
    assert report.document.penalty.kind == "relative"
    for name, held in report.search.multipliers.items():
        torch.testing.assert_close(report.multipliers[name].double(), held.double())
    assert report.result.learning_rate == 0.5 * QUICK["lr"]
    largest = max(float(m.max()) for m in report.multipliers.values())
    assert report.result.lambda_ceiling == pytest.approx(1 / (0.5 * QUICK["lr"] * largest))
    uniform = [t.lambda_ for t in report.document.search.trials if t.phase == "uniform"]
    assert uniform == pytest.approx([uniform[0], uniform[0] / 4, uniform[0] / 16])


def test_the_training_config_and_the_options_over_it(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text("lr: 0.02\nnum_train_epochs: 3\noptim: sgd\n")
    report = clcurv.relimp(
        Net(),
        past=PAST,
        current=CURRENT,
        samples=N,
        training_config=tmp_path / "train.yaml",
        epochs=1,
        patience=0,
        train_batch_size=9,
    )
    ahead = report.document.look_ahead
    assert (ahead.optimizer, ahead.lr, ahead.epochs, ahead.batch_size) == ("sgd", 0.02, 1, 9)
    assert report.document.penalty.learning_rate == 0.02


def test_a_diverging_look_ahead_keeps_the_importance_of_the_past() -> None:
    kept: list[Any] = []
    asked = {**QUICK, "optimizer": "sgd", "lr": 1e150, "epochs": 5, "on_past": kept.append}
    with pytest.raises(NumericalError, match="diverged") as caught:
        clcurv.relimp(Net(), past=PAST, current=CURRENT, **asked)
    assert caught.value.exit_code == 4
    assert len(kept) == 1


def test_an_interruption_leaves_what_is_known_of_the_past() -> None:
    def stop(stage: str, done: int, total: int) -> None:
        if stage == "look-ahead":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        clcurv.relimp(Net(), past=PAST, current=CURRENT, progress=stop, **QUICK)
    document = caught.value.document  # type: ignore[attr-defined]
    assert (document.complete, document.current) == (False, None)
    assert document.layers[0].past_mean > 0


def test_an_interrupted_search_keeps_its_trials() -> None:
    def stop(trial: Any) -> None:
        if trial.phase == "uniform":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        clcurv.relimp(Net(), past=BOTH, current=CURRENT, on_trial=stop, **SEARCH)
    document = caught.value.document  # type: ignore[attr-defined]
    phases = [t.phase for t in document.search.trials]
    assert phases == ["reference", "reference", "uniform"]


def test_files_of_other_networks_and_kinds_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "imp.safetensors"
    clcurv.relimp(Net(), past=PAST, samples=N).save_importance(path)
    asked: dict[str, Any] = {"past_importance": path, "current": CURRENT}
    with pytest.raises(MismatchError, match="another model") as caught:
        clcurv.relimp(Net(hidden=7), **asked)
    assert caught.value.exit_code == 3
    with pytest.raises(MismatchError, match="another estimator: mas, not fisher"):
        clcurv.relimp(Net(), estimator="fisher", **asked)
    with pytest.raises(MismatchError, match="another compat: per-sample, not facil"):
        clcurv.relimp(Net(), compat="facil", **asked)
    with pytest.raises(MismatchError, match="loss"):
        clcurv.relimp(Net(), loss="mse", **asked)
    with pytest.raises(MismatchError, match="n samples 36 for the past, 20"):
        clcurv.relimp(Net(), samples=20, **asked)
    report = clcurv.relimp(Net(), past=PAST, current=CURRENT, **QUICK)
    report.save_multipliers(tmp_path / "alpha.safetensors")
    with pytest.raises(NotWeightsError, match="no importance"):
        clcurv.relimp(Net(), past_importance=tmp_path / "alpha.safetensors", current=CURRENT)


def test_another_batch_of_a_convention_is_refused_before_the_work(tmp_path: Path) -> None:
    path, stages = tmp_path / "imp.safetensors", []
    clcurv.relimp(Net(), past=PAST, samples=N, compat="reference", batch_size=9).save_importance(
        path
    )
    with pytest.raises(MismatchError, match="batch size 9 for the past, 8"):
        clcurv.relimp(
            Net(), past_importance=path, current=CURRENT, batch_size=8,
            progress=lambda stage, done, total: stages.append(stage),
        )  # fmt: skip
    assert "finding the layers" in stages
    assert "look-ahead" not in stages
    report = clcurv.relimp(Net(), past_importance=path, current=CURRENT, epochs=1)
    assert (report.current.compat, report.current.batch_size) == ("reference", 9)


def test_what_is_no_importance_file_is_told_by_its_flag(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=PAST[0], y=PAST[1])
    for name in ("missing.safetensors", "data.npz"):
        with pytest.raises(InputError, match=name) as caught:
            clcurv.relimp(Net(), past_importance=tmp_path / name, current=CURRENT)
        assert caught.value.hint == (
            "--past-importance takes the file that --save-importance wrote"
        )


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ((CURRENT[0][:0], CURRENT[1][:0]), "the data set is empty"),
        ((CURRENT[0], CURRENT[1] - 1), "label '-1' lies outside"),
        ((CURRENT[0], CURRENT[1] * 1000), "no class numbers"),
        ((CURRENT[0], np.array(["a", "b", "c", "d"] * 9)), "current task: the data has 4 classes"),
    ],
    ids=["empty", "negative", "far beyond", "names"],
)
def test_current_tasks_that_are_none(data: Any, said: str) -> None:
    with pytest.raises((DataError, MismatchError), match=said) as caught:
        clcurv.relimp(Net(), past=PAST, current=data, **QUICK)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"past": None}, "what the network knows"),
        ({"tau": "mean"}, "tau"),
        ({"multiplier_form": "other"}, "multiplier-form"),
        ({"estimator": "ewc"}, "estimator"),
        ({"compat": "gem"}, "gem"),
        ({"compat": "facil", "estimator": "fisher"}, "facil"),
        ({"accumulate": "sum"}, "accumulate"),
        ({"lambda_": -1.0}, "--lambda"),
        ({"lambda_down": float("nan")}, "--lambda-down"),
        ({"search": True, "lambda_up": 2.0}, "--lambda-up"),
        ({"search": True, "validation": 0.0}, "held out"),
        ({"search": True, "current": None}, "--search"),
        ({"state": "s.json"}, "--state"),
        ({"allowed_drop": 1.0}, "--allowed-drop"),
        ({"lambda_decay": 1.0}, "--lambda-decay"),
        ({"lr": -1.0}, "lr must be"),
        ({"heads": 1}, "no option 'heads'"),
    ],
)
def test_options_that_cannot_be(asked: dict[str, Any], said: str) -> None:
    settings = {"past": PAST, "current": CURRENT, **QUICK, **asked}
    with pytest.raises(UsageError, match=said):
        clcurv.relimp(Net(), **settings)


def test_a_full_disk_leaves_no_side_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = clcurv.relimp(Net(), past=PAST, current=CURRENT, **QUICK)
    path = tmp_path / "alpha.safetensors"

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for save in (report.save_multipliers, report.save_importance):
        with pytest.raises(ResourceError, match="No space left"):
            save(path)
    assert list(tmp_path.iterdir()) == []


def test_a_plan_measures_nothing_and_says_what_would_be_done() -> None:
    new = (CURRENT[0], CURRENT[1] + CLASSES)
    plan = plan_relimp(Net(), past=PAST, current=new, **QUICK, search=True)
    assert (plan.samples, plan.new_classes, plan.num_classes) == (N, CLASSES, CLASSES)
    assert (plan.steps, plan.trainings) == (2, 34)  # 30 samples in a batch of 32, twice
    assert plan.bytes_importance == 20 * (2 * HALF * HIDDEN + HIDDEN * CLASSES)
    assert [x.name for x in plan.layers] == ["body", "head"]


def test_documents_are_strict_json_and_count_every_parameter() -> None:
    report = clcurv.relimp(Net(), past=BOTH, current=CURRENT, **QUICK)
    held = json.loads(report.document.model_dump_json(by_alias=True))
    assert (held["schema"], held["complete"]) == ("clcurv.relimp", True)
    assert held["penalty"]["lambda"] == report.result.lambda_
    counted = np.array(held["density"]["counts"])
    assert counted.sum() == 2 * HALF * HIDDEN  # outside the head
    past = report.past.tensors["body.weight"].log10()
    edges = held["density"]["past_edges"]
    assert edges[-1] == pytest.approx(float(past.max()))
    inside = (past > edges[10]) & (past <= edges[20])
    assert counted[10:20].sum() == int(inside.sum())


def test_the_saved_importance_reads_back(tmp_path: Path) -> None:
    report = clcurv.relimp(Net(), past=PAST, samples=N)
    report.save_importance(tmp_path / "imp.safetensors")
    read = load_importance(tmp_path / "imp.safetensors")
    assert read.fingerprint == report.past.fingerprint
