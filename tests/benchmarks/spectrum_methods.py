"""The peers' stochastic Lanczos quadratures of a whole network's Hessian, and clcurv's.

Every one is called as its own documentation says, on the same batches and the same mean loss in
float32, with as many steps and probes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from peer_methods import Problem
from torch import Tensor, nn
from torch.nn import functional as F

from clcurv.curvature.objective import Objective
from clcurv.diagnostics.spectrum import TaskSpectrum
from clcurv.diagnostics.task_spectrum import measure_spectrum

Probe = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Nodes and weights."""
Solve = Callable[[int, int, int], list[Probe]]
"""(probes, steps, seed) -> one entry a probe."""


@dataclass(frozen=True)
class Quadrature:
    """One peer set up for one network.

    Attributes:
        product: One product of the Hessian with a flat vector.
        solve: The quadrature.
    """

    product: Callable[[Tensor], object]
    solve: Solve


@dataclass(frozen=True)
class Peer:
    """A peer as the table names it."""

    call: str
    module: str
    distribution: str
    setup: Callable[[Problem], Quadrature]


def ours(problem: Problem, probes: int, steps: int, seed: int) -> TaskSpectrum:
    """clcurv's, with what it chooses by itself but the method."""
    return measure_spectrum(
        problem.model,
        {"all": list(problem.model.parameters())},
        problem.samples,
        Objective(),
        probes=probes,
        steps=steps,
        seed=seed,
        method="lanczos-quadrature",
    )


def pyhessian_quadrature(problem: Problem) -> Quadrature:
    """`density`, its call to the removed `torch.eig` answered by `torch.linalg.eigh`."""
    from pyhessian import hessian

    theirs = hessian(problem.model, nn.CrossEntropyLoss(), dataloader=problem.batches, cuda=False)
    parameters = list(problem.model.parameters())

    def solve(probes: int, steps: int, seed: int) -> list[Probe]:
        with torch.random.fork_rng(devices=[]), _torch_eig():
            torch.manual_seed(seed)
            nodes, weights = theirs.density(iter=steps, n_v=probes)
        return [_probe(n, w) for n, w in zip(nodes, weights, strict=True)]

    def product(vector: Tensor) -> object:
        return theirs.dataloader_hv_product(_shaped(vector, parameters))

    return Quadrature(product, solve)


def eigenthings_quadrature(problem: Problem) -> Quadrature:
    """`spectral_density`, which re-orthogonalises."""
    from hessian_eigenthings.algorithms import spectral_density
    from hessian_eigenthings.loss_fns import supervised_loss
    from hessian_eigenthings.operators import HessianOperator

    operator = HessianOperator(problem.model, problem.batches, supervised_loss(F.cross_entropy))

    def solve(probes: int, steps: int, seed: int) -> list[Probe]:
        found = spectral_density(
            operator, num_runs=probes, lanczos_steps=steps, seed=seed, num_grid_points=2
        )
        pairs = zip(found.raw_eigenvalues, found.raw_weights, strict=True)
        return [_probe(n, w) for n, w in pairs]

    return Quadrature(operator.matvec, solve)


def curvlinops_quadrature(problem: Problem) -> Quadrature:
    """`fast_lanczos`, the quadrature in `lanczos_approximate_spectrum`, without its boundaries.

    These would cost two ARPACK runs more; and without the determinism check.
    """
    from curvlinops import HessianLinearOperator
    from curvlinops.papyan2020traces.spectrum import fast_lanczos

    operator = HessianLinearOperator(
        problem.model,
        nn.CrossEntropyLoss(),
        list(problem.model.parameters()),
        problem.batches,
        check_deterministic=False,
        num_data=len(problem.samples),
    )

    def solve(probes: int, steps: int, seed: int) -> list[Probe]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            runs = [fast_lanczos(operator, steps) for _ in range(probes)]
        return [_probe(values, vectors[0].square()) for values, vectors in runs]

    return Quadrature(lambda vector: operator @ vector, solve)


PEERS: dict[str, Peer] = {
    "pyhessian": Peer(
        "`hessian(...).density(iter=m, n_v=n)`", "pyhessian", "PyHessian", pyhessian_quadrature
    ),
    "hessian-eigenthings": Peer(
        "`spectral_density(op, num_runs=n, lanczos_steps=m)`",
        "hessian_eigenthings",
        "hessian-eigenthings",
        eigenthings_quadrature,
    ),
    "curvlinops": Peer(
        "n times `fast_lanczos(op, m)`",
        "curvlinops",
        "curvlinops-for-pytorch",
        curvlinops_quadrature,
    ),
}


@contextmanager
def _torch_eig() -> Iterator[None]:
    """Within it `torch.eig` is back, for symmetric matrices: real parts and vectors."""
    removed = torch.eig

    def eig(matrix: Tensor, eigenvectors: bool) -> tuple[Tensor, Tensor]:
        assert eigenvectors
        values, vectors = torch.linalg.eigh(matrix)
        return torch.stack([values, torch.zeros_like(values)], dim=1), vectors

    torch.eig = eig
    try:
        yield
    finally:
        torch.eig = removed


def _probe(nodes: object, weights: object) -> Probe:
    return np.asarray(nodes, dtype=float), np.asarray(weights, dtype=float)


def _shaped(vector: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    parts = vector.split([p.numel() for p in like])
    return [v.view_as(p) for v, p in zip(parts, like, strict=True)]
