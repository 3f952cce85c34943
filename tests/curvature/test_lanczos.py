"""The solver alone, on plain matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import rotated
from torch import Tensor

from clcurv.curvature.lanczos import Start, lockstep_extremes, random_start, temple_error
from clcurv.curvature.products import Products, project


def products_of(*chunks: dict[str, Tensor], log: list | None = None):
    """Products with the sum of the chunks' matrices."""

    def products(vectors, bases):
        if log is not None:
            log.append({name: len(v) for name, v in vectors.items()})
        out = {}
        for name, v in vectors.items():
            parts = [v @ chunk[name] for chunk in chunks]
            shares = torch.stack([project(bases[name], w) for w in parts])
            out[name] = Products(sum(parts), shares)
        return out

    return products


def solve(matrix: Tensor, *, seed: int = 0, starts: int = 1, **options):
    generator = torch.Generator().manual_seed(seed)
    start = random_start(matrix[0], starts, generator)
    options = {"tol": 1e-10, "max_steps": 400, "bottom": True, **options}
    return lockstep_extremes(products_of({"a": matrix}), {"a": start}, **options)["a"]


def decaying(d: int = 120, seed: int = 0) -> Tensor:
    return rotated(np.concatenate([[3.0, -1.0], 0.5 / np.arange(1, d - 1)]), seed)


def assert_ends(found, matrix: Tensor, rel: float = 1e-8) -> None:
    values = torch.linalg.eigvalsh(matrix)
    scale = float(values.abs().max())
    assert found.top.value == pytest.approx(float(values[-1]), rel=rel, abs=1e-12 * scale)
    assert found.bottom.value == pytest.approx(float(values[0]), rel=rel, abs=1e-9 * scale)
    assert found.top_converged
    assert found.bottom_converged


@pytest.mark.parametrize("starts", [1, 2, 5])
def test_both_ends(starts: int) -> None:
    matrix = decaying()
    found = solve(matrix, starts=starts)
    assert_ends(found, matrix)
    assert found.steps < 60
    for pair in (found.top, found.bottom):
        assert float(pair.vector.norm()) == pytest.approx(1)
        apart = float((matrix @ pair.vector - pair.value * pair.vector).norm())
        assert apart == pytest.approx(pair.residual, abs=1e-12)


def test_no_ghosts_after_two_hundred_steps() -> None:
    """Without re-orthogonalisation an isolated top eigenvalue comes again after some 20 steps."""
    values = np.concatenate([[100.0, 10.0], np.linspace(-1, 1, 298)])
    matrix = rotated(values, 3)
    found = solve(matrix, tol=1e-9, bottom_tol=1e-14, max_steps=200)
    assert found.steps >= 100  # the bottom is dense and keeps it going
    ritz = np.array(found.ritz)
    assert (np.abs(ritz - 100) < 1).sum() == 1
    assert (np.abs(ritz - 10) < 1).sum() == 1
    assert ritz.min() >= -1 - 1e-12
    assert_ends(found, matrix)


def test_ghosts_would_show_in_that_spectrum() -> None:
    """The same three-term recurrence without re-orthogonalisation, for the test above."""
    matrix = rotated(np.concatenate([[100.0, 10.0], np.linspace(-1, 1, 298)]), 3)
    v, last, beta = torch.randn(300, dtype=torch.float64), torch.zeros(300).double(), 0.0
    v, alphas, betas = v / v.norm(), [], []
    for _ in range(100):
        w = matrix @ v - beta * last
        alphas.append(float(w @ v))
        w = w - alphas[-1] * v
        beta, last = float(w.norm()), v
        betas.append(beta)
        v = w / beta
    tridiagonal = np.diag(alphas) + np.diag(betas[:-1], 1) + np.diag(betas[:-1], -1)
    assert (np.abs(np.linalg.eigvalsh(tridiagonal) - 100) < 1).sum() > 1


@pytest.mark.parametrize("d", [1, 2, 3, 7])
@pytest.mark.parametrize("starts", [1, 2])
def test_exhaustion_is_exact(d: int, starts: int) -> None:
    matrix = rotated(np.linspace(-1, 2, d) if d > 1 else [2.0], d)
    found = solve(matrix, starts=starts, tol=1e-14)
    assert found.steps <= d
    assert_ends(found, matrix, rel=1e-12)


@pytest.mark.parametrize("value", [4.0, -4.0, 0.0])
def test_one_dimension(value: float) -> None:
    found = solve(torch.tensor([[value]], dtype=torch.float64), starts=2)
    assert found.top.value == pytest.approx(value)
    assert found.bottom.value == pytest.approx(value)
    assert (found.steps, len(found.ritz), found.top_converged) == (1, 1, True)


