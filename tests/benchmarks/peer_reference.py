"""What the methods' answers are compared with: both ends of every block's spectrum, tightly.

From two pairs of random starts on all the data, without the scout that the measured runs start
from. Where these disagree, ARPACK on another library's products is asked as well. Every value
is a Ritz value and so, up to rounding, lies inside the spectrum: the outermost one is the nearest.
The smallest eigenvalue is pursued only where it may outweigh the largest: for the peer that finds
the one of largest absolute value.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from peer_methods import Problem, curvlinops_block, only
from torch import Tensor

from clcurv.curvature.hessian import HessianGraph
from clcurv.curvature.lanczos import Extremes, lockstep_extremes, random_start
from clcurv.curvature.numerics import borrowed, exact_numerics
from clcurv.curvature.objective import Objective
from clcurv.curvature.operators import BlockOperator
from clcurv.runtime import atomic_write

STARTS = (1001, 1002)
TOL = 1e-6
BOTTOM_TOL = 1e-4
OUTWEIGHS = 0.3  # a bottom Ritz value of this part of the top one is worth a closer look
MAX_STEPS = 200
AGREED = 1e-4
ARPACK_TOL = 1e-4  # of the residual: the eigenvalue's error is its square over the gap
ARPACK_RESTARTS = 20
VERSION = 2  # part of the cached file's name: raise it when the way to the reference changes


@dataclass(frozen=True)
class Truth:
    """The reference for one block.

    Attributes:
        s: Largest eigenvalue.
        lambda_min: Smallest Ritz value; to 1e-4 where it is near the largest in absolute value.
        spread: (largest - smallest answer)/largest over the starts, for s.
        arpack: ARPACK's answer where it was asked.
    """

    s: float
    lambda_min: float
    spread: float
    arpack: float | None = None

    @property
    def dominant(self) -> float:
        """The eigenvalue of largest absolute value, which power iteration finds."""
        return self.s if self.s >= -self.lambda_min else self.lambda_min

    def error(self, value: float, *, dominant: bool = False) -> float:
        """Relative error of an answer; infinite when there is none."""
        right = self.dominant if dominant else self.s
        off = abs(value - right) / abs(right)
        return off if math.isfinite(off) else math.inf


def reference(
    problem: Problem, cache: Path, tell: Callable[[str, int, int], None]
) -> dict[str, Truth]:
    """Weight name -> its reference, from the cache or computed and put there.

    Args:
        problem: The network and its data.
        cache: Folder for the numbers; the file is named by the weights and the data.
        tell: Called with (stage, layers done, layers).
    """
    file = cache / f"reference-{digest(problem)}-v{VERSION}.json"
    if file.is_file():
        return {name: Truth(**entry) for name, entry in json.loads(file.read_text()).items()}
    found: dict[str, Truth] = {}
    model, weights = problem.model, problem.weights
    batches = problem.samples.split(problem.batch_size)
    with exact_numerics(model), borrowed(model, list(weights.values())):
        operator = BlockOperator(
            HessianGraph,
            model,
            {name: [p] for name, p in weights.items()},
            batches,
            Objective(),
            keep_graphs=len(batches),
        )
        for i, name in enumerate(weights):  # one at a time: the bases are the memory
            tell("reference", i, len(weights))
            found[name] = _agree(problem, name, [_extremes(operator, name, s) for s in STARTS])
    cache.mkdir(parents=True, exist_ok=True)
    kept = {name: asdict(truth) for name, truth in found.items()}
    atomic_write(file, json.dumps(kept, indent=1, allow_nan=False).encode())
    return found


def digest(problem: Problem) -> str:
    """Of everything that the reference depends on: weights, buffers, data, batches."""
    state = hashlib.sha256(str(problem.batch_size).encode())
    inputs = problem.samples.inputs
    assert isinstance(inputs, Tensor)
    tensors = {**problem.model.state_dict(), "inputs": inputs, "targets": problem.samples.targets}
    for name, tensor in tensors.items():
        state.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        state.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return state.hexdigest()[:16]


def _extremes(operator: BlockOperator, name: str, seed: int) -> Extremes:
    start = random_start(operator.like(name), 2, torch.Generator().manual_seed(seed))

    def search(bottom: bool) -> Extremes:
        return lockstep_extremes(
            operator.products,
            {name: start},
            tol=TOL,
            max_steps=MAX_STEPS,
            pursue=2,
            residual_tol=TOL**0.5,
            bottom=bottom,
            bottom_tol=BOTTOM_TOL,
        )[name]

    found = search(bottom=False)
    return search(bottom=True) if -found.bottom.value > OUTWEIGHS * found.top.value else found


def _agree(problem: Problem, name: str, runs: list[Extremes]) -> Truth:
    tops = [run.top.value for run in runs]
    spread = (max(tops) - min(tops)) / abs(max(tops))
    arpack = None
    # Without curvlinops this stops the run: a doubtful reference is none.
    if spread > AGREED or not all(run.top_converged for run in runs):
        with only(problem.model, problem.weights[name]):
            block = curvlinops_block(problem, name, tol=ARPACK_TOL, restarts=ARPACK_RESTARTS)
            answer = block.solve(STARTS[0])
        arpack = answer if math.isfinite(answer) else None
    s = max([*tops, *([] if arpack is None else [arpack])])
    return Truth(s, min(run.bottom.value for run in runs), spread, arpack)
