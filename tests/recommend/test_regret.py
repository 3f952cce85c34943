from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clcurv.recommend.regret import measured_regret, regret_bound


@pytest.mark.parametrize(("kappa", "expected"), [(22, 0.592), (195, 0.858), (1, 0.0)])
def test_bound_of_the_paper(kappa, expected):
    assert regret_bound(kappa) == pytest.approx(expected, abs=5e-4)


def test_bound_at_infinity():
    assert regret_bound(math.inf) == 1.0


def layers(s):
    return [SimpleNamespace(name=str(i), s=x) for i, x in enumerate(s)]


def test_measured_by_hand():
    # s = 1, 4; g² = 1, 1: G = 2, S = 5, R = 1.25 -> 1 − 2/2.5 = 0.2
    assert measured_regret(layers([1.0, 4.0]), {"0": 1.0, "1": 1.0}) == pytest.approx(0.2)
    assert measured_regret(layers([1.0, 4.0]), {"1": 7.0}) == pytest.approx(0.0)
    assert measured_regret(layers([1.0, 4.0]), None) is None
    assert measured_regret(layers([1.0, 4.0]), {"0": 0.0}) is None


def test_worst_case_reaches_the_bound():
    # all of g in the extreme layers, S-weighted equally: g² ∝ 1 each at s = κ and 1
    assert measured_regret(layers([1.0, 9.0]), {"0": 1.0, "1": 1.0}) == pytest.approx(
        regret_bound(9.0)
    )


@given(st.lists(st.tuples(st.floats(1e-8, 1e8), st.floats(1e-200, 1e200)), min_size=1, max_size=8))
def test_never_above_the_bound(pairs):
    s = [p[0] for p in pairs]
    value = measured_regret(layers(s), {str(i): p[1] for i, p in enumerate(pairs)})
    assert 0 <= value <= regret_bound(max(s) / min(s)) + 1e-9