def test_zero_matrix() -> None:
    found = solve(torch.zeros(30, 30, dtype=torch.float64), starts=2)
    assert (found.top.value, found.bottom.value, found.error) == (0.0, 0.0, 0.0)
    assert found.top_converged
    assert found.steps == 2


def test_identity_is_done_at_once() -> None:
    found = solve(2 * torch.eye(50, dtype=torch.float64), starts=2)
    assert found.top.value == pytest.approx(2)
    assert found.bottom.value == pytest.approx(2)
    assert found.steps == 2


def test_negative_definite_has_the_least_negative_on_top() -> None:
    matrix = rotated(-np.geomspace(1e-2, 10, 60), 1)
    found = solve(matrix)
    assert_ends(found, matrix)
    assert found.top.value == pytest.approx(-1e-2)


def test_diagonal_operator() -> None:
    matrix = torch.diag(torch.linspace(-3, 7, 80, dtype=torch.float64))
    assert_ends(solve(matrix), matrix)


def test_rank_one() -> None:
    u = torch.randn(40, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = solve(torch.outer(u, u), starts=2)
    assert found.top.value == pytest.approx(float(u @ u))
    assert found.bottom.value == pytest.approx(0, abs=1e-10)


def test_ties_of_sign_do_not_confuse_it() -> None:
    """Power iteration never settles on +1 and -1."""
    matrix = rotated(np.concatenate([[1.0, -1.0], np.zeros(48)]), 2)
    assert_ends(solve(matrix), matrix)


def test_products_with_noise_still_end() -> None:
    """Rounding of float32: the residual has a floor, the value is good to it."""
    matrix = decaying(200).float()
    found = solve(matrix, tol=1e-5, starts=2, max_steps=60)
    assert found.top.value == pytest.approx(3, rel=1e-5)
    assert found.top_converged
    assert 0 < found.noise < 1e-5


def test_asymmetry_is_seen_as_noise() -> None:
    generator = torch.Generator().manual_seed(0)
    skew = torch.randn(100, 100, generator=generator, dtype=torch.float64)
    skew = 1e-3 * (skew - skew.T)
    clean, noisy = solve(decaying(100), tol=1e-2), solve(decaying(100) + skew, tol=1e-2)
    assert clean.noise < 1e-14
    assert noisy.noise > 1e-4


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_the_scale_of_the_matrix_does_not_matter(scale: float) -> None:
    plain, scaled = solve(decaying(), tol=1e-3), solve(scale * decaying(), tol=1e-3)
    assert scaled.top.value == pytest.approx(scale * plain.top.value)
    assert scaled.steps == plain.steps


def test_shares_add_up_and_belong_to_their_chunk() -> None:
    parts = [{"a": decaying(50, seed)} for seed in range(3)]
    whole = sum(p["a"] for p in parts)
    start = {"a": random_start(whole[0], 2, torch.Generator().manual_seed(0))}
    found = lockstep_extremes(products_of(*parts), start, tol=1e-6, max_steps=50)["a"]
    v = found.top.vector
    expected = [float(v @ p["a"] @ v) for p in parts]
    assert found.shares.tolist() == pytest.approx(expected)
    assert float(found.shares.sum()) == pytest.approx(found.top.value)


def test_blocks_advance_together_and_drop_out() -> None:
    easy = rotated(np.concatenate([[5.0], np.full(39, 0.01)]), 0)
    hard = rotated(np.linspace(0, 1, 60), 0)
    log: list[dict[str, int]] = []
    generator = torch.Generator().manual_seed(0)
    seen = []
    found = lockstep_extremes(
        products_of({"easy": easy, "hard": hard}, log=log),
        {name: random_start(m[0], 1, generator) for name, m in (("easy", easy), ("hard", hard))},
        tol=1e-4,
        max_steps=60,
        on_pass=lambda states, done: seen.append(done),
    )
    assert found["easy"].steps == sum("easy" in passed for passed in log) < 5
    assert found["hard"].steps == sum("hard" in passed for passed in log) == len(log)
    assert [set(p) for p in log] == sorted((set(p) for p in log), key=len, reverse=True)
    assert seen == sorted(seen)
    assert seen[-1] == 2
    alone = {name: solve(m, tol=1e-4, bottom=False) for name, m in (("easy", easy), ("hard", hard))}
    for name, state in alone.items():
        assert found[name].top.value == pytest.approx(state.top.value, rel=1e-3)


def test_the_bottom_alone_costs_nothing_when_not_asked_for() -> None:
    matrix = rotated(np.concatenate([[5.0], np.linspace(-1, 0.5, 99)]), 0)
    one, both = solve(matrix, tol=1e-4, bottom=False), solve(matrix, tol=1e-4)
    assert one.steps < both.steps
    assert not one.bottom_converged
    assert both.bottom.value == pytest.approx(-1, rel=1e-3)


def test_max_steps_holds() -> None:
    found = solve(rotated(np.linspace(0, 1, 80), 0), starts=2, max_steps=9)
    assert found.steps == 9
    assert not found.top_converged
    assert found.error > 1e-10


def test_start_vectors_may_repeat_or_be_of_any_length() -> None:
    matrix = decaying(40)
    v = torch.randn(40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    start = Start(torch.stack([1e-8 * v, 1e8 * v, v, torch.zeros_like(v)]))
    found = lockstep_extremes(
        products_of({"a": matrix}), {"a": start}, tol=1e-10, max_steps=40, bottom=True
    )["a"]
    assert_ends(found, matrix)


def test_random_start_is_the_same_for_one_seed_in_any_dtype() -> None:
    for_single, for_double = (
        random_start(torch.zeros(5, dtype=dtype), 2, torch.Generator().manual_seed(3))
        for dtype in (torch.float32, torch.float64)
    )
    assert torch.equal(for_single.vectors.double(), for_double.vectors)
    assert for_double.vectors.dtype == torch.float64


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(-50, 50), min_size=2, max_size=12),
    st.integers(0, 10**6),
    st.integers(1, 3),
)
def test_any_small_matrix_is_solved_exactly(values: list[int], seed: int, starts: int) -> None:
    matrix = rotated(values, seed)
    found = solve(matrix, seed=seed, starts=starts, tol=1e-13)
    scale = max(map(abs, values))
    assert found.top.value == pytest.approx(max(values), abs=1e-7 * scale)
    assert found.bottom.value == pytest.approx(min(values), abs=1e-7 * scale)


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 8), st.integers(0, 10**6))
def test_ritz_values_never_leave_the_spectrum(steps: int, seed: int) -> None:
    matrix = decaying(60, seed % 7)
    found = solve(matrix, seed=seed, max_steps=steps)
    assert -1 - 1e-9 <= found.bottom.value <= found.top.value <= 3 + 1e-9
    assert len(found.ritz) == found.steps <= steps


