"""clcurv beside its peers: the largest eigenvalue of every weight tensor's Hessian block.

    python tests/benchmarks/peers.py [--networks resnet18,vit6] [--seeds 10] [--peers-seeds 1]
        [--methods clcurv,pyhessian,hessian-eigenthings,hessian-eigenthings-20,curvlinops]
        [--cache DIR] [--threads 2] [--markdown README.md] [--json out.json]

Run it on a quiet machine; it needs the extras ``test`` and ``bench``. One process measures all
methods on the same three batches, interleaved layer by layer; between the runs one gradient over
the data is timed again, and the median of these times is the unit of cost. ``--markdown`` puts
the report between the lines ``<!-- peers:begin -->`` and ``<!-- peers:end -->`` of a file.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import math
import re
import shlex
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from networks import Network, digits_resnet18, digits_vit6
from peer_methods import PEERS, Problem, counted_forwards, only
from peer_reference import reference
from peer_report import OURS, Comparison, Score, document, report
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch.utils.flop_counter import FlopCounterMode

from clcurv.curvature.numerics import exact_numerics
from clcurv.curvature.objective import Objective
from clcurv.diagnostics.sensitivity import measure_kappa
from clcurv.inputs.dataset import Samples
from clcurv.inputs.layers import Layer
from clcurv.runtime import atomic_write

NETWORKS: dict[str, tuple[str, Callable[[Path], Network]]] = {
    "resnet18": ("ResNet-18, 32 px", digits_resnet18),
    "vit6": ("half-trained ViT of 6 blocks", digits_vit6),
}
UNQUIET = 0.2
BLOCK = re.compile(r"(?<=<!-- peers:begin -->\n).*?(?=<!-- peers:end -->)", re.DOTALL)
CACHE = Path(__file__).resolve().parents[2] / "build" / "benchmarks"
Tell = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Task:
    """One timed run: clcurv on all layers, or a peer on one of them."""

    method: str
    seed: int
    layer: str | None = None


def plan(layers: Sequence[str], methods: Sequence[str], seeds: int, peer_seeds: int) -> list[Task]:
    """Peers layer by layer, clcurv's runs spread evenly among them."""
    peers = [m for m in methods if m != OURS]
    rounds = [(seed, layer) for seed in range(peer_seeds) for layer in layers]
    placed = [
        (i / len(rounds), Task(peer, seed, layer))
        for i, (seed, layer) in enumerate(rounds)
        for peer in peers
    ]
    if OURS in methods:
        placed += [((i + 0.5) / seeds, Task(OURS, i)) for i in range(seeds)]
    return [task for _, task in sorted(placed, key=lambda entry: entry[0])]


def compare(
    title: str,
    problem: Problem,
    methods: Sequence[str],
    *,
    seeds: int,
    peer_seeds: int,
    cache: Path,
    tell: Tell,
) -> Comparison:
    """Measures every method on one network; an answer that does not come counts as wrong."""
    with exact_numerics(problem.model), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyHessian's backward(create_graph=True), every time
        truths = reference(problem, cache, tell)
        found = Comparison(title, problem, truths, flops_of(problem.gradient))
        product_flops: dict[Task, float] = {}
        tasks = plan(list(problem.weights), methods, seeds, peer_seeds)
        found.scores.update({name: Score() for name in methods})
        if OURS in methods:
            found.scores[OURS].flops[0] = flops_of(lambda: run_ours(problem, 0))
        problem.gradient()
        for i, task in enumerate(tasks):
            tell(task.method, i, len(tasks))
            if task.layer is None:
                time_ours(found, task)
            else:
                time_peer(found, task, task.layer, product_flops)
            gc.collect()
            found.gradient_seconds.append(timed(problem.gradient))
        tell("done", len(tasks), len(tasks))
    return found


def time_ours(found: Comparison, task: Task) -> None:
    values: dict[str, float] = {}

    def run() -> None:
        s, account = run_ours(found.problem, task.seed)
        values.update(s)
        found.own_account.append(account)

    score = found.scores[OURS]
    score.seconds[task.seed] += timed(run)
    for name, truth in found.truths.items():
        score.errors[name].append(truth.error(values[name]))


def time_peer(found: Comparison, task: Task, layer: str, product_flops: dict[Task, float]) -> None:
    """The solver is timed, not its set-up; a product counted before has warmed it up.

    FLOPs: those of one product times how many forward passes over the data the solver took,
    because no peer keeps graphs and a product's FLOPs do not depend on its vector.
    """
    problem, peer, score = found.problem, PEERS[task.method], found.scores[task.method]
    weight, key = problem.weights[layer], Task(task.method, 0, layer)
    value = math.nan
    with only(problem.model, weight), counted_forwards(problem.model) as forwards:
        block = peer.setup(problem, layer)
        if key not in product_flops:
            vector = torch.ones_like(weight) / weight.numel() ** 0.5
            product_flops[key] = flops_of(lambda: block.product(vector))
        forwards[0] = 0

        def run() -> None:
            nonlocal value
            try:
                value = block.solve(task.seed)
            except Exception as error:
                print(f"{task.method} on {layer}: {error}", file=sys.stderr)

        score.seconds[task.seed] += timed(run)
    each = product_flops[key]
    score.flops[task.seed] += each * forwards[0] / len(problem.batches)
    score.errors[layer].append(found.truths[layer].error(value, dominant=peer.dominant))


