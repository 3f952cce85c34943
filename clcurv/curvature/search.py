"""Two stages to the extreme eigenvalues of every block: a scout on part of the data, then all.

A pass over an eighth of the data costs an eighth. There the top of the spectrum is resolved from
two random starts; then all the data are asked to confirm or correct that answer. The scout changes
where the search starts and what gap its error estimate believes in: the value reported is a Ritz
value of the whole operator.

A part of the data can hold two near eigenvalues in the wrong order, and all the data would then
confirm the second. So the scout's next vectors start along wherever their values come near
its first.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Mapping

import torch

from clcurv.curvature.lanczos import RUNNERS_UP, Extremes, Start, lockstep_extremes, random_start
from clcurv.curvature.operators import BlockOperator

# Found on a half-trained ViT, whose attention blocks have clustered spectra: with NEAR at 0.8 one
# layer in a hundred settled 5 % low.
SCOUT_TOL = 3e-3
RUNNER_TOL = 0.05
NEAR = 0.6
NEARER = 0.85
DOUBT = 1e-2

OnPass = Callable[[str, Mapping[str, Extremes], int], None]


def block_extremes(
    full: BlockOperator,
    scout: BlockOperator | None,
    *,
    tol: float,
    max_steps: int,
    seed: int,
    bottom: bool = True,
    unmet: Collection[str] = (),
    on_pass: OnPass | None = None,
) -> dict[str, Extremes]:
    """Largest (and smallest) eigenvalue of every block of `full`.

    Args:
        full: All the data.
        scout: Part of the data; None starts on all the data with the scout's own care.
        tol: Relative error allowed on the largest eigenvalue.
        max_steps: Products with all the data that a layer may take.
        seed: Of the random starts.
        bottom: Whether to pursue the smallest eigenvalue (to `tol` of the spectrum's scale).
        unmet: Blocks that the scout cannot speak for (`clcurv.diagnostics.coverage`): these start
            on all the data.
        on_pass: Called after every pass with the stage, the layers' states, and layers done.
    """
    alone = [name for name in full.names if scout is None or name in unmet]
    settled: dict[str, Extremes] = {}

    def starts(names: Collection[str], vectors: int) -> dict[str, Start]:
        return {n: random_start(full.like(n), vectors, _own_generator(seed, n)) for n in names}

    def report(stage: str) -> Callable[[Mapping[str, Extremes], int], None] | None:
        if on_pass is None:
            return None
        told = on_pass
        return lambda states, done: told(stage, settled | dict(states), len(settled) + done)

    if alone:
        settled = lockstep_extremes(
            full.products,
            starts(alone, 1),
            tol=tol,
            max_steps=max_steps,
            bottom=bottom,
            doubt=DOUBT,
            on_pass=report("all data"),
        )
    scouted = [name for name in full.names if name not in settled]
    if scout is None or not scouted:
        return settled
    found = lockstep_extremes(
        scout.products,
        starts(scouted, 2),
        tol=SCOUT_TOL,
        max_steps=2 * max_steps,
        pursue=2,
        bottom=bottom,
        bottom_tol=tol / 3,
        near=NEAR,
        runner_tol=RUNNER_TOL,
        residual_tol=RUNNER_TOL,
        on_pass=report("scout"),
    )
    scout.release()
    return settled | lockstep_extremes(
        full.products,
        {name: _informed(e, bottom) for name, e in found.items()},
        tol=tol,
        max_steps=max_steps,
        bottom=bottom,
        bottom_patience=1,
        near=NEARER,
        runner_tol=2 * RUNNER_TOL,
        on_pass=report("all data"),
    )


def _own_generator(seed: int, name: str) -> torch.Generator:
    """A layer's start is its own, whichever other layers are measured with it."""
    # torch's generator on the CPU takes 32 bits of a seed: the upper ones would be lost.
    return torch.Generator().manual_seed(zlib.crc32(f"{seed}:{name}".encode()))


def _informed(found: Extremes, bottom: bool) -> Start:
    """Start from what the scout found: its top vector, near ones after it, the bottom one."""
    top = found.top.value
    ratios = tuple(v / top for v in found.ritz[1 : 1 + RUNNERS_UP]) if top > 0 else ()
    near = [p.vector for p in found.runners_up if top > 0 and p.value >= NEAR * top]
    vectors = [found.top.vector, *near]
    if bottom:
        vectors.append(found.bottom.vector)
    return Start(torch.stack(vectors), ratios)
