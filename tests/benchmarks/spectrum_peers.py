"""clcurv beside its peers: stochastic Lanczos quadrature of a whole network's Hessian.

    python tests/benchmarks/spectrum_peers.py [--networks mlp,resnet18,vit6] [--probes 4]
        [--steps 40] [--seeds 3] [--peers-seeds 1]
        [--methods clcurv,pyhessian,hessian-eigenthings,curvlinops]
        [--cache DIR] [--threads 2] [--markdown README.md] [--json out.json]

Run it on a quiet machine; it needs the extras ``test`` and ``bench``. One process measures all
methods on the same three batches with as many steps and probes, one run after the other in turn;
between the runs one gradient over the data is timed again, and the median of these times is the
unit of cost. ``--markdown`` puts the report between the lines ``<!-- spectrum-peers:begin -->``
and ``<!-- spectrum-peers:end -->`` of a file.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import math
import platform
import re
import shlex
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from networks import HELD_OUT, Network, digits, digits_resnet18, digits_vit6, train, trained
from peer_methods import Problem, counted_forwards
from peer_reference import digest
from peers import CACHE, flops_of, progress, timed
from spectrum_methods import PEERS, Probe, ours
from torch import nn

from clcurv.curvature.numerics import borrowed, exact_numerics
from clcurv.curvature.objective import Objective
from clcurv.curvature.rank import count_interval
from clcurv.diagnostics.task_spectrum import measure_spectrum
from clcurv.inputs.dataset import Samples
from clcurv.runtime import atomic_write

OURS = "clcurv"
CALLS = {OURS: "`measure_spectrum(...)`", **{name: peer.call for name, peer in PEERS.items()}}
BLOCK = re.compile(
    r"(?<=<!-- spectrum-peers:begin -->\n).*?(?=<!-- spectrum-peers:end -->)", re.DOTALL
)
EPS = 1e-2  # of λ_max
DENSE_MOST = 4000
GHOST = 1e-4  # Ritz values so near another one, relative to λ_max, are copies of it
LARGE = 0.5  # of λ_max: copies are looked for above
VERSION = 1  # part of the cached file's name: raise it when the way to the reference changes
Tell = Callable[[str, int, int], None]


def digits_mlp(cache: Path) -> Network:
    """64-32-32-10 on 8 x 8 digits, so small that its dense Hessian says who is right.

    Returns:
        The network (3,466 parameters), images (192, 64) and labels (192,).

    Raises:
        RuntimeError: It did not reach 90 % on the 192 digits.
    """
    images, labels = digits(size=8, channels=1)
    images = images.flatten(1)

    def build() -> nn.Module:
        return nn.Sequential(
            nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10)
        )

    def fit(model: nn.Module) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        train(model, images[HELD_OUT:], labels[HELD_OUT:], optimizer, epochs=10)

    return trained("mlp", cache, build, fit, images, labels, (0.9, 1.0))


NETWORKS: dict[str, tuple[str, Callable[[Path], Network]]] = {
    "mlp": ("MLP 64-32-32-10, exact spectrum known", digits_mlp),
    "resnet18": ("ResNet-18, 32 px", digits_resnet18),
    "vit6": ("half-trained ViT of 6 blocks", digits_vit6),
}


@dataclass(frozen=True)
class Truth:
    """What the quadratures are compared with, in float64.

    Attributes:
        lambda_max: Largest eigenvalue.
        rank: Eigenvalues beyond ±1e-2 λ_max.
        low, high: 95 % interval of it; equal where the dense spectrum is known.
        exact: Whether it is.
    """

    lambda_max: float
    rank: float
    low: float
    high: float
    exact: bool


@dataclass
class Score:
    """What one method took and found, one entry a run."""

    seconds: list[float] = field(default_factory=list)
    flops: list[float] = field(default_factory=list)
    lambda_errors: list[float] = field(default_factory=list)
    ranks: list[float] = field(default_factory=list)
    inside: list[bool] = field(default_factory=list)
    ghosts: list[int] = field(default_factory=list)


@dataclass
class Comparison:
    """All methods on one network."""

    title: str
    problem: Problem
    size: int
    truth: Truth
    gradient_flops: float
    gradient_seconds: list[float] = field(default_factory=list)
    scores: dict[str, Score] = field(default_factory=lambda: defaultdict(Score))

    @property
    def unit(self) -> float:
        return median(self.gradient_seconds)

    def gradients(self, name: str) -> float:
        """Median cost of a method in gradients, by time."""
        return median(self.scores[name].seconds) / self.unit

    @property
    def ratio(self) -> float:
        """clcurv's cost over that of the cheapest peer; NaN without both."""
        peers = [self.gradients(n) for n, s in self.scores.items() if n != OURS and s.seconds]
        return self.gradients(OURS) / min(peers) if peers and OURS in self.scores else math.nan


