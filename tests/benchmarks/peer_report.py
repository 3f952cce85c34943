"""What the comparison of clcurv with its peers keeps, and how it is told."""

from __future__ import annotations

import importlib.util
import math
import platform
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from io import StringIO
from statistics import median, quantiles
from typing import Any

from peer_methods import PEERS, Problem
from peer_reference import Truth
from rich import box
from rich.console import Console
from rich.table import Table

OURS = "clcurv"
CALLS = {OURS: "`measure_kappa(...)`", **{name: peer.call for name, peer in PEERS.items()}}
OFF = 1e-2


@dataclass
class Score:
    """What one method took and found.

    Attributes:
        seconds: Seed -> wall time over all layers.
        flops: Seed -> floating-point operations, NaN where not countable (clcurv: of seed 0).
        errors: Weight name -> relative error by seed.
    """

    seconds: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    flops: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    errors: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    @property
    def worst(self) -> tuple[float, str]:
        return max((max(errors), name) for name, errors in self.errors.items())

    @property
    def layers_off(self) -> int:
        return sum(max(errors) > OFF for errors in self.errors.values())


@dataclass
class Comparison:
    """All methods on one network; gradients in seconds and in floating-point operations."""

    title: str
    problem: Problem
    truths: dict[str, Truth]
    gradient_flops: float
    gradient_seconds: list[float] = field(default_factory=list)
    scores: dict[str, Score] = field(default_factory=dict)
    own_account: list[float] = field(default_factory=list)

    @property
    def unit(self) -> float:
        return median(self.gradient_seconds)

    @property
    def quartiles(self) -> tuple[float, float]:
        """Of the gradient's seconds: far apart on a machine that was not quiet."""
        seconds = self.gradient_seconds
        if len(seconds) == 1:  # one seed of one method
            return seconds[0], seconds[0]
        low, _, high = quantiles(seconds, n=4, method="inclusive")
        return low, high


def report(found: Sequence[Comparison], command: str, threads: int) -> str:
    """The Markdown between the two marks."""
    parts = [f"`{command}` with {versions()}; {platform.machine()} CPU, threads: {threads}."]
    for one in found:
        low, high = one.quartiles
        parts.append(
            f"**{one.title}**: {len(one.problem.weights)} weight tensors, "
            f"{len(one.problem.batches)} batches of {one.problem.batch_size}; one gradient "
            f"{one.unit:.3g} s (quartiles {low:.3g} to {high:.3g} s, {len(one.gradient_seconds)} "
            "times)."
        )
        parts.append(table(one))
    dominant = [(one.title, sum(t.dominant != t.s for t in one.truths.values())) for one in found]
    counts = ", ".join(f"{n} of {title}" for title, n in dominant)
    parts.append(
        "Cost: wall time of all layers together over the median time of one gradient; by FLOPs: "
        "the same ratio of floating-point operations. With several seeds: the median (worst). "
        "Errors are relative to the eigenvalue at tolerance 1e-6, over all layers and seeds. "
        "PyHessian looks for the eigenvalue of largest absolute value and is compared with that "
        f"one (it is λ_min on these layers: {counts}); the others look for the largest."
    )
    return "\n\n".join(parts) + "\n"


def table(one: Comparison) -> str:
    names = ("Method", "Call", "Gradients", "by FLOPs", "Worst error", "Layers off > 1 %", "Seeds")
    rows = Table(*names, box=box.MARKDOWN)
    for name, score in one.scores.items():
        worst, _ = score.worst
        rows.add_row(
            name.removesuffix("-20"),
            CALLS[name],
            spread([s / one.unit for s in score.seconds.values()]),
            spread([f / one.gradient_flops for f in score.flops.values()]),
            f"{worst:.1e}",
            f"{score.layers_off} of {len(score.errors)}",
            str(len(score.seconds)),
        )
    text = StringIO()
    Console(file=text, width=240, color_system=None).print(rows)
    return "\n".join(line.strip() for line in text.getvalue().strip().splitlines())


def spread(values: Sequence[float]) -> str:
    """Median and worst, or the only one."""
    if not values or not all(map(math.isfinite, values)):
        return "–"
    middle = f"{median(values):.0f}"
    return middle if len(values) == 1 else f"{middle} ({max(values):.0f})"


def document(found: Sequence[Comparison], command: str, threads: int) -> dict[str, Any]:
    """Every number behind the report; what is not finite becomes null."""

    def plain(score: Score, one: Comparison) -> dict[str, Any]:
        worst, where = score.worst
        return {
            "cost_gradients": [s / one.unit for s in score.seconds.values()],
            "cost_flops": [finite(f / one.gradient_flops) for f in score.flops.values()],
            "worst_error": finite(worst),
            "worst_layer": where,
            "layers_off": score.layers_off,
            "errors": {n: [finite(e) for e in errors] for n, errors in score.errors.items()},
        }

    return {
        "command": command,
        "versions": versions(),
        "threads": threads,
        "networks": {
            one.title: {
                "gradient_seconds": one.gradient_seconds,
                "clcurv_own_account": one.own_account,
                "reference": {name: vars(truth) for name, truth in one.truths.items()},
                "methods": {name: plain(score, one) for name, score in one.scores.items()},
            }
            for one in found
        },
    }


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def versions() -> str:
    installed = [p for p in PEERS.values() if importlib.util.find_spec(p.module)]
    names = ["clcurv", "torch", "timm", "scipy", *(p.distribution for p in installed)]
    return ", ".join(f"{name} {version(name)}" for name in dict.fromkeys(names))
