"""Trains the networks of the task-stream sample and measures what they have lost.

    python sample_checkpoints/make_stream.py                  # three seeds, about 20 minutes
    python sample_checkpoints/make_stream.py --seeds 0        # the shipped checkpoints alone
    python sample_checkpoints/make_stream.py --out build/stream  # leave the shipped files alone

400 tasks of permuted digits in one epoch each: first by plain SGD, then with the coefficients
that ``clcurv spectrum`` recommends on seed 0's plain run, and by weight decay alone for
comparison. All runs of a seed begin with the same weights and see the same mini-batches. The
tables go into permuted_digits/README.md. One thread and fixed seeds; needs scikit-learn.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from make import write_block
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import clcurv
from clcurv.curvature.objective import Objective
from clcurv.diagnostics.fast_modes import fast_band, measure_fast_modes
from clcurv.diagnostics.features import measure_features
from clcurv.diagnostics.task_spectrum import measure_spectrum
from clcurv.inputs.dataset import Samples
from clcurv.inputs.stream_transform import task_permutation
from clcurv.report.document import to_json
from clcurv.runtime import atomic_write
from clcurv.training import L2ER

HERE = Path(__file__).parent
FOLDER = "permuted_digits"
SEEDS = (0, 1, 2)
TASKS = 400
BATCH, LR, GAMMA = 16, 0.1, 0.1
SHIPPED = (2, 100, 200, 390, 400)  # the network before each of these tasks
EARLY, LATE = (2, 4, 6, 8, 10, 12), (375, 380, 385, 390, 395, 400)
VERDICT_SAMPLES = 200  # few enough for all eigenvalues by the Gram matrix
EXACT = 100  # samples of which all eigenvalues are computed
RUNS = {"sgd": "plain SGD", "l2": "SGD, weight decay alone", "l2er": "SGD with L2-ER"}


@dataclass
class Run:
    """What a run leaves: online accuracy per task, and the networks before some of them."""

    accuracy: list[float] = field(default_factory=list)
    before: dict[int, dict[str, Tensor]] = field(default_factory=dict)


def new_network(seed: int) -> nn.Sequential:
    """Weights by He et al. 2015 for ReLU, biases zero."""
    from permuted_digits.mlp import digits_mlp

    torch.manual_seed(seed)
    model = digits_mlp()
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
    return model


def permuted(x: Tensor, task: int, seed: int) -> Tensor:
    """The digits as task `task` (from 1) shows them: as the manifest's transform does."""
    return x[:, torch.from_numpy(task_permutation(x.shape[1], number=task - 1, seed=seed))]


def train(
    x: Tensor, y: Tensor, seed: int, coefficients: Mapping[str, object] | None, decay: float = 0.0
) -> Run:
    """One epoch a task; accuracy is that on every mini-batch before the step on it."""
    model, run = new_network(seed), Run()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, weight_decay=decay)
    reg = L2ER.from_json(model, coefficients, optimizer=optimizer) if coefficients else None
    order = torch.Generator().manual_seed(seed)
    kept = len(x) // BATCH * BATCH
    for task in range(1, TASKS + 1):
        if task in {*SHIPPED, *EARLY, *LATE}:
            run.before[task] = {k: v.clone() for k, v in model.state_dict().items()}
        inputs, right = permuted(x, task, seed), 0
        for rows in torch.randperm(len(x), generator=order)[:kept].split(BATCH):
            batch, targets = inputs[rows], y[rows]
            logits = model(batch)
            right += int((logits.argmax(1) == targets).sum())
            optimizer.zero_grad()
            F.cross_entropy(logits, targets).backward()
            optimizer.step()
            if reg:
                reg.step(batch)
        run.accuracy.append(right / kept)
    if reg:
        reg.close()
    return run


def measured(x: Tensor, y: Tensor, seed: int, run: Run, tasks: Sequence[int]) -> dict[str, float]:
    """Medians over tasks of what the network met them with."""
    steps = len(x) // BATCH
    some = torch.randperm(len(x), generator=torch.Generator().manual_seed(99))[:1000]
    model = new_network(seed)
    found: dict[str, list[float]] = {}
    for task in tasks:
        model.load_state_dict(run.before[task])
        seen = permuted(x, task, seed)
        few = Samples(seen[some[:EXACT]], y[some[:EXACT]])
        params = {"all": list(model.parameters())}
        spectrum = measure_spectrum(
            model, params, few, Objective(), operator="ggn", method="gram",
            eps_fast=fast_band(LR, steps, 0.0, GAMMA),
        )  # fmt: skip
        modes = measure_fast_modes(
            model, params, few, Objective(), lr=LR, steps=steps, gamma=GAMMA, method="gram"
        )
        features = measure_features(model, Samples(seen[some], y[some]))
        assert spectrum.rank_fast is not None
        row = {
            "accuracy": run.accuracy[task - 1],
            "eps_rank": spectrum.rank_fast.fraction,
            "fast_share": modes.share,
            "effective_rank": statistics.mean(f.erank for f in features),
            "dormant": statistics.mean(f.dormant or 0.0 for f in features),
        }
        for name, value in row.items():
            found.setdefault(name, []).append(value)
    return {name: statistics.median(values) for name, values in found.items()}


def save_networks(folder: Path, run: Run) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for task in SHIPPED:
        torch.save(run.before[task], folder / f"task-{task:03d}.pt")


