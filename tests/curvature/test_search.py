"""The two-stage search on plain matrices: clustered tops are where small residuals lie."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from oracles import clustered_matrix
from torch import Tensor

from clcurv.curvature.products import Products, project
from clcurv.curvature.search import block_extremes

LADDER = (1.0, 0.97, 0.95, 0.93, 0.92, 0.9)
PAIR = (1.0, 0.95)
CROWD = (1.0, *[0.95] * 12)
FLOCK = (1.0, *[0.96] * 4, 0.95, 0.95)
SPECTRA = {
    "ladder": (LADDER, 0.9),
    "ladder over a low bulk": (LADDER, 0.6),
    "pair": (PAIR, 0.6),
    "pair over a high bulk": (PAIR, 0.9),
    "crowd": (CROWD, 0.3),
    "flock": (FLOCK, 0.3),
    "isolated": ((1.0,), 0.3),
}
# A Krylov space from two starts holds two copies of a multiple eigenvalue, so a twelvefold or
# sixfold one just under the top hides it on a scout almost equal to all the data: a known limit,
# up to 5 % low. From one start (no scout) such an eigenvalue counts once.
LIMIT = pytest.mark.xfail(
    reason="a multiple eigenvalue just below the top can hide it", strict=True
)
AFTER_A_SCOUT = [
    pytest.param(kind, size, marks=LIMIT if kind in ("crowd", "flock") and size == 0.05 else ())
    for kind in SPECTRA
    for size in (0.05, 0.5)
]
SEEDS = range(20)
TOL = 1e-2


class Matrices:
    """What the search sees of an operator, made of plain matrices; counts products."""

    def __init__(self, **matrices: Tensor) -> None:
        self.matrices, self.products_taken, self.released = matrices, 0, False

    @property
    def names(self) -> list[str]:
        return list(self.matrices)

    def like(self, name: str) -> Tensor:
        return self.matrices[name].new_empty(len(self.matrices[name]))

    def release(self) -> None:
        self.released = True

    def products(
        self, vectors: Mapping[str, Tensor], bases: Mapping[str, Tensor] | None = None
    ) -> dict[str, Products]:
        out = {}
        for name, v in vectors.items():
            self.products_taken += len(v)
            w = v @ self.matrices[name]
            out[name] = Products(w, project((bases or vectors)[name], w)[None])
        return out


def search(full: Matrices, scout: Matrices | None = None, **options):
    return block_extremes(full, scout, **{"tol": TOL, "max_steps": 60, "seed": 0, **options})


def naive_top(matrix: Tensor, seed: int) -> float:
    """Lanczos from one random start, stopped at the first residual of 1e-2: what the guard is for.

    With full re-orthogonalisation: its only fault is when it stops.
    """
    generator = torch.Generator().manual_seed(seed)
    v = torch.randn(len(matrix), generator=generator, dtype=matrix.dtype)
    basis, alphas, betas = [v / v.norm()], [], []
    while True:
        w = matrix @ basis[-1]
        alphas.append(float(w @ basis[-1]))
        stack = torch.stack(basis)
        for _ in range(2):
            w = w - (stack @ w) @ stack
        beta = float(w.norm())
        values, vectors = np.linalg.eigh(np.diag(alphas) + np.diag(betas, 1) + np.diag(betas, -1))
        if beta * abs(vectors[-1, -1]) <= TOL * abs(values[-1]):
            return float(values[-1])
        betas.append(beta)
        basis.append(w / beta)


def perturbed(matrix: Tensor, seed: int, size: float) -> Tensor:
    """The matrix of another sample: a symmetric perturbation of spectral norm about `size`."""
    rng = np.random.default_rng(seed + 99)
    noise = torch.from_numpy(rng.standard_normal(matrix.shape))
    return matrix + size * (noise + noise.T) / np.sqrt(8 * len(matrix))


@pytest.mark.parametrize("kind", ["crowd", "flock"])
def test_a_small_residual_alone_settles_low(kind: str) -> None:
    tops, bulk = SPECTRA[kind]
    found = [naive_top(clustered_matrix(300, seed, tops, bulk), seed) for seed in SEEDS]
    assert min(found) < 0.98


@pytest.mark.parametrize("kind", SPECTRA)
def test_clustered_tops_are_found_on_all_the_data(kind: str) -> None:
    tops, bulk = SPECTRA[kind]
    full = Matrices(**{str(s): clustered_matrix(300, s, tops, bulk) for s in SEEDS})
    found = search(full, bottom=False)
    assert all(e.top_converged for e in found.values())
    assert {k: e.top.value for k, e in found.items() if abs(e.top.value - 1) > TOL} == {}


@pytest.mark.parametrize(("kind", "size"), AFTER_A_SCOUT)
def test_clustered_tops_are_found_after_a_scout(kind: str, size: float) -> None:
    tops, bulk = SPECTRA[kind]
    matrices = {str(s): clustered_matrix(300, s, tops, bulk) for s in SEEDS}
    scout = Matrices(**{s: perturbed(m, int(s), size) for s, m in matrices.items()})
    found = search(Matrices(**matrices), scout, bottom=False)
    assert scout.released
    assert all(e.top_converged for e in found.values())
    assert {k: e.top.value for k, e in found.items() if abs(e.top.value - 1) > TOL} == {}


@pytest.mark.parametrize("seed", range(3))
def test_a_large_clustered_block(seed: int) -> None:
    matrix = clustered_matrix(1500, seed, LADDER, 0.8)
    found = search(Matrices(a=matrix), seed=seed)["a"]
    assert found.top.value == pytest.approx(1, rel=TOL)


def test_random_starts_of_the_search_do_not_matter() -> None:
    """One matrix, many seeds: the numbers agree to the tolerance."""
    matrix = clustered_matrix(400, 7, PAIR, 0.6)
    found = [search(Matrices(a=matrix), seed=seed, bottom=False)["a"].top.value for seed in SEEDS]
    assert min(found) > 1 - TOL


def test_scout_and_no_scout_agree() -> None:
    matrix = clustered_matrix(300, 3, LADDER, 0.7)
    alone = search(Matrices(a=matrix), tol=1e-6)["a"]
    helped = search(Matrices(a=matrix), Matrices(a=perturbed(matrix, 3, 0.2)), tol=1e-6)["a"]
    for e in (alone, helped):
        assert e.top.value == pytest.approx(1, rel=1e-6)
        assert e.bottom.value == pytest.approx(float(torch.linalg.eigvalsh(matrix)[0]), rel=1e-4)


def test_a_good_scout_saves_products() -> None:
    matrix = clustered_matrix(400, 5, (1.0, 0.6, 0.4), 0.2)
    alone, helped = Matrices(a=matrix), Matrices(a=matrix)
    search(alone, bottom=False)
    search(helped, Matrices(a=perturbed(matrix, 5, 0.02)), bottom=False)
    assert helped.products_taken <= 3 < alone.products_taken


def test_a_scout_without_any_curvature() -> None:
    matrix = clustered_matrix(60, 1, PAIR, 0.6)
    found = search(Matrices(a=matrix), Matrices(a=torch.zeros_like(matrix)))["a"]
    assert found.top.value == pytest.approx(1, rel=TOL)


def test_a_scout_curved_downwards() -> None:
    matrix = clustered_matrix(60, 1, PAIR, 0.6)
    found = search(Matrices(a=matrix), Matrices(a=-matrix))["a"]
    assert found.top.value == pytest.approx(1, rel=TOL)


def test_progress_names_the_stages() -> None:
    told = []
    matrix = clustered_matrix(60, 1, PAIR, 0.6)
    search(
        Matrices(a=matrix, b=matrix),
        Matrices(a=matrix, b=matrix),
        on_pass=lambda stage, states, done: told.append((stage, set(states), done)),
    )
    assert [stage for stage, _, _ in told] == sorted((s for s, _, _ in told), reverse=True)
    assert told[-1] == ("all data", {"a", "b"}, 2)
    assert {stage for stage, _, _ in told} == {"scout", "all data"}


def test_max_steps_is_kept_and_said() -> None:
    matrix = clustered_matrix(300, 0, LADDER, 0.9)
    found = search(Matrices(a=matrix), max_steps=3, bottom=False)["a"]
    assert found.steps <= 3
    assert not found.top_converged


def test_every_seed_gives_other_starts() -> None:
    """torch's generator takes 32 bits: a seed in the upper ones would be lost."""
    found = set()
    for seed in range(8):
        matrix = clustered_matrix(200, 3, PAIR, 0.6)
        found.add(search(Matrices(a=matrix), seed=seed, bottom=False)["a"].top.value)
    assert len(found) == 8
