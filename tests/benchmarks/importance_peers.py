"""Per-sample importances: clcurv beside a one-by-one loop and BackPACK, time and peak memory.

    python tests/benchmarks/importance_peers.py [--networks mlp,cnn,resnet18,vit6] [--rounds 3]
        [--methods clcurv,loop,...] [--cache DIR] [--threads 2] [--markdown README.md] [--json F]

Run it on a quiet machine; it needs the extras ``test`` and ``bench``. Every measurement is a
process of its own, which loads the network and the same 192 digits, warms up on two samples, and is
then timed; its peak memory is what the resident set grew to beyond that moment (Linux). The methods
take turns, round after round; told are medians. ``--markdown`` puts the report between the lines
``<!-- importance-peers:begin -->`` and ``<!-- importance-peers:end -->`` of a file.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import importlib.util
import json
import platform
import re
import shlex
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from statistics import median
from typing import Any

import torch
from importance_methods import METHODS, Found
from networks import (
    HELD_OUT,
    Network,
    digits,
    digits_resnet18,
    digits_vit6,
    train,
    trained,
)
from rich import box
from rich.console import Console
from rich.table import Table
from torch import nn

from clcurv.inputs.dataset import Samples
from clcurv.runtime import atomic_write

CACHE = Path(__file__).resolve().parents[2] / "build" / "benchmarks"
BLOCK = re.compile(
    r"(?<=<!-- importance-peers:begin -->\n).*?(?=<!-- importance-peers:end -->)", re.DOTALL
)
LIMIT = 1800  # seconds a measurement may take


def digits_mlp(cache: Path) -> Network:
    """64-100-100-10, 17,610 parameters."""
    images, labels = digits(size=8, channels=1)
    layers = (nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10))
    return _small(
        "importance-mlp", cache, images.flatten(1), labels, lambda: nn.Sequential(*layers)
    )


def digits_cnn(cache: Path) -> Network:
    """Three 3 x 3 convolutions of 16, 32 and 64 channels and a linear layer, 33,498 parameters."""
    images, labels = digits(size=16, channels=1)

    def build() -> nn.Module:
        return nn.Sequential(
            *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 10)),
        )

    return _small("importance-cnn", cache, images, labels, build)


def _small(
    name: str,
    cache: Path,
    images: torch.Tensor,
    labels: torch.Tensor,
    build: Callable[[], nn.Module],
) -> Network:
    def fit(model: nn.Module) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        train(model, images[HELD_OUT:], labels[HELD_OUT:], optimizer, epochs=5)

    return trained(name, cache, build, fit, images, labels, (0.85, 1.0))


NETWORKS: dict[str, tuple[str, Callable[[Path], Network]]] = {
    "mlp": ("MLP 64-100-100-10", digits_mlp),
    "cnn": ("three convolutions, 16 px", digits_cnn),
    "resnet18": ("ResNet-18, 32 px", digits_resnet18),
    "vit6": ("half-trained ViT of 6 blocks", digits_vit6),
}


@dataclass
class Score:
    """What one method took and found on one network, one entry a round.

    Attributes:
        seconds: Wall time over all samples.
        megabytes: Peak beyond the loaded process; None where it cannot be told.
        error: Largest difference from the loop in float64, relative to a tensor's largest value.
        failure: Why it could not be run.
    """

    seconds: list[float] = field(default_factory=list)
    megabytes: list[float | None] = field(default_factory=list)
    error: float | None = None
    failure: str | None = None


def child(network: str, method: str, cache: Path, threads: int) -> dict[str, Any]:
    """One measurement, in this process."""
    torch.set_num_threads(threads)
    model, samples = load(network, cache)
    run = METHODS[method].run
    first = Samples(samples.inputs[:2], samples.targets[:2])
    try:
        run(model, first)
        before = peak_reset()
        start = time.perf_counter()
        found = run(model, samples)
        seconds = time.perf_counter() - start
    except (NotImplementedError, RuntimeError, AttributeError, ValueError) as error:
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return {"failure": f"{type(error).__name__}: {first_line[:120]}"}
    after = resident("VmHWM")
    grown = None if before is None or after is None else (after - before) / 1e6
    return {
        "seconds": seconds,
        "megabytes": grown,
        "error": difference(found, network, method, cache),
    }


def load(network: str, cache: Path) -> tuple[nn.Module, Samples]:
    """The network in eval mode and its samples; no activation in place, which BackPACK refuses."""
    model, images, labels = NETWORKS[network][1](cache)
    for module in model.modules():
        if hasattr(module, "inplace"):
            module.inplace = False
    return model.eval(), Samples(images, labels)


def difference(found: Found, network: str, method: str, cache: Path) -> float:
    """From the definition in float64."""
    return reference_error(found, reference(network, METHODS[method].estimator, cache))


def reference(network: str, estimator: str, cache: Path) -> Found:
    """The loop in float64, kept in the cache."""
    from importance_methods import one_by_one

    file = cache / f"importance-{network}-{estimator}.pt"
    if file.is_file():
        return dict(torch.load(file, weights_only=True))
    model, samples = load(network, cache)
    found = one_by_one(estimator)(model.double(), Samples(samples.inputs.double(), samples.targets))
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save(found, file)
    return found


def reference_error(found: Found, expected: Found) -> float:
    return max(
        float((found[n].double() - e).abs().max() / e.max().clamp(min=1e-300))
        for n, e in expected.items()
        if float(e.max()) > 0
    )


def peak_reset() -> int | None:
    """Starts the peak of this process anew; its resident bytes now, None where it cannot."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        # What the warm-up has freed goes back first, or it would be used again unseen.
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        return resident("VmRSS")
    return None


