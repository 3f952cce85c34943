"""ε-ranks on matrices whose eigenvalues are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from clcurv.curvature.quadrature import Tridiagonal, lanczos, probe_vectors
from clcurv.curvature.smoothing import density, paper_rank
from clcurv.diagnostics.eps_rank import eps_grid, exact_rank, quadrature_rank
from clcurv.errors import UsageError

P = 2000


def like_a_network(seed: int = 0) -> np.ndarray:
    """A few large eigenvalues, a tail of a few hundred over four decades, a bulk at zero."""
    rng = np.random.default_rng(seed)
    return np.concatenate(
        [
            10.0 ** rng.uniform(-1, 1.2, 9),
            10.0 ** rng.uniform(-3, -0.7, 150),
            10.0 ** rng.uniform(-6, -3, 500) * rng.choice([1, -1], 500),
            1e-8 * rng.standard_normal(P - 659),
        ]
    )


def one_in_twenty(largest: float) -> np.ndarray:
    """5 % of the eigenvalues lie beyond ±0.1, the others within 1e-3; only λ_max varies."""
    values = np.zeros(P)
    values[:100] = np.geomspace(0.2, 1.0, 100)
    values[0] = largest
    values[100:] = 1e-4 * np.random.default_rng(1).standard_normal(P - 100)
    return values


def runs_of(values: np.ndarray, steps: int, probes: int = 10, seed: int = 0) -> list[Tridiagonal]:
    diagonal = torch.tensor(values)
    starts = probe_vectors(diagonal, seed, range(probes))
    return lanczos(lambda v: v * diagonal, starts, steps)


@pytest.fixture(scope="module")
def draws() -> list[list[Tridiagonal]]:
    return [runs_of(like_a_network(), 50, 6, seed) for seed in range(40)]


class TestExact:
    def test_counts_sides_apart(self) -> None:
        found = exact_rank(np.array([-3.0, -0.5, 0.0, 1.0, 2.0]), 10, 0.5)
        assert (found.count, found.positive, found.negative) == (3, 2, 1)
        assert found.fraction == 0.3
        assert (found.low, found.high, found.half_steps) == (3, 3, None)
        assert found.status == "ok"

    def test_up_to_an_edge(self) -> None:
        found = exact_rank(np.array([-3.0, -0.6, 1.0, 2.0]), 4, 0.5, upper=2.0)
        assert (found.positive, found.negative, found.upper) == (2, 1, 2.0)

    def test_under_rounding(self) -> None:
        found = exact_rank(np.ones(3), 3, 1e-9, noise=1e-7)
        assert found.status == "below-resolution"
        assert "rounding" in found.reason


class TestQuadrature:
    @pytest.mark.parametrize("largest", [1.0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6])
    def test_stays_put_whatever_the_largest_eigenvalue(self, largest: float) -> None:
        found = quadrature_rank(runs_of(one_in_twenty(largest), 80), P, 0.1, steps=80)
        at_one = quadrature_rank(runs_of(one_in_twenty(1.0), 80), P, 0.1, steps=80)
        assert found.status == "ok"
        assert found.count == pytest.approx(at_one.count, rel=1e-4)
        assert found.low is not None
        assert found.high is not None
        assert found.low <= 100 <= found.high
        assert found.high - found.low < 25

    def test_the_published_smoothing_does_not(self) -> None:
        """True: 5 %."""
        rules = [[r.rule() for r in runs_of(one_in_twenty(x), 80)] for x in (1.0, 1e1, 1e2, 1e3)]
        smoothed = [paper_rank(probes, 0.1) for probes in rules]
        assert smoothed[0].fraction == pytest.approx(0.052, abs=1e-3)
        assert [s.kernel_limited for s in smoothed] == [False, False, False, True]
        assert smoothed[1].fraction > 1.1 * smoothed[0].fraction
        assert smoothed[2].fraction > 1.4 * smoothed[0].fraction
        assert smoothed[3].fraction > 3 * smoothed[0].fraction

    @pytest.mark.parametrize("probes", [2, 6])
    @pytest.mark.parametrize("eps", [1e-3, 1e-2, 0.1, 1.0])
    def test_the_interval_covers_as_often_as_it_says(
        self, draws: list[list[Tridiagonal]], eps: float, probes: int
    ) -> None:
        """At least: what the quadrature leaves open only widens it."""
        true = int((np.abs(like_a_network()) > eps).sum())
        found = [quadrature_rank(runs[:probes], P, eps, steps=50) for runs in draws]
        inside = sum(f.low <= true <= f.high for f in found)  # type: ignore[operator]
        assert inside >= 36  # of 40; 38 expected
        if eps > 1e-2:
            assert all(f.status == "ok" for f in found)

    def test_too_few_steps_say_so(self) -> None:
        """Twelve steps have no probe to probe spread to warn with, and are off by a half."""
        values = np.exp(np.random.default_rng(0).uniform(np.log(1e-6), np.log(10), P))
        found = quadrature_rank(runs_of(values, 12), P, 1e-2, steps=12)
        true = float((values > 1e-2).sum())
        assert found.status == "not-resolved"
        assert abs(found.count - true) > 0.2 * true
        assert found.low is not None
        assert found.high is not None
        assert found.low <= true <= found.high
        assert "12" in found.reason

    def test_below_the_ritz_spacing_near_zero(self) -> None:
        found = quadrature_rank(runs_of(like_a_network(), 30), P, 1e-6, steps=30)
        assert found.status == "not-resolved"

    def test_in_a_gap_it_is_resolved_however_far_apart_the_ritz_values(self) -> None:
        values = np.concatenate([np.linspace(1, 2, 40), np.zeros(P - 40)])
        for eps in (1e-5, 0.1, 0.9):
            found = quadrature_rank(runs_of(values, 20), P, eps, steps=20)
            assert found.status == "ok"
            assert found.count == pytest.approx(found.half_steps, rel=0.01)

    def test_sides_apart(self) -> None:
        values = np.concatenate([np.full(300, 1.0), np.full(100, -1.0), np.zeros(600)])
        found = quadrature_rank(runs_of(values, 10, 30), 1000, 0.5, steps=10)
        assert found.positive == pytest.approx(300, abs=15)
        assert found.negative == pytest.approx(100, abs=10)
        assert found.count == pytest.approx(found.positive + found.negative)
        assert found.fraction == pytest.approx(found.count / 1000)

    def test_up_to_an_edge(self) -> None:
        values = np.concatenate([np.full(50, 5.0), np.full(300, 1.0), np.zeros(650)])
        found = quadrature_rank(runs_of(values, 10, 30), 1000, 0.5, upper=2.0, steps=10)
        assert found.positive == pytest.approx(300, abs=20)
        assert found.low is not None
        assert found.high is not None
        assert found.low < 300 < found.high

    def test_one_probe_has_no_interval(self) -> None:
        found = quadrature_rank(runs_of(like_a_network(), 30, 1), P, 0.1, steps=30)
        assert found.low is None
        assert found.high is None

    def test_under_rounding(self) -> None:
        found = quadrature_rank(runs_of(like_a_network(), 30), P, 1e-7, steps=30, noise=1e-6)
        assert found.status == "below-resolution"

    @pytest.mark.parametrize("size", [1, 5])
    def test_of_zero(self, size: int) -> None:
        found = quadrature_rank(runs_of(np.zeros(size), 10), size, 0.0, steps=10)
        assert (found.count, found.low, found.high, found.status) == (0, 0, 0, "ok")

    def test_a_single_parameter(self) -> None:
        found = quadrature_rank(runs_of(np.array([2.0]), 10), 1, 1.0, steps=10)
        assert (found.count, found.low, found.high, found.status) == (1, 1, 1, "ok")


class TestGrid:
    def test_climbs_from_rounding_to_the_largest(self) -> None:
        grid = eps_grid(10.0, 1e-3)
        assert grid[0] == pytest.approx(1e-3)
        assert 5.0 < grid[-1] < 10.0
        assert np.allclose(np.diff(np.log(grid)), np.diff(np.log(grid))[0])
        assert eps_grid(10.0, 0.0)[0] == pytest.approx(1e-5)

    def test_of_nothing_is_empty(self) -> None:
        assert eps_grid(0.0, 0.0) == []


class TestDensity:
    def test_integrates_to_one_and_states_its_width(self) -> None:
        rules = [r.rule() for r in runs_of(like_a_network(), 30, 3)]
        for width in (None, 0.5):
            found = density(rules, points=4000, width=width)
            assert np.trapezoid(found.y, found.x) == pytest.approx(1.0, abs=5e-3)
            assert width is None or found.width == width

    def test_of_one_node_is_a_gaussian(self) -> None:
        found = density([runs_of(np.full(4, 2.0), 3, 1)[0].rule()], points=101, width=0.1)
        expected = np.exp(-0.5 * ((found.x - 2.0) / 0.1) ** 2) / (0.1 * np.sqrt(2 * np.pi))
        assert np.allclose(found.y, expected)

    def test_of_no_probe_is_refused(self) -> None:
        with pytest.raises(UsageError):
            density([])
        with pytest.raises(UsageError):
            paper_rank([], 0.1)

    @pytest.mark.parametrize("options", [{"points": 1}, {"width": 0.0}])
    def test_of_no_width_is_refused(self, options: dict) -> None:
        with pytest.raises(UsageError):
            density([r.rule() for r in runs_of(np.ones(3), 3, 1)], **options)