def write_stream(folder: Path, x: Tensor, y: Tensor) -> None:
    """The digits as npz, the network's code, and the manifest of the shipped tasks."""
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write(folder / "mlp.py", (HERE / FOLDER / "mlp.py").read_bytes())
    np.savez_compressed(folder / "digits.npz", x=x.numpy(), y=y.numpy())
    lines = [
        "schema: clcurv.stream",
        'schema_version: "1.0"',
        "name: permuted-digits",
        "scenario: domain-il",
        "modality: array",
        "train: digits.npz",
        "tasks:",
        *(
            f"  - {{name: task-{task:03d}, "
            f"transform: {{kind: permute, number: {task - 1}, seed: 0}}}}"
            for task in SHIPPED
        ),
    ]
    atomic_write(folder / "stream.yaml", ("\n".join(lines) + "\n").encode())


def recommended(folder: Path) -> dict[str, object]:
    """What ``clcurv spectrum`` says about the shipped plain run; written beside it."""
    with contextlib.chdir(folder):  # the document names files as a user there would
        report = clcurv.spectrum(
            [f"sgd/task-{task:03d}.pt" for task in SHIPPED],
            arch="mlp.py:digits_mlp",
            trust_code=True,
            stream="stream.yaml",
            operator="ggn",
            samples=VERDICT_SAMPLES,
            lr=LR,
            steps=len(load_digits().target) // BATCH,
            gamma=GAMMA,
        )
    print(f"{report.verdict.verdict}: {report.verdict.evidence}", file=sys.stderr)
    if report.l2er is None:
        raise SystemExit("no coefficients were recommended")
    text = to_json(report.l2er)
    atomic_write(folder / "l2er.json", text.encode())
    coefficients: dict[str, object] = json.loads(text)
    return coefficients


def tenths(run: Run) -> tuple[float, float]:
    """Mean online accuracy over the first and the last tenth of the tasks."""
    n = len(run.accuracy) // 10
    return statistics.mean(run.accuracy[:n]), statistics.mean(run.accuracy[-n:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--out", type=Path, default=HERE, help="folder to write to")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    folder = options.out / FOLDER
    digits = load_digits()
    x = torch.from_numpy(digits.data / 16).float()
    y = torch.from_numpy(digits.target.astype(np.int64))
    write_stream(folder, x, y)

    results, runs = [], {}
    for seed in options.seeds:
        runs[seed, "sgd"] = train(x, y, seed, None)
        if seed == options.seeds[0]:
            save_networks(folder / "sgd", runs[seed, "sgd"])
            coefficients = recommended(folder)
        decay = float(str(coefficients["weight_decay"]))
        runs[seed, "l2"] = train(x, y, seed, None, decay=decay)
        runs[seed, "l2er"] = train(x, y, seed, coefficients)
        if seed == options.seeds[0]:
            save_networks(folder / "l2er", runs[seed, "l2er"])
        for kind in RUNS:
            run = runs[seed, kind]
            first, last = tenths(run)
            row: dict[str, object] = {
                "seed": seed, "run": kind, "first_tenth": first, "last_tenth": last,
                "early": measured(x, y, seed, run, EARLY),
                "late": measured(x, y, seed, run, LATE),
            }  # fmt: skip
            results.append(row)
            print(json.dumps(row), flush=True)
    names = ("weight_decay", "er_lr", "er_every", "er_layers", "window", "lr")
    taken = {name: coefficients[name] for name in names}
    text = json.dumps({"coefficients": taken, "runs": results}, indent=1)
    atomic_write(folder / "results.json", (text + "\n").encode())
    write_block(folder / "README.md", "measured", table(results))
    write_block(folder / "README.md", "cost", cost(x, y, coefficients))


def table(results: Sequence[Mapping[str, object]]) -> str:
    lines = [
        "| seed | run | accuracy, first tenth | last tenth | ε-rank (fast), early | late "
        "| fast share, early | late | effective rank, early | late | dormant, late |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in results:
        early, late = row["early"], row["late"]
        assert isinstance(early, Mapping)
        assert isinstance(late, Mapping)
        lines.append(
            f"| {row['seed']} | {RUNS[str(row['run'])]} | {row['first_tenth']:.3f} "
            f"| {row['last_tenth']:.3f} | {100 * early['eps_rank']:.3f} % "
            f"| {100 * late['eps_rank']:.3f} % | {early['fast_share']:.4f} "
            f"| {late['fast_share']:.4f} | {early['effective_rank']:.1f} "
            f"| {late['effective_rank']:.1f} | {100 * late['dormant']:.0f} % |"
        )
    return "\n".join(lines)


def cost(x: Tensor, y: Tensor, coefficients: Mapping[str, object]) -> str:
    """What a mini-batch takes with and without L2-ER, in blocks by turns."""
    blocks: dict[bool, list[float]] = {False: [], True: []}
    model = new_network(0)
    for _ in range(15):
        for regularised, times in blocks.items():
            optimizer = torch.optim.SGD(model.parameters(), lr=LR)
            reg = L2ER.from_json(model, coefficients, optimizer=optimizer) if regularised else None
            start = time.perf_counter()
            for rows in torch.arange(100 * BATCH).split(BATCH):
                optimizer.zero_grad()
                F.cross_entropy(model(x[rows]), y[rows]).backward()
                optimizer.step()
                if reg:
                    reg.step(x[rows])
            times.append((time.perf_counter() - start) / 100)
            if reg:
                reg.close()
    plain, with_reg = (1e3 * statistics.median(blocks[kind]) for kind in (False, True))
    return (
        f"A mini-batch of {BATCH} takes {plain:.2f} ms by plain SGD and {with_reg:.2f} ms with "
        f"L2-ER, {with_reg / plain:.1f} times as long (medians of 15 blocks by turns, one CPU "
        "thread)."
    )


if __name__ == "__main__":
    main()