def resident(key: str) -> int | None:
    with contextlib.suppress(OSError, IndexError, ValueError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(key):
                return int(line.split()[1]) * 1024
    return None


def measure(chosen: argparse.Namespace) -> dict[str, dict[str, Score]]:
    """All rounds: network -> method -> score."""
    scores = {n: {m: Score() for m in chosen.methods} for n in chosen.networks}
    for network in chosen.networks:
        for estimator in {METHODS[m].estimator for m in chosen.methods}:
            torch.set_num_threads(chosen.threads)
            reference(network, estimator, chosen.cache)
    for turn in range(chosen.rounds):
        for network in chosen.networks:
            for method in chosen.methods:
                score = scores[network][method]
                if score.failure:
                    continue
                print(f"round {turn + 1}: {network}, {method}", file=sys.stderr)
                told = measured(network, method, chosen)
                score.failure = told.get("failure")
                if score.failure is None:
                    score.seconds.append(told["seconds"])
                    score.megabytes.append(told["megabytes"])
                    score.error = max(score.error or 0.0, told["error"])
    return scores


def measured(network: str, method: str, chosen: argparse.Namespace) -> dict[str, Any]:
    """One measurement in a process; one that dies is a fault of the run, so nothing is told."""
    command = [sys.executable, __file__, "--child", network, method]
    command += ["--cache", str(chosen.cache), "--threads", str(chosen.threads)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise SystemExit(f"{network}, {method}: exit code {done.returncode}: {last}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def report(scores: dict[str, dict[str, Score]], chosen: argparse.Namespace) -> str:
    """The Markdown between the two marks."""
    parts = [f"`{command_line(chosen)}` with {versions(chosen.methods)}; {platform.machine()} CPU."]
    for network, found in scores.items():
        loops = {METHODS[m].estimator: s for m, s in found.items() if m.startswith("loop")}
        rows = Table(
            "Method",
            "Call",
            "Importance",
            "Seconds",
            "Against the loop",
            "Peak MB",
            "Error",
            box=box.MARKDOWN,
        )
        for method, score in found.items():
            how = METHODS[method]
            loop = loops.get(how.estimator)
            cells = ["–"] * 4
            if score.failure is None and score.seconds:
                took = median(score.seconds)
                peaks = [m for m in score.megabytes if m is not None]
                cells = [
                    f"{took:.3g}",
                    f"{median(loop.seconds) / took:.1f} x" if loop and loop.seconds else "–",
                    f"{median(peaks):.0f}" if peaks else "–",
                    f"{score.error:.0e}",
                ]
            rows.add_row(method, how.call, how.estimator, *cells)
        text = StringIO()
        Console(file=text, width=240, color_system=None).print(rows)
        lines = [line.strip() for line in text.getvalue().strip().splitlines()]
        parts.append(f"**{NETWORKS[network][0]}**, {HELD_OUT} samples:")
        parts.append("\n".join(lines))
        parts += [f"{m} cannot take it: {s.failure}." for m, s in found.items() if s.failure]
    parts.append(
        f"Median of {chosen.rounds} rounds, a process each, threads: {chosen.threads}. Peak: of "
        "the resident set beyond the loaded process. Error: largest difference from the loop in "
        "float64, relative to the largest value of the tensor."
    )
    return "\n\n".join(parts) + "\n"


def versions(methods: Sequence[str]) -> str:
    names = ["clcurv", "torch", *(METHODS[m].distribution for m in methods)]
    return ", ".join(f"{name} {version(name)}" for name in dict.fromkeys(names))


def options(argv: Sequence[str] | None) -> argparse.Namespace:
    here = [name for name, how in METHODS.items() if importlib.util.find_spec(how.module)]

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
    parser.add_argument("--methods", type=names(here), default=here)
    parser.add_argument("--rounds", type=count, default=3, help="default %(default)s")
    parser.add_argument("--threads", type=count, default=2, help="default %(default)s")
    parser.add_argument("--cache", type=Path, default=CACHE, help="trained weights, references")
    parser.add_argument("--markdown", type=Path, help="file with the two marks")
    parser.add_argument("--json", type=Path, help="every number")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args(argv)
    if chosen.markdown and not BLOCK.search(chosen.markdown.read_text()):
        marks = "<!-- importance-peers:begin --> ... <!-- importance-peers:end -->"
        parser.error(f"{chosen.markdown} has no {marks}")
    if chosen.json and not chosen.json.resolve().parent.is_dir():
        parser.error(f"{chosen.json}: its folder does not exist")
    return chosen


def command_line(chosen: argparse.Namespace) -> str:
    """What decides the numbers; folders and files of this machine do not."""
    words = ["python", "tests/benchmarks/importance_peers.py"]
    words += ["--networks", ",".join(chosen.networks), "--methods", ",".join(chosen.methods)]
    words += ["--rounds", str(chosen.rounds), "--threads", str(chosen.threads)]
    return shlex.join(words)


def main(argv: Sequence[str] | None = None) -> int:
    chosen = options(argv)
    if chosen.child:
        network, method = chosen.child
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            print(json.dumps(child(network, method, chosen.cache, chosen.threads)))
        return 0
    scores = measure(chosen)
    text = report(scores, chosen)
    print(text, end="")
    if chosen.json:
        numbers = {
            "command": command_line(chosen),
            "versions": versions(chosen.methods),
            "networks": {
                n: {m: asdict(s) for m, s in found.items()} for n, found in scores.items()
            },
        }
        atomic_write(chosen.json, json.dumps(numbers, indent=1, allow_nan=False).encode())
    if chosen.markdown:
        block = BLOCK.sub(lambda _: f"\n{text}\n", chosen.markdown.read_text(), count=1)
        atomic_write(chosen.markdown, block.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
