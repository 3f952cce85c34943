"""Uniform MAS against relative importance on split digits, with searched λ: the whole matrix.

    python tests/benchmarks/relimp_forgetting.py                     # domain-incremental, 3 seeds
    python tests/benchmarks/relimp_forgetting.py --scenario class --json result.json

scikit-learn's 1797 digits in five tasks of two classes (0 and 1, 2 and 3, ...), a small MLP from
scratch. Each task is learned by one training with early stopping on a validation part of its own;
λ, λ_down and λ_up come from the search on the current task alone. No past data is kept: the past
is its importance (MAS, mean over tasks). The network after the first task is the same for all
methods of a seed.

========  =====================================================================================
none      no penalty
uniform   λ/2 Σ α (θ−θ*)², λ as the search's phase ``uniform`` finds it
relative  λ/2 Σ α' (θ−θ*)², λ, λ_down and λ_up as the whole search finds them
========  =====================================================================================

``domain``: two outputs, odd or even, the same for all tasks (domain-incremental).
``class``: one output a class, unknown which task a digit is of (class-incremental); a second matrix
scores the same networks among the two classes of the digit's task.

Figures are as measured; formulas are named in `task_matrix.summary`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from task_matrix import summary
from torch import Tensor, nn

from clcurv.curvature.importance import Importance, measure_importance
from clcurv.curvature.objective import Objective
from clcurv.diagnostics.importance_kind import accumulate
from clcurv.inputs.dataset import Samples
from clcurv.inputs.live import wrap_module
from clcurv.inputs.loaded import LoadedModel
from clcurv.inputs.sampling import sample_digest
from clcurv.training.fit import fit
from clcurv.training.look_ahead import LookAheadOptions, ready_copy
from clcurv.training.penalty import ImportancePenalty
from clcurv.training.search import SearchResult, search

METHODS = ("none", "uniform", "relative")
CLASSES_A_TASK = 2
TEST_PART = 0.3
CE = Objective()


class Mlp(nn.Module):
    """64-100-100-outputs."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU())
        self.fc = nn.Linear(100, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.body(x))


@dataclasses.dataclass(frozen=True)
class Setting:
    """Of the experiment; the trainings' options are those of the look-ahead."""

    scenario: str = "domain"
    tasks: int = 5
    lr: float = 0.01
    epochs: int = 10
    batch_size: int = 32
    allowed_drop: float = 0.1
    max_trials: int = 10
    lambda_decay: float = 0.9
    multiplier: str = "paper"

    def options(self, seed: int) -> LookAheadOptions:
        return LookAheadOptions(
            optimizer="sgd",
            lr=self.lr,
            epochs=self.epochs,
            batch_size=self.batch_size,
            momentum=0.9,
            seed=seed,
        )


def split_digits(setting: Setting, seed: int) -> list[tuple[Samples, Samples]]:
    """Training and test sample of every task, split by seed."""
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(x), generator=generator)
    tasks = []
    for task in range(setting.tasks):
        first = CLASSES_A_TASK * task
        rows = order[(y[order] >= first) & (y[order] < first + CLASSES_A_TASK)]
        targets = y % CLASSES_A_TASK if setting.scenario == "domain" else y
        cut = round(TEST_PART * len(rows))
        tasks.append(
            (
                _samples(x[rows[cut:]], targets[rows[cut:]]),
                _samples(x[rows[:cut]], targets[rows[:cut]]),
            )
        )
    return tasks


def run(setting: Setting, seed: int) -> dict[str, Any]:
    """Matrices and searches of every method for one seed."""
    tasks = split_digits(setting, seed)
    torch.manual_seed(seed)
    fresh = wrap_module(Mlp(CLASSES_A_TASK))
    start = learn(fresh, tasks[0][0], setting, seed)
    alpha = importance(start, tasks[0][0])
    return {m: stream(m, start, alpha, tasks, setting, seed) for m in METHODS}


def stream(
    method: str,
    start: LoadedModel,
    alpha: Importance,
    tasks: list[tuple[Samples, Samples]],
    setting: Setting,
    seed: int,
) -> dict[str, Any]:
    model, networks, searches = start, [start], []
    for train, _ in tasks[1:]:
        if method == "none":
            model = learn(model, train, setting, seed)
        else:
            result = search(
                model,
                alpha,
                train,
                CE,
                setting.options(seed),
                allowed_drop=setting.allowed_drop,
                max_trials=setting.max_trials,
                learning_rates=(setting.lr,),
                lambda_decay=setting.lambda_decay,
                multiplier=setting.multiplier,  # type: ignore[arg-type]
                samples_may_differ=True,
                seed=seed,
            )
            lambda_, multipliers = recommended(method, result, alpha)
            model = learn(model, train, setting, seed, lambda_=lambda_, multipliers=multipliers)
            alpha = accumulate(alpha, importance(model, train))
            searches.append(described(method, result, lambda_))
        networks.append(model)
    matrix = [scores(network, tasks) for network in networks]
    found = {"matrix": matrix, "summary": summary(matrix), "searches": searches}
    if setting.scenario == "class":
        known = [scores(network, tasks, known_task=True) for network in networks]
        found["known task"] = {"matrix": known, "summary": summary(known)}
    return found


