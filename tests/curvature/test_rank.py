"""Ranks against closed forms, and the interval's coverage against simulated projectors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clcurv.curvature.rank import approximate_rank, count_interval, effective_rank, weight_beyond
from clcurv.errors import NumericalError, UsageError


class TestEffectiveRank:
    @pytest.mark.parametrize("d", [1, 2, 7, 1000])
    def test_of_the_identity_is_its_size(self, d: int) -> None:
        assert effective_rank(np.ones(d)) == pytest.approx(d, rel=1e-12)

    def test_of_rank_one_is_one(self) -> None:
        sigma = np.linalg.svd(np.outer([1.0, 2.0, -3.0], [4.0, 5.0]), compute_uv=False)
        assert effective_rank(sigma) == pytest.approx(1.0, abs=1e-12)

    def test_of_two_unequal_values(self) -> None:
        """p = 3/4, 1/4: exp(-(3/4 ln 3/4 + 1/4 ln 1/4))."""
        expected = math.exp(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)))
        assert effective_rank([1.0, 3.0, 0.0]) == pytest.approx(expected, rel=1e-12)

    @given(
        st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=30),
        st.sampled_from([1e-300, 1e-20, 7.0, 1e300]),
    )
    def test_does_not_depend_on_the_scale(self, sigma: list[float], scale: float) -> None:
        scaled = [s * scale for s in sigma]
        assert effective_rank(scaled) == pytest.approx(effective_rank(sigma), rel=1e-9)
        assert 1 - 1e-9 <= effective_rank(sigma) <= len(sigma) + 1e-9

    def test_of_nothing_is_nothing(self) -> None:
        assert effective_rank([]) == 0.0
        assert effective_rank(np.zeros(4)) == 0.0

    def test_takes_tensors(self) -> None:
        assert effective_rank(torch.ones(3)) == pytest.approx(3.0)

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
    def test_refuses_what_is_no_singular_value(self, bad: float) -> None:
        with pytest.raises(NumericalError, match="singular values"):
            effective_rank([1.0, bad])


class TestApproximateRank:
    def test_by_hand(self) -> None:
        """Squares 9, 1, 1 of 11: two hold 10/11 = 0.909."""
        assert approximate_rank([1.0, 3.0, 1.0], 0.9) == 2
        assert approximate_rank([1.0, 3.0, 1.0], 0.91) == 3
        assert approximate_rank([1.0, 3.0, 1.0], 1.0) == 3

    def test_of_equal_values(self) -> None:
        assert approximate_rank(np.ones(100)) == 99
        assert approximate_rank(np.full(100, 1e-200)) == 99
        assert approximate_rank(np.zeros(5)) == 0
        assert approximate_rank([2.0]) == 1

    def test_refuses_a_share_beyond_all(self) -> None:
        with pytest.raises(UsageError):
            approximate_rank([1.0], 1.5)


def test_weight_beyond_is_strict_and_keeps_the_sides_apart() -> None:
    nodes, weights = [-3.0, -1.0, 0.0, 1.0, 2.0], [0.1, 0.2, 0.3, 0.25, 0.15]
    assert weight_beyond(nodes, weights, 1.0) == pytest.approx((0.15, 0.1))
    assert weight_beyond(nodes, weights, 0.5) == pytest.approx((0.4, 0.3))
    assert weight_beyond(nodes, weights, 0.5, upper=2.0) == pytest.approx((0.4, 0.2))


class TestCountInterval:
    @pytest.mark.parametrize(
        ("dimension", "rank", "probes"),
        [(1000, 1, 1), (1000, 1, 10), (1000, 2, 3), (1000, 50, 10), (300, 290, 5), (40, 20, 2)],
    )
    def test_covers_the_rank_as_often_as_it_says(
        self, dimension: int, rank: int, probes: int
    ) -> None:
        """Energies of random unit vectors in the first `rank` coordinates; a t interval covers
        a rank of 1 with 10 probes in 83 % of the draws."""
        rng = np.random.default_rng(dimension + rank)
        draws, hits = 1000, 0
        for _ in range(draws):
            v = rng.standard_normal((probes, dimension)) ** 2
            low, high = count_interval(list(v[:, :rank].sum(1) / v.sum(1)), dimension)
            hits += low <= rank <= high
        assert abs(hits / draws - 0.95) < 4 * math.sqrt(0.95 * 0.05 / draws)

    def test_is_certain_at_both_ends(self) -> None:
        assert count_interval([0.0, 0.0], 50) == (0.0, 0.0)
        assert count_interval([1.0, 1.0], 50) == (50.0, 50.0)

    @given(
        st.lists(st.floats(0, 1), min_size=1, max_size=8),
        st.integers(1, 10**8),
    )
    def test_holds_the_estimate_and_stays_possible(self, shares: list[float], size: int) -> None:
        low, high = count_interval(shares, size)
        seen = size * float(np.mean(shares))
        assert 0 <= low <= seen * (1 + 1e-6) + 1e-6
        assert seen * (1 - 1e-6) - 1e-6 <= high <= size
