"""Lanczos quadrature against closed forms and dense float64 matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from oracles import clustered_matrix, rotated
from torch import Tensor

from clcurv.curvature.quadrature import (
    Rule,
    Tridiagonal,
    lanczos,
    norm,
    probe_vectors,
    weighted_trace,
)


def runs_of(matrix: Tensor, steps: int, probes: int = 2, seed: int = 0, **more) -> list:
    starts = probe_vectors(matrix[0], seed, range(probes))
    return lanczos(lambda v: v @ matrix, starts, steps, **more)


def spread_matrix(d: int = 60, dtype: torch.dtype = torch.float64) -> Tensor:
    values = np.concatenate([[8.0, -3.0, 2.5], np.random.default_rng(0).normal(0, 0.3, d - 3)])
    return rotated(values, 0).to(dtype)


class TestRule:
    @pytest.mark.parametrize("steps", [1, 2, 5, 12])
    def test_moments_below_twice_the_steps_are_exact(self, steps: int) -> None:
        matrix = spread_matrix()
        starts = probe_vectors(matrix[0], 3, range(2))
        for v, run in zip(starts, runs_of(matrix, steps, seed=3), strict=True):
            rule, power = run.rule(), v.clone()
            assert len(rule.nodes) == steps
            for k in range(2 * steps):
                expected = float(v @ power)
                assert rule.weights @ rule.nodes**k == pytest.approx(expected, rel=1e-9, abs=1e-9)
                power = matrix @ power

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_weights_are_those_of_a_measure(self, dtype: torch.dtype) -> None:
        matrix = clustered_matrix(400, 1, [1.0, 0.99, 0.98]).to(dtype)
        for run in runs_of(matrix, 150):
            rule = run.rule()
            assert bool((rule.weights >= 0).all())
            assert rule.weights.sum() == pytest.approx(1.0, abs=1e-12)
            assert bool((np.diff(rule.nodes) >= 0).all())
            assert rule.nodes[0] >= -1 - 1e-5
            assert rule.nodes[-1] <= 1 + 1e-5

    def test_has_no_ghosts_of_a_converged_eigenvalue(self) -> None:
        """Float32 without re-orthogonalisation finds the top value dozens of times."""
        matrix = torch.diag(torch.cat([torch.tensor([100.0]), torch.linspace(0, 1, 499)]))
        for run in runs_of(matrix, 200):
            rule = run.rule()
            assert (rule.nodes > 50).sum() == 1
            assert rule.nodes[-1] == pytest.approx(100.0, rel=1e-6)

    def test_fewer_steps_are_the_head_of_more(self) -> None:
        (long,), (short,) = runs_of(spread_matrix(), 20, 1), runs_of(spread_matrix(), 8, 1)
        assert np.allclose(long.head(8).rule().nodes, short.rule().nodes, atol=1e-12)
        assert np.allclose(long.head(8).betas, short.betas, atol=1e-12)


class TestExhaustion:
    def test_two_eigenvalues_take_two_steps(self) -> None:
        matrix = torch.diag(torch.tensor([2.0] * 30 + [-1.0] * 70).double())
        for v, run in zip(probe_vectors(matrix[0], 0, range(2)), runs_of(matrix, 50), strict=True):
            assert run.exhausted
            assert run.steps == 2
            assert np.allclose(run.rule().nodes, [-1, 2])
            assert run.rule().weights[1] == pytest.approx(float(v[:30].square().sum()), rel=1e-10)

    def test_of_float32_rounding_adds_no_weight(self) -> None:
        matrix = spread_matrix(40, torch.float64)
        values = torch.linalg.eigvalsh(matrix)
        low_rank = rotated(np.where(np.arange(200) < 40, np.resize(values, 200), 0.0), 4).float()
        for run in runs_of(low_rank, 120):
            rule = run.rule()
            beyond = rule.weights[np.abs(rule.nodes) > 1e-4].sum()
            (exact,) = runs_of(low_rank.double(), 41, 1)
            assert 0 < beyond < 0.5
            assert exact.steps <= 41

    def test_starts_that_are_done_drop_out(self) -> None:
        matrix = torch.diag(torch.arange(1.0, 7.0).double())
        starts = torch.stack([torch.eye(6)[2], torch.ones(6)]).double()
        asked: list[int] = []

        def products(v: Tensor) -> Tensor:
            asked.append(len(v))
            return v @ matrix

        first, second = lanczos(products, starts, 10)
        assert asked == [2, 1, 1, 1, 1, 1]
        assert first.alphas.tolist() == [3.0]
        assert np.allclose(second.rule().nodes, range(1, 7))
        assert np.allclose(second.rule().weights, 1 / 6)

    @pytest.mark.parametrize("value", [0.0, -2.5])
    def test_a_single_parameter(self, value: float) -> None:
        (run,) = runs_of(torch.tensor([[value]]).double(), 10, 1)
        assert run.rule().nodes.tolist() == [value]
        assert run.rule().weights.tolist() == [1.0]
        assert run.ends() == ((value, 0.0), (value, 0.0))

    def test_a_zero_matrix(self) -> None:
        for run in runs_of(torch.zeros(9, 9), 5):
            assert run.exhausted
            assert run.rule().nodes.tolist() == [0.0]

    def test_noise_ends_it(self) -> None:
        matrix = torch.diag(torch.tensor([1.0, 0.5] + [1e-6] * 8).double())
        spread = matrix + 1e-9 * torch.diag(torch.arange(10.0).double())
        (run,) = runs_of(spread, 10, 1, noise=1e-7)
        assert run.steps == 3


class TestRadau:
    @pytest.mark.parametrize("x", [-3.5, -0.4, 0.0, 0.2, 0.9, 2.2, 9.0])
    def test_bounds_hold_the_starts_own_energy(self, x: float) -> None:
        matrix = spread_matrix()
        values, vectors = torch.linalg.eigh(matrix)
        starts = probe_vectors(matrix[0], 0, range(3))
        for v, run in zip(starts, runs_of(matrix, 14, 3), strict=True):
            rule = run.rule_at(x)
            at = int(np.abs(rule.nodes - x).argmin())
            assert rule.nodes[at] == pytest.approx(x, abs=1e-9)
            energy = float((vectors.T @ v).square()[values > x].sum())
            above = rule.weights[at + 1 :].sum()
            assert above - 1e-9 <= energy <= above + rule.weights[at] + 1e-9

    def test_of_an_exhausted_run_is_the_run(self) -> None:
        (run,) = runs_of(torch.eye(5).double(), 3, 1)
        assert run.rule_at(0.5).nodes == pytest.approx([1.0])


class TestEnds:
    def test_residuals_are_those_of_the_ritz_vectors(self) -> None:
        """||Hv - θv||² = ||H y||² - θ² of the Ritz vector y, all from a dense basis."""
        matrix = spread_matrix()
        (start,) = probe_vectors(matrix[0], 0, [0])
        basis = [start]
        for _ in range(5):
            w = matrix @ basis[-1]
            for q in basis + basis:
                w = w - (q @ w) * q
            basis.append(w / w.norm())
        v = torch.stack(basis)
        values, rotation = torch.linalg.eigh(v @ matrix @ v.T)
        (run,) = runs_of(matrix, 6, 1)
        for (value, residual), i in zip(run.ends(), (0, -1), strict=True):
            y = rotation[:, i] @ v
            assert value == pytest.approx(float(values[i]), rel=1e-10)
            assert residual == pytest.approx(float((matrix @ y - values[i] * y).norm()), rel=1e-8)

    def test_an_end_is_ruled_out_only_once_it_would_have_shown(self) -> None:
        matrix = clustered_matrix(500, 2, [1.0, 0.95], bulk=0.6)
        (run,) = runs_of(matrix, 40, 1)
        assert not run.head(4).ruled_out(1.01, 500)
        assert run.ruled_out(1.01, 500)


class TestProbes:
    def test_have_unit_length_and_their_own_seeds(self) -> None:
        like = torch.empty(1000)
        three = probe_vectors(like, 5, range(3))
        assert all(abs(norm(v) - 1) < 1e-6 for v in three)
        assert torch.equal(probe_vectors(like, 5, [1, 2]), three[1:])
        assert not torch.equal(probe_vectors(like, 6, [1, 2]), three[1:])

    def test_all_bits_of_a_seed_count(self) -> None:
        like = torch.empty(10)
        first, second = (probe_vectors(like, s, [0]) for s in (1, 1 + 2**32))
        assert not torch.equal(first, second)


def test_lanczos_from_all_starts_is_lanczos_from_each() -> None:
    matrix = spread_matrix()
    together = runs_of(matrix, 15, 3)
    for i, run in enumerate(together):
        (alone,) = lanczos(lambda v: v @ matrix, probe_vectors(matrix[0], 0, [i]), 15)
        assert np.allclose(run.alphas, alone.alphas, atol=1e-12)


def test_the_basis_stays_orthogonal_in_float32() -> None:
    """Products with the basis, by way of the starts: T must be that of a full orthogonal one."""
    matrix = clustered_matrix(600, 0, [1.0, 0.999, 0.9985, 0.5])
    (single,), (double,) = (runs_of(matrix.to(t), 100, 1) for t in (torch.float32, torch.float64))
    for eps in (0.01, 0.1, 0.3, 0.7):
        masses = [r.weights[np.abs(r.nodes) > eps].sum() for r in (single.rule(), double.rule())]
        assert masses[0] == pytest.approx(masses[1], abs=2e-3)


def test_trace_is_the_first_moment_and_has_an_error_over_probes() -> None:
    rules = [Rule(np.array([1.0, 3.0]), np.array([0.5, 0.5])), Rule(np.array([4.0]), np.ones(1))]
    trace, error = weighted_trace(rules, 10)
    assert trace == pytest.approx(30.0)
    assert error == pytest.approx(10.0)
    assert weighted_trace(rules[:1], 10) == (20.0, None)


def test_progress_is_told_every_step() -> None:
    told: list[int] = []
    runs_of(spread_matrix(), 4, on_step=told.append)
    assert told == [1, 2, 3, 4]


def test_tridiagonal_of_one_step() -> None:
    run = Tridiagonal(np.array([2.0]), np.array([0.5]))
    assert run.ends() == ((2.0, 0.5), (2.0, 0.5))