def run_ours(problem: Problem, seed: int) -> tuple[dict[str, float], float]:
    """Weight name -> s, and what the run cost by clcurv's own account, in gradients."""
    result = measure_kappa(
        problem.model,
        [Layer(name, (name,), depth) for depth, name in enumerate(problem.weights)],
        problem.samples,
        Objective(),
        batch_size=problem.batch_size,
        lambda_min=False,
        seed=seed,
    )
    s = {layer.name: math.nan if layer.s is None else layer.s for layer in result.layers}
    return s, result.cost_gradients


def timed(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def flops_of(run: Callable[[], object]) -> float:
    """Of matrix products, convolutions and attention; NaN where they cannot be counted."""
    try:
        with FlopCounterMode(display=False) as counter:
            run()
    except (RuntimeError, NotImplementedError) as error:
        print(f"not counted: {error}", file=sys.stderr)
        return math.nan
    return float(counter.get_total_flops())


@contextmanager
def progress() -> Iterator[Callable[[str], Tell]]:
    """A bar a network on stderr; still when that is no terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as bars:

        def bar(title: str) -> Tell:
            task = bars.add_task(title)

            def tell(stage: str, done: int, total: int) -> None:
                bars.update(task, description=f"{title}: {stage}", completed=done, total=total)

            return tell

        yield bar


def options(argv: Sequence[str] | None) -> argparse.Namespace:
    here = {name for name, peer in PEERS.items() if importlib.util.find_spec(peer.module)}
    missing = [name for name in PEERS if name not in here]

    def names(known: Sequence[str]) -> Callable[[str], list[str]]:
        def parse(text: str) -> list[str]:
            chosen = text.split(",")
            wrong = [name for name in chosen if name not in known]
            if wrong:
                hint = "; pip install '.[bench]'" if wrong[0] in missing else ""
                raise argparse.ArgumentTypeError(f"{wrong[0]!r} is not in {list(known)}{hint}")
            return chosen

        return parse

    def count(text: str) -> int:
        if int(text) < 1:
            raise argparse.ArgumentTypeError("at least 1")
        return int(text)

    methods = [OURS, *(name for name in PEERS if name in here)]
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--networks", type=names(list(NETWORKS)), default=list(NETWORKS))
    parser.add_argument("--methods", type=names(methods), default=methods)
    parser.add_argument("--seeds", type=count, default=10, help="clcurv's; default %(default)s")
    parser.add_argument("--peers-seeds", type=count, default=1, help="default %(default)s")
    parser.add_argument("--threads", type=count, default=2, help="default %(default)s")
    parser.add_argument("--cache", type=Path, default=CACHE, help="trained weights, references")
    parser.add_argument("--markdown", type=Path, help="file with the two marks")
    parser.add_argument("--json", type=Path, help="every number")
    chosen = parser.parse_args(argv)
    if chosen.markdown and not BLOCK.search(chosen.markdown.read_text()):
        parser.error(f"{chosen.markdown} has no <!-- peers:begin --> ... <!-- peers:end -->")
    if chosen.json and not chosen.json.resolve().parent.is_dir():
        parser.error(f"{chosen.json}: its folder does not exist")
    return chosen


def command_line(chosen: argparse.Namespace) -> str:
    """What decides the numbers; folders and files of this machine do not."""
    told = {
        "--networks": ",".join(chosen.networks),
        "--methods": ",".join(chosen.methods),
        "--seeds": str(chosen.seeds),
        "--peers-seeds": str(chosen.peers_seeds),
        "--threads": str(chosen.threads),
    }
    words = [word for pair in told.items() for word in pair]
    return shlex.join(["python", "tests/benchmarks/peers.py", *words])


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
                    seeds=chosen.seeds,
                    peer_seeds=chosen.peers_seeds,
                    cache=chosen.cache,
                    tell=bar(title),
                )
            )
    for one in found:
        low, high = one.quartiles
        if high - low > UNQUIET * one.unit:
            print(f"{one.title}: the machine was not quiet, see the quartiles", file=sys.stderr)
    command = command_line(chosen)
    text = report(found, command, chosen.threads)
    print(text, end="")
    if chosen.json:
        numbers = document(found, command, chosen.threads)
        atomic_write(chosen.json, json.dumps(numbers, indent=1, allow_nan=False).encode())
    if chosen.markdown:
        block = BLOCK.sub(lambda _: f"\n{text}\n", chosen.markdown.read_text(), count=1)
        atomic_write(chosen.markdown, block.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
