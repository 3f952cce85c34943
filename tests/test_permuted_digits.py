"""The shipped task stream: files that fit together, and what its README says of them."""

import json
from pathlib import Path

import torch
from torch import nn

from clcurv.curvature.objective import Objective
from clcurv.diagnostics.fast_modes import fast_band
from clcurv.diagnostics.features import measure_features
from clcurv.diagnostics.task_spectrum import measure_spectrum
from clcurv.inputs.architecture import LoadedModel
from clcurv.inputs.stream import open_stream
from clcurv.training import L2ER

FOLDER = Path(__file__).parents[1] / "sample_checkpoints" / "permuted_digits"
TASKS = (2, 100, 200, 390, 400)


def network(kind, task):
    hidden = [part for _ in range(2) for part in (nn.Linear(100, 100), nn.ReLU())]
    net = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), *hidden, nn.Linear(100, 10))
    net.load_state_dict(torch.load(FOLDER / kind / f"task-{task:03d}.pt", weights_only=True))
    return net


def samples(net, task, n):
    loaded = LoadedModel(net, "given:Sequential", "given", "array", "classification", 10)
    stream = open_stream(FOLDER / "stream.yaml")
    assert [t.name for t in stream.tasks] == [f"task-{t:03d}" for t in TASKS]
    return stream.samples(TASKS.index(task), loaded, n=n, seed=0, loss="cross-entropy")


def effective_rank(kind, task):
    net = network(kind, task)
    layers = measure_features(net, samples(net, task, 600))
    assert all(layer.enough for layer in layers)
    return sum(layer.erank for layer in layers) / 3


def test_the_plain_run_uses_fewer_directions_late():
    late = {k: sum(effective_rank(k, t) for t in (390, 400)) / 2 for k in ("sgd", "l2er")}
    assert late["sgd"] < 0.6 * late["l2er"]
    assert late["sgd"] < 0.8 * effective_rank("sgd", 2)
    assert late["l2er"] > effective_rank("l2er", 2)


def test_the_plain_run_has_fewer_fast_eigenvalues_late():
    def fast(kind):
        counts = []
        for task in (390, 400):
            net = network(kind, task)
            found = measure_spectrum(
                net, {"all": list(net.parameters())}, samples(net, task, 40), Objective(),
                operator="ggn", method="gram", eps_fast=fast_band(0.1, 112, 0.0, 0.1),
            )  # fmt: skip
            counts.append(found.rank_fast.count)
        return sum(counts)

    assert fast("sgd") < fast("l2er")


def test_every_seed_says_the_same():
    runs = json.loads((FOLDER / "results.json").read_text())["runs"]
    seeds = {run["seed"] for run in runs}
    assert len(seeds) >= 3
    by = {(run["seed"], run["run"]): run for run in runs}
    for seed in seeds:
        plain, with_reg = by[seed, "sgd"], by[seed, "l2er"]
        assert plain["last_tenth"] < with_reg["last_tenth"] - 0.1
        for name in ("accuracy", "eps_rank", "fast_share", "effective_rank"):
            assert plain["late"][name] < with_reg["late"][name], (seed, name)


def test_the_recommendation_runs_on_the_shipped_network():
    net = network("sgd", 400)
    with L2ER.from_json(net, FOLDER / "l2er.json") as reg:
        inputs = samples(net, 400, 160).inputs
        ranks = [r for _ in range(5) for part in inputs.split(16) if (r := reg.step(part))]
    assert len(ranks) == 5
    assert ranks[-1] > ranks[0]


def test_it_stays_small():
    assert sum(p.stat().st_size for p in FOLDER.rglob("*") if p.is_file()) < 1.5 * 2**20