def recommended(method: str, found: SearchResult, alpha: Importance) -> tuple[float, Any]:
    if method == "uniform":
        return found.uniform.lambda_, alpha.tensors
    return found.lambda_, found.multipliers


def described(method: str, found: SearchResult, lambda_: float) -> dict[str, Any]:
    trial = found.uniform if method == "uniform" else found.chosen
    return {
        "phase": trial.phase,
        "lambda": lambda_,
        "lambda_down": trial.lambda_down,
        "lambda_up": found.lambda_up if method == "relative" else 1.0,
        "m": trial.m,
        "score": trial.score,
        "reference": found.reference.score,
        "acceptable": trial.acceptable,
        "trials": len(found.trials),
    }


def learn(
    loaded: LoadedModel,
    samples: Samples,
    setting: Setting,
    seed: int,
    *,
    lambda_: float = 0.0,
    multipliers: Any = None,
) -> LoadedModel:
    """One task: the training that the search tried, with its penalty."""
    copy, _ = ready_copy(loaded, samples, CE, seed=seed)
    penalty = None
    if multipliers is not None:
        penalty = ImportancePenalty(copy.model, multipliers, lambda_=lambda_)
    fit(copy.model, samples, CE, setting.options(seed), penalty=penalty)
    return copy


def importance(loaded: LoadedModel, samples: Samples) -> Importance:
    return measure_importance(loaded.model, samples, CE)


@torch.no_grad()
def scores(
    loaded: LoadedModel, tasks: list[tuple[Samples, Samples]], *, known_task: bool = False
) -> list[float]:
    """Accuracy on every task's test part, among all outputs there are or those of the task."""
    found = []
    for _, test in tasks:
        logits = loaded.model(test.inputs)
        if known_task:
            own = test.targets.unique()
            others = torch.ones(logits.shape[1], dtype=torch.bool)
            others[own[own < logits.shape[1]]] = False
            logits = logits.masked_fill(others, -torch.inf)
        found.append(float((logits.argmax(1) == test.targets).float().mean()))
    return found


def _samples(x: Tensor, y: Tensor) -> Samples:
    return Samples(x, y, digest=sample_digest(x, y))


def mean_and_spread(values: list[float]) -> tuple[float, float]:
    """Mean and standard deviation over seeds (n−1)."""
    t = torch.tensor(values, dtype=torch.float64)
    return float(t.mean()), float(t.std()) if len(values) > 1 else 0.0


def report(setting: Setting, seeds: dict[int, dict[str, Any]], seconds: float) -> str:
    """Markdown: figures over seeds, then the mean matrix of every method."""
    given = ", ".join(f"{k} {v}" for k, v in dataclasses.asdict(setting).items())
    lines = [f"Split digits, {len(seeds)} seeds, accuracy in %; {given}; {seconds:.0f} s."]
    lines += _figures(list(seeds.values()))
    if setting.scenario == "class":
        lines += ["", "Among the classes of the digit's task:"]
        known = [{m: r[m]["known task"] for m in METHODS} for r in seeds.values()]
        lines += _figures(known)
    return "\n".join(lines)


def _figures(results: list[dict[str, Any]]) -> list[str]:
    lines = ["", "| | " + " | ".join(METHODS) + " |", "|---|" + "---|" * len(METHODS)]
    for name in results[0]["none"]["summary"]:
        cells = []
        for method in METHODS:
            mean, spread = mean_and_spread([r[method]["summary"][name] for r in results])
            cells.append(f"{100 * mean:.1f} ± {100 * spread:.1f}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    for method in METHODS:
        lines += ["", f"R[i][j], {method} (mean over seeds):", ""]
        lines += _matrix([r[method]["matrix"] for r in results])
    return lines


def _matrix(matrices: list[Any]) -> list[str]:
    mean = torch.tensor(matrices, dtype=torch.float64).mean(0)
    count = len(mean)
    head = ["| after | " + " | ".join(f"task {j + 1}" for j in range(count)) + " |"]
    head.append("|---|" + "---|" * count)
    rows = [
        f"| {i + 1} | " + " | ".join(f"{100 * float(v):.1f}" for v in row) + " |"
        for i, row in enumerate(mean)
    ]
    return head + rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write everything here")
    for field in dataclasses.fields(Setting):
        kind = type(field.default)
        choices = ("domain", "class") if field.name == "scenario" else None
        flag = "--" + field.name.replace("_", "-")
        parser.add_argument(flag, type=kind, default=field.default, choices=choices)
    args = vars(parser.parse_args())
    count, path = args.pop("seeds"), args.pop("json")
    setting = Setting(**args)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    started = time.perf_counter()
    seeds = {seed: run(setting, seed) for seed in range(count)}
    seconds = time.perf_counter() - started
    print(report(setting, seeds, seconds))
    if path is not None:
        held = {"setting": dataclasses.asdict(setting), "seconds": seconds, "seeds": seeds}
        path.write_text(json.dumps(held, indent=1) + "\n")


if __name__ == "__main__":
    main()