def test_project_takes_pieces_in_float64() -> None:
    basis, vectors = torch.randn(3, 1000), torch.randn(2, 1000)
    exact = basis.double() @ vectors.double().T
    assert torch.allclose(project(basis, vectors, piece=7), exact, rtol=1e-12)
    assert project(basis, vectors).dtype == torch.float64


class TestTempleError:
    def test_gap(self) -> None:
        assert temple_error([1.0, 0.5], [0.1]) == pytest.approx(0.01 / 0.5)

    def test_residual_where_the_gap_says_nothing(self) -> None:
        assert temple_error([1.0, 0.99], [0.05]) == pytest.approx(0.05)
        assert temple_error([1.0], [0.05]) == pytest.approx(0.05)

    def test_two_near_values_are_one_cluster(self) -> None:
        found = temple_error([1.0, 0.99, 0.2], [0.05, 0.05])
        assert found == pytest.approx((0.05**2 + 0.05**2) / 0.8)

    def test_expected_ratio_narrows_the_gap(self) -> None:
        assert temple_error([1.0, 0.2], [0.1], [0.9]) == pytest.approx(0.1)
        assert temple_error([1.0, 0.2], [0.1], [0.5]) == pytest.approx(0.01 / 0.5)

    @settings(max_examples=50, deadline=None)
    @given(st.floats(0.05, 0.9), st.floats(0, 0.2), st.integers(0, 10**6))
    def test_bounds_the_error_of_a_perturbed_eigenvector(
        self, second: float, angle: float, seed: int
    ) -> None:
        """Rotate the top eigenvector by a small angle: Kato-Temple must cover the loss."""
        matrix = rotated([1.0, second, second / 2, 0.0], seed)
        _, vectors = torch.linalg.eigh(matrix)
        v = np.cos(angle) * vectors[:, -1] + np.sin(angle) * vectors[:, 1]
        theta = float(v @ matrix @ v)
        residual = float((matrix @ v - theta * v).norm())
        if theta > second:
            assert 1 - theta <= temple_error([theta, second], [residual]) + 1e-12
