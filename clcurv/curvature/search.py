"""Two stages to the extreme eigenvalues of every block: a scout on part of the data, then all.

A pass over an eighth of the data costs an eighth. There the spectrum's top is resolved from two
random starts, tightly, with the pair below it; then all the data are asked only to confirm or
correct that answer. The scout changes where the search starts, and what gap its error estimate
believes in: the value reported is a Ritz value of the whole operator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from clcurv.curvature.lanczos import Extremes, Start, lockstep_extremes, random_start
from clcurv.curvature.operators import BlockOperator

SCOUT_TOL = 1e-3
SCOUT_RESIDUAL = 0.1
CLUSTER = 0.8

OnPass = Callable[[str, Mapping[str, Extremes], int], None]


def block_extremes(
    full: BlockOperator,
    scout: BlockOperator | None,
    *,
    tol: float,
    max_steps: int,
    seed: int,
    bottom: bool = True,
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
        on_pass: Called after every pass with the stage, the layers' states, and layers done.
    """
    generator = torch.Generator().manual_seed(seed)
    starts = {name: random_start(full.like(name), 2, generator) for name in full.names}

    def report(stage: str) -> Callable[[Mapping[str, Extremes], int], None] | None:
        if on_pass is None:
            return None
        told = on_pass
        return lambda states, done: told(stage, states, done)

    if scout is None:
        return lockstep_extremes(
            full.products,
            starts,
            tol=tol,
            max_steps=max_steps,
            pursue=2,
            bottom=bottom,
            residual_tol=max(min(SCOUT_RESIDUAL, tol**0.5), tol),
            on_pass=report("all data"),
        )
    found = lockstep_extremes(
        scout.products,
        starts,
        tol=min(SCOUT_TOL, tol),
        max_steps=2 * max_steps,
        pursue=2,
        bottom=bottom,
        bottom_tol=max(tol, SCOUT_RESIDUAL),
        residual_tol=SCOUT_RESIDUAL,
        on_pass=report("scout"),
    )
    scout.release()
    return lockstep_extremes(
        full.products,
        {name: _informed(e, bottom) for name, e in found.items()},
        tol=tol,
        max_steps=max_steps,
        bottom=bottom,
        on_pass=report("all data"),
    )


def _informed(found: Extremes, bottom: bool) -> Start:
    """Start from what the scout found: its top vector, a near second one, the bottom one."""
    top = found.top.value
    vectors = [found.top.vector]
    ratios = tuple(v / top for v in found.ritz[1:3]) if top > 0 else ()
    if found.second is not None and ratios and ratios[0] >= CLUSTER:
        vectors.append(found.second.vector)
    if bottom:
        vectors.append(found.bottom.vector)
    return Start(torch.stack(vectors), ratios)