def reference(problem: Problem, steps: int, probes: int, cache: Path) -> Truth:
    """Exact where the network is small; else twice the steps and four times the probes."""
    size = sum(p.numel() for p in problem.model.parameters())
    exact = size <= DENSE_MOST
    how = "dense" if exact else f"{2 * steps}x{4 * probes}"
    file = cache / f"spectrum-{digest(problem)}-{how}-v{VERSION}.json"
    if file.is_file():
        return Truth(**json.loads(file.read_text()))
    found = measure_spectrum(
        problem.model,
        {"all": list(problem.model.parameters())},
        problem.samples,
        Objective(),
        dtype="float64",
        method="dense" if exact else "lanczos-quadrature",
        steps=2 * steps,
        probes=4 * probes,
        seed=1001,
        eps_relative=EPS,
    )
    rank = found.rank_relative
    assert rank.low is not None
    assert rank.high is not None
    truth = Truth(found.lambda_max, rank.count, rank.low, rank.high, exact)
    cache.mkdir(parents=True, exist_ok=True)
    atomic_write(file, json.dumps(asdict(truth), indent=1, allow_nan=False).encode())
    return truth


def compare(
    title: str,
    problem: Problem,
    methods: Sequence[str],
    *,
    probes: int,
    steps: int,
    seeds: int,
    peer_seeds: int,
    cache: Path,
    tell: Tell,
) -> Comparison:
    """Measures every method on one network; an answer that does not come counts as wrong."""
    parameters = list(problem.model.parameters())
    size = sum(p.numel() for p in parameters)
    tell("reference", 0, 1)
    truth = reference(problem, steps, probes, cache)
    found = Comparison(title, problem, size, truth, flops_of(problem.gradient))
    problem.gradient()
    rounds = [
        (name, seed)
        for seed in range(max(seeds, peer_seeds))
        for name in methods
        if seed < (seeds if name == OURS else peer_seeds)
    ]
    with (
        exact_numerics(problem.model),
        borrowed(problem.model, parameters),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # PyHessian's backward(create_graph=True), every time
        for i, (name, seed) in enumerate(rounds):
            tell(name, i, len(rounds))
            run_one(found, name, probes, steps, seed)
            gc.collect()
            found.gradient_seconds.append(timed(problem.gradient))
        tell("done", len(rounds), len(rounds))
    return found


def run_one(found: Comparison, name: str, probes: int, steps: int, seed: int) -> None:
    """The solver is timed, not its set-up; a product before has warmed it up.

    FLOPs of a peer: those of one product times how many forward passes over the data the solver
    took, because no peer keeps graphs. clcurv's are its own account.
    """
    problem, score = found.problem, found.scores[name]
    answer: list[Probe] = []
    if name == OURS:
        account = math.nan

        def run() -> None:
            nonlocal account
            spectrum = ours(problem, probes, steps, seed)
            account = spectrum.cost_gradients * found.gradient_flops
            answer.extend((np.array(q.nodes), np.array(q.weights)) for q in spectrum.quadrature)

        score.seconds.append(timed(run))
        score.flops.append(account)
    else:
        with counted_forwards(problem.model) as forwards:
            peer = PEERS[name].setup(problem)
            vector = torch.ones(found.size) / found.size**0.5
            each = flops_of(lambda: peer.product(vector))
            forwards[0] = 0

            def run_peer() -> None:
                try:
                    answer.extend(peer.solve(probes, steps, seed))
                except Exception as error:
                    print(f"{name}: {error}", file=sys.stderr)

            score.seconds.append(timed(run_peer))
            score.flops.append(each * forwards[0] / len(problem.batches))
    judge(score, answer, found.truth, found.size)


def judge(score: Score, answer: Sequence[Probe], truth: Truth, size: int) -> None:
    """Compares one answer with the truth: λ_max, ε-rank within chance, ghost eigenvalues."""
    if not answer:
        score.lambda_errors.append(math.inf)
        score.ranks.append(math.nan)
        score.inside.append(False)
        score.ghosts.append(0)
        return
    top = max(float(nodes.max()) for nodes, _ in answer)
    eps = EPS * truth.lambda_max
    shares = [float(w[np.abs(nodes) > eps].sum() / w.sum()) for nodes, w in answer]
    low, high = count_interval(shares, size)
    score.lambda_errors.append(abs(top - truth.lambda_max) / truth.lambda_max)
    score.ranks.append(size * float(np.mean(shares)))
    score.inside.append(low <= truth.high and truth.low <= high)
    score.ghosts.append(sum(ghosts(nodes, truth.lambda_max) for nodes, _ in answer))


def ghosts(nodes: Any, largest: float) -> int:
    """How many Ritz values above half of λ_max are copies of the one before."""
    ordered = np.sort(nodes)
    ordered = ordered[ordered > LARGE * largest]
    return int((np.diff(ordered) < GHOST * largest).sum())


def report(found: Sequence[Comparison], chosen: argparse.Namespace) -> str:
    """The Markdown between the two marks."""
    used = [p for name, p in PEERS.items() if name in chosen.methods]
    names = ["clcurv", "torch", "timm", "scipy", *(p.distribution for p in used)]
    versions = ", ".join(f"{n} {version(n)}" for n in dict.fromkeys(names))
    parts = [
        f"`{command_line(chosen)}` with {versions}; {platform.machine()} CPU, "
        f"threads: {chosen.threads}."
    ]
    for one in found:
        truth = one.truth
        how = "dense" if truth.exact else f"reference {truth.low:.0f} to {truth.high:.0f}"
        lines = [
            f"**{one.title}**: {one.size:,} parameters, {len(one.problem.samples)} samples; "
            f"{chosen.probes} probes of {chosen.steps} steps; a gradient takes "
            f"{1000 * one.unit:.1f} ms. Eigenvalues beyond ±{EPS:g} λ_max: "
            f"{truth.rank:.0f} ({how}).",
            "",
            "| method | call | gradients by time | by FLOPs | a product | λ_max off by | ε-rank "
            "| within chance | ghosts |",
            "|---|---|--:|--:|--:|--:|--:|--:|--:|",
        ]
        for name in chosen.methods:
            s = one.scores[name]
            cost = one.gradients(name)
            lines.append(
                f"| {name} | {CALLS[name]} | {cost:.0f} "
                f"| {shown(median(s.flops) / one.gradient_flops)} "
                f"| {cost / (chosen.probes * chosen.steps):.2f} "
                f"| {max(s.lambda_errors):.1e} | {shown(median(s.ranks))} "
                f"| {sum(s.inside)} of {len(s.inside)} | {max(s.ghosts)} |"
            )
        if math.isfinite(one.ratio):
            lines += ["", f"clcurv takes {one.ratio:.2f} of the cheapest peer's gradients."]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def shown(value: float) -> str:
    return f"{value:.0f}" if math.isfinite(value) else "–"


def document(found: Sequence[Comparison], chosen: argparse.Namespace) -> dict[str, Any]:
    """Every number behind the report; what is not finite becomes null."""
    return {
        "command": command_line(chosen),
        "networks": {
            one.title: {
                "parameters": one.size,
                "reference": asdict(one.truth),
                "gradient_seconds": one.gradient_seconds,
                "gradient_flops": one.gradient_flops,
                "ratio": finite(one.ratio),
                "methods": {
                    name: {
                        "cost_gradients": [s / one.unit for s in score.seconds],
                        "cost_flops": [finite(f / one.gradient_flops) for f in score.flops],
                        "lambda_errors": [finite(e) for e in score.lambda_errors],
                        "ranks": [finite(r) for r in score.ranks],
                        "within_chance": score.inside,
                        "ghosts": score.ghosts,
                    }
                    for name, score in one.scores.items()
                },
            }
            for one in found
        },
    }


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def options(argv: Sequence[str] | None) -> argparse.Namespace:
    here = [name for name, peer in PEERS.items() if importlib.util.find_spec(peer.module)]

    def names(known: Sequence[str]) -> Callable[[str], list[str]]:
        def parse(text: str) -> list[str]:
            wrong = [name for name in text.split(",") if name not in known]
            if wrong:
                raise argparse.ArgumentTypeError(f"{wrong[0]!r} is not in {list(known)}")
            return text.split(",")

        return parse

    def count(text: str) -> int:
        if int(text) < 1:
            raise argparse.ArgumentTypeError("at least 1")
        return int(text)

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--networks", type=names(list(NETWORKS)), default=list(NETWORKS))
    parser.add_argument("--methods", type=names([OURS, *here]), default=[OURS, *here])
    parser.add_argument("--probes", type=count, default=4, help="default %(default)s")
    parser.add_argument("--steps", type=count, default=40, help="default %(default)s")
    parser.add_argument("--seeds", type=count, default=3, help="clcurv's; default %(default)s")
    parser.add_argument("--peers-seeds", type=count, default=1, help="default %(default)s")
    parser.add_argument("--threads", type=count, default=2, help="default %(default)s")
    parser.add_argument("--cache", type=Path, default=CACHE, help="trained weights, references")
    parser.add_argument("--markdown", type=Path, help="file with the two marks")
    parser.add_argument("--json", type=Path, help="every number")
    chosen = parser.parse_args(argv)
    if chosen.markdown and not BLOCK.search(chosen.markdown.read_text()):
        marks = "<!-- spectrum-peers:begin --> ... <!-- spectrum-peers:end -->"
        parser.error(f"{chosen.markdown} has no {marks}")
    if chosen.json and not chosen.json.resolve().parent.is_dir():
        parser.error(f"{chosen.json}: its folder does not exist")
    return chosen


def command_line(chosen: argparse.Namespace) -> str:
    """What decides the numbers; folders and files of this machine do not."""
    told = {
        "--networks": ",".join(chosen.networks),
        "--methods": ",".join(chosen.methods),
        "--probes": str(chosen.probes),
        "--steps": str(chosen.steps),
        "--seeds": str(chosen.seeds),
        "--peers-seeds": str(chosen.peers_seeds),
        "--threads": str(chosen.threads),
    }
    words = [word for pair in told.items() for word in pair]
    return shlex.join(["python", "tests/benchmarks/spectrum_peers.py", *words])


def main(argv: Sequence[str] | None = None) -> int:
    chosen = options(argv)
    torch.set_num_threads(chosen.threads)
    found = []
    with progress() as bar:
        for name in chosen.networks:
            title, load = NETWORKS[name]
            model, images, labels = load(chosen.cache)
            found.append(
                compare(
                    title,
                    Problem(model, Samples(images, labels)),
                    chosen.methods,
                    probes=chosen.probes,
                    steps=chosen.steps,
                    seeds=chosen.seeds,
                    peer_seeds=chosen.peers_seeds,
                    cache=chosen.cache,
                    tell=bar(title),
                )
            )
    text = report(found, chosen)
    print(text, end="")
    if chosen.json:
        numbers = document(found, chosen)
        atomic_write(chosen.json, json.dumps(numbers, indent=1, allow_nan=False).encode())
    if chosen.markdown:
        block = BLOCK.sub(lambda _: f"\n{text}\n", chosen.markdown.read_text(), count=1)
        atomic_write(chosen.markdown, block.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
