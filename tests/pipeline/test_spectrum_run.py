"""`clcurv.spectrum` on tiny networks: pairing, failures, resume, reference, interruption."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import clcurv
from clcurv.errors import (
    InputError,
    MismatchError,
    NumericalError,
    ResourceError,
    UsageError,
)
from clcurv.pipeline import plan_spectrum

CLASSES, WIDTH, N = 3, 6, 48
FAST: dict[str, Any] = {"lr": 0.1, "steps": 100, "samples": N}


class Net(nn.Module):
    def __init__(self, seed: int = 0, classes: int = CLASSES, hidden: int = 8) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.body = nn.Linear(WIDTH, hidden)
        self.act = nn.ReLU()
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.act(self.body(x.flatten(1))))


@pytest.fixture
def stream() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3 * N, WIDTH)).astype(np.float32)
    y = np.tile(np.arange(CLASSES), N)
    return x, y, np.repeat(np.arange(3), N)


def dense_hessian(model: nn.Module, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    model = model.double()
    flat = list(model.parameters())
    loss = nn.functional.cross_entropy(model(torch.from_numpy(x).double()), torch.from_numpy(y))
    grads = torch.autograd.grad(loss, flat, create_graph=True)
    rows = [
        torch.cat(
            [
                r.reshape(-1)
                for r in torch.autograd.grad(v, flat, retain_graph=True, materialize_grads=True)
            ]
        )
        for v in torch.cat([g.reshape(-1) for g in grads])
    ]
    model.float()
    return torch.stack(rows).numpy()


def test_every_task_is_met_by_its_own_network(stream) -> None:
    x, y, _ = stream
    nets = [Net(seed) for seed in range(3)]
    report = clcurv.spectrum(nets, stream=stream, dtype="float64", **FAST)
    for i, task in enumerate(report.result.tasks):
        assert (task.index, task.status, task.n_samples) == (i + 1, "ok", N)
        rows = slice(i * N, (i + 1) * N)
        values = np.linalg.eigvalsh(dense_hessian(nets[i], x[rows], y[rows]))
        assert task.spectrum.lambda_max == pytest.approx(values[-1], rel=1e-6)
        assert task.spectrum.lambda_min == pytest.approx(values[0], rel=1e-4)
        assert task.spectrum.trace == pytest.approx(values.sum(), rel=1e-6)
        rank = task.spectrum.rank_fast
        assert rank.count == (np.abs(values) > rank.eps).sum()
        assert task.fast_modes.lower == pytest.approx(rank.eps)
        assert [f.name for f in task.features] == ["head"]
    assert report.result.reference == report.result.tasks[0]
    document = json.loads(report.document.model_dump_json(by_alias=True))
    assert document["schema"] == "clcurv.spectrum"
    assert document["complete"] is True


def test_one_network_for_the_whole_stream(stream) -> None:
    report = clcurv.spectrum(Net(), stream=stream, samples=N)
    assert len(report.result.tasks) == 3
    assert all(task.fast_modes is None for task in report.result.tasks)
    assert all(task.spectrum.rank_fast is None for task in report.result.tasks)


def test_the_networks_come_back_as_they_were(stream) -> None:
    net = Net().train()
    net.body.weight.requires_grad_(False)
    before = {n: t.clone() for n, t in net.state_dict().items()}
    clcurv.spectrum(net, stream=stream, head="fresh", reference="fresh", **FAST)
    assert all(torch.equal(t, before[n]) for n, t in net.state_dict().items())
    assert not net.body.weight.requires_grad
    assert net.body.weight.grad is None


def broken() -> Net:
    net = Net(1)
    with torch.no_grad():
        net.body.weight[0, 0] = float("nan")
    return net


def test_nan_in_one_task_keeps_the_others(stream) -> None:
    report = clcurv.spectrum([Net(0), broken(), Net(2)], stream=stream, **FAST)
    assert [task.status for task in report.result.tasks] == ["ok", "failed", "ok"]
    assert isinstance(report.failure, NumericalError)
    assert "not finite" in report.result.tasks[1].reason
    assert report.result.tasks[1].spectrum is None
    assert report.document.complete is False


def test_nan_everywhere_is_an_error(stream) -> None:
    with pytest.raises(NumericalError, match="not finite"):
        clcurv.spectrum(broken(), stream=stream, samples=N)


def test_finished_tasks_are_taken_from_the_folder(
    stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def note(stage: str, done: int, total: int) -> None:
        told.append(stage)

    options = {**FAST, "resume": tmp_path / "run", "progress": note}
    nets = [Net(seed) for seed in range(3)]
    paths = []
    for i, net in enumerate(nets):
        paths.append(tmp_path / f"task-{i}.pt")
        torch.save(net.state_dict(), paths[-1])
    options["arch"] = f"{__name__}:Net"
    options["trust_code"] = True
    first = clcurv.spectrum(paths, stream=stream, **options)
    assert not any("taken from" in stage for stage in told)
    told.clear()
    again = clcurv.spectrum(paths, stream=stream, **options)
    assert sum("taken from" in stage for stage in told) == 3
    assert again.result.tasks == first.result.tasks
    told.clear()
    # The same tensors in another network: the file with the architecture was edited.
    monkeypatch.setattr(nn.ReLU, "forward", lambda self, x: torch.tanh(x))
    monkeypatch.setattr(nn.ReLU, "extra_repr", lambda self: "edited")
    clcurv.spectrum(paths, stream=stream, **options)
    assert not any("taken from" in stage for stage in told)
    monkeypatch.undo()
    told.clear()
    clcurv.spectrum(paths, stream=stream, **{**options, "lr": 0.2})
    assert not any("taken from" in stage for stage in told)


def test_a_damaged_file_of_a_finished_task_is_measured_anew(stream, tmp_path: Path) -> None:
    net = Net()
    first = clcurv.spectrum(net, stream=stream, resume=tmp_path, **FAST)
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_bytes()[:100])
    again = clcurv.spectrum(net, stream=stream, resume=tmp_path, **FAST)
    assert [t.spectrum for t in again.result.tasks] == [t.spectrum for t in first.result.tasks]


def test_an_interruption_leaves_what_is_finished(stream, tmp_path: Path) -> None:
    def stop(stage: str, done: int, total: int) -> None:
        if stage.startswith("task 2"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as raised:
        clcurv.spectrum(Net(), stream=stream, resume=tmp_path, progress=stop, **FAST)
    document = raised.value.document
    assert document.complete is False
    assert len(document.tasks) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["task-0000.json"]


@pytest.mark.parametrize("kind", ["fresh", "network"])
def test_a_reference_of_its_own(stream, kind: str) -> None:
    reference = "fresh" if kind == "fresh" else Net(9)
    report = clcurv.spectrum(Net(3), stream=stream, reference=reference, **FAST)
    assert report.result.reference_kind == ("fresh" if kind == "fresh" else "checkpoint")
    found = report.result.reference.spectrum.lambda_max
    assert found != pytest.approx(report.result.tasks[0].spectrum.lambda_max, rel=1e-3)
    if kind == "network":
        x, y, _ = stream
        values = np.linalg.eigvalsh(dense_hessian(Net(9), x[:N], y[:N]))
        assert found == pytest.approx(values[-1], rel=1e-3)


def test_layers_restrict_the_matrix(stream) -> None:
    report = clcurv.spectrum(Net(), stream=stream, layers=r"^head", dtype="float64", **FAST)
    assert report.result.tasks[0].spectrum.n_parameters == 8 * CLASSES + CLASSES


def test_another_architecture_in_the_pattern_is_named(stream) -> None:
    with pytest.raises(MismatchError, match=r"another network.*body\.bias"):
        clcurv.spectrum([Net(0), Net(1, hidden=9), Net(2)], stream=stream, samples=N)


def test_heads_may_grow_along_a_stream(stream) -> None:
    nets = [Net(0, 3), Net(1, 4), Net(2, 5)]
    report = clcurv.spectrum(nets, stream=stream, **FAST)
    assert [task.status for task in report.result.tasks] == ["ok"] * 3


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"stream": None}, UsageError, "no stream"),
        ({"method": "magic"}, UsageError, "unknown method"),
        ({"layers": "nothing"}, UsageError, "no parameter matches"),
        ({"layers": "("}, UsageError, "regular expression"),
        ({"lr": 0.1, "steps": 0}, UsageError, "0 steps"),
        ({"wrong": 1}, UsageError, "no option 'wrong'"),
        ({"reference": "nowhere.pt"}, InputError, "nowhere.pt"),
    ],
)
def test_bad_options_are_refused_before_the_work(stream, options, error, said) -> None:
    def no_work(stage: str, done: int, total: int) -> None:
        assert not stage.startswith("task ")

    with pytest.raises(error, match=said) as raised:
        clcurv.spectrum(Net(), **{"stream": stream, "progress": no_work, **options})
    assert "\n" not in str(raised.value)


def test_two_networks_do_not_make_three_tasks(stream) -> None:
    with pytest.raises(UsageError, match="3 tasks"):
        clcurv.spectrum([Net(), Net()], stream=stream)


def test_the_plan_measures_nothing(stream) -> None:
    plan = plan_spectrum([Net(i) for i in range(3)], stream=stream, samples=20, layers="head")
    assert plan.parameters_measured == 8 * CLASSES + CLASSES
    assert [task.samples for task in plan.tasks] == [20] * 3
    assert plan.tasks[0].classes == (0, 1, 2)


def test_which_network_meets_which_task_is_told_before_the_work(stream) -> None:
    told: list[str] = []

    def note(sentence: str) -> None:
        told.append(sentence)

    def progress(stage: str, done: int, total: int) -> None:
        assert told or not stage.startswith("task ")

    clcurv.spectrum(
        [Net(i) for i in range(3)], stream=stream, samples=20, note=note, progress=progress
    )
    assert told == [f"task {i} (t={i - 1}) meets Net" for i in (1, 2, 3)]
    told.clear()
    clcurv.spectrum(Net(), stream=stream, samples=20, note=note)
    assert told == ["Net meets all 3 tasks"]


def test_a_full_disk_for_finished_tasks_loses_no_measurement(
    stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clcurv.pipeline import resume

    def full(*_: object) -> None:
        raise ResourceError("cannot write: No space left on device")

    monkeypatch.setattr(resume, "atomic_write", full)
    report = clcurv.spectrum(Net(0), stream=stream, resume=tmp_path / "run", **FAST)
    assert {task.status for task in report.result.tasks} == {"ok"}
    assert any("not kept for --resume" in w for w in report.document.warnings)
