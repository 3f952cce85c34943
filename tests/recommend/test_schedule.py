from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kappa_results import make_layer, make_result

from clcurv.errors import UsageError
from clcurv.recommend.schedule import recommend_schedule


def lambdas(schedule):
    return [g.lambda_ for g in schedule.groups]


def weighted_mean(values, weights):
    return sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)


def test_exact_geometric_profile_gives_gamma_and_lambda_by_hand():
    # s halves per layer: γ = 1/2; numel 1, 2, 1, 4, 8; range 16 > 10 without a limit.
    result = make_result([16.0, 8.0, 4.0, 2.0, 1.0], numel=[1, 2, 1, 4, 8])
    schedule = recommend_schedule(result, max_range=100.0)
    assert schedule.gamma == pytest.approx(0.5, rel=1e-12)
    assert (schedule.gamma_low, schedule.gamma_high) == pytest.approx((0.5, 0.5))
    assert schedule.direction == "early"
    assert schedule.r2 == pytest.approx(1.0)
    assert schedule.spearman == pytest.approx(-1.0)
    # unnormalised 16 8 4 2 1 weighted by numel: (16+16+4+8+8)/16 = 3.25
    assert lambdas(schedule) == pytest.approx([x / 3.25 for x in (16, 8, 4, 2, 1)])
    # 1/λ ∝ 1 2 4 8 16: (1+4+4+32+128)/16 = 10.5625
    assert [g.lr_scale for g in schedule.groups] == pytest.approx(
        [max(x / 10.5625, 0.1) for x in (1, 2, 4, 8, 16)]
    )


def test_range_is_limited_to_ten_with_a_constant_ratio():
    schedule = recommend_schedule(make_result([4.0**-i for i in range(6)]))
    values = lambdas(schedule)
    ratios = [b / a for a, b in itertools.pairwise(values)]
    assert ratios == pytest.approx([10 ** (-1 / 5)] * 5)
    assert schedule.gamma == pytest.approx(0.25)
    assert schedule.gamma_applied == pytest.approx(10 ** (-1 / 5))
    assert schedule.range == pytest.approx(10)
    assert schedule.range_limited
    assert any("span 1020×" in w for w in schedule.warnings)  # 4^5 = 1024


def test_direction_late():
    schedule = recommend_schedule(make_result([1.0, 1.5, 2.25, 3.375, 5.0625]))
    assert schedule.direction == "late"
    assert schedule.gamma == pytest.approx(1.5)
    assert lambdas(schedule) == sorted(lambdas(schedule))
    scales = [g.lr_scale for g in schedule.groups]
    assert scales == sorted(scales, reverse=True)


def test_no_trend_is_uniform_and_says_so():
    schedule = recommend_schedule(make_result([1.0, 3.0, 0.9, 2.8, 1.1, 3.1]))
    assert (schedule.mode, schedule.requested) == ("uniform", "geometric")
    assert schedule.direction == "flat"
    assert schedule.gamma_low < 1 < schedule.gamma_high
    assert "contains 1" in schedule.advice
    assert lambdas(schedule) == [1.0] * 6
    assert [g.lr_scale for g in schedule.groups] == [1.0] * 6


def test_spread_within_standard_errors_is_uniform():
    s = [1.0, 0.98, 0.96, 0.94, 0.92]
    assert recommend_schedule(make_result(s, stderr=[1e-4] * 5)).direction == "early"
    noisy = recommend_schedule(make_result(s, stderr=[0.2] * 5))
    assert noisy.direction == "flat"
    assert "standard errors" in noisy.advice


def test_one_outlier_does_not_move_gamma():
    s = [0.8**i for i in range(12)]
    s[6] *= 50
    assert recommend_schedule(make_result(s)).gamma == pytest.approx(0.8, rel=0.02)


def test_agrees_with_scipy():
    from scipy.stats import theilslopes

    s = np.exp(np.random.default_rng(3).normal(size=20) + 0.4 * np.arange(20))
    schedule = recommend_schedule(make_result(list(s)))
    slope, _, low, high = theilslopes(np.log(s), np.arange(20), 0.95)
    assert [schedule.gamma, schedule.gamma_low, schedule.gamma_high] == pytest.approx(
        np.exp([slope, low, high])
    )
    assert schedule.spearman == pytest.approx(
        np.corrcoef(np.argsort(np.argsort(s)), np.arange(20))[0, 1]
    )


def test_few_layers():
    two = recommend_schedule(make_result([4.0, 1.0]))
    assert two.mode == "uniform"
    assert "2 of 3 layers" in two.advice
    assert two.gamma is None
    four = recommend_schedule(make_result([8.0, 4.0, 2.0, 1.0]))
    assert four.level == pytest.approx(1 - 2 / 24)  # 4! orders, two of them monotone
    assert any("92 %" in w for w in four.warnings)


def test_power_and_literal_by_hand():
    s = [9.0, 4.0, 1.0, 1.0]
    power = recommend_schedule(make_result(s), mode="power")
    assert lambdas(power) == pytest.approx([x / 1.75 for x in (3, 2, 1, 1)])
    with pytest.raises(UsageError, match="4 to 14 %"):
        recommend_schedule(make_result(s), mode="literal")
    with pytest.raises(UsageError, match="literal"):
        recommend_schedule(make_result(s), mode="power", power=1.0)
    literal = recommend_schedule(make_result(s), mode="literal", force=True)
    assert lambdas(literal) == pytest.approx([x / 3.75 for x in (9, 4, 1, 1)])
    assert any("4 to 14 %" in w for w in literal.warnings)


def test_range_limit_shrinks_the_exponent_of_any_mode():
    s = [1000.0, 100.0, 10.0, 1.0]
    schedule = recommend_schedule(make_result(s), mode="literal", force=True)
    ratios = [a / b for a, b in itertools.pairwise(lambdas(schedule))]
    assert ratios == pytest.approx([10 ** (1 / 3)] * 3)


def test_isotonic_is_monotone_and_pools_by_hand():
    # log2 s = 3, 1, 2, 0: decreasing fit pools the middle two to 1.5
    schedule = recommend_schedule(make_result([8.0, 2.0, 4.0, 1.0]), mode="isotonic")
    raw = [2**3, 2**1.5, 2**1.5, 1]
    mean = sum(raw) / 4
    assert lambdas(schedule) == pytest.approx([x / mean for x in raw])


def test_layers_that_are_not_ok():
    layers = [make_layer(f"b.{i}", i, 2.0**-i) for i in range(5)]
    layers[2] = dataclasses.replace(
        layers[2], s=-1.0, status="non-positive", reason="saddle at b.2"
    )
    layers[4] = dataclasses.replace(layers[4], s=None, status="unused")
    result = make_result(None, layers=layers)
    schedule = recommend_schedule(result, max_range=100)
    raw = [2.0**-i for i in range(5)]
    assert lambdas(schedule) == pytest.approx([x / (sum(raw) / 5) for x in raw])
    assert "saddle at b.2" in schedule.groups[2].reason
    power = recommend_schedule(result, mode="power", max_range=100)
    assert lambdas(power)[2] == lambdas(power)[4] == 1.0
    assert "not in the power rule" in power.groups[4].reason


def test_refused_kappa_is_uniform_with_the_reason():
    result = make_result(
        [4.0, 3.0, 2.0, 1.0, 0.5], status="refused", kappa=None, reason="s of blocks.2 is 0"
    )
    for mode in ("geometric", "power", "isotonic"):
        schedule = recommend_schedule(result, mode=mode)
        assert schedule.mode == "uniform"
        assert schedule.direction == "flat"
        assert "s of blocks.2 is 0" in schedule.advice
        assert schedule.regret_bound is None


def test_head_stays_outside_unless_asked():
    result = make_result([16.0, 8.0, 4.0, 2.0, 1.0], head=1e6)
    schedule = recommend_schedule(result, lam=3.0)
    assert schedule.gamma == pytest.approx(0.5)
    head = schedule.groups[-1]
    assert (head.lambda_, head.lr_scale) == (3.0, 1.0)
    assert "outside" in head.reason
    inside = recommend_schedule(result, include_head=True)
    assert inside.n_fitted == 6
    assert "outside" not in inside.groups[-1].reason


def test_lambda_interval_holds_the_value():
    s = np.exp(0.1 * np.random.default_rng(0).normal(size=10) - 0.2 * np.arange(10))
    for group in recommend_schedule(make_result(list(s)), lam=2.0).groups:
        assert group.lambda_low <= group.lambda_ <= group.lambda_high
        assert "95 %" in group.reason or "γ's interval" in group.reason


@pytest.mark.parametrize(
    "options",
    [{"lam": 0.0}, {"lam": math.nan}, {"max_range": 0.5}, {"power": -1.0}, {"mode": "magic"}],
)
def test_bad_options(options):
    with pytest.raises(UsageError):
        recommend_schedule(make_result([3.0, 2.0, 1.0]), **options)


@settings(max_examples=60, deadline=None)
@given(
    log_s=st.lists(st.floats(-300, 300), min_size=3, max_size=12),
    data=st.data(),
    mode=st.sampled_from(["geometric", "power", "isotonic", "literal", "uniform"]),
    lam=st.floats(1e-3, 1e3),
)
def test_normalised_limited_and_finite_for_any_profile(log_s, data, mode, lam):
    numel = data.draw(st.lists(st.integers(1, 10**6), min_size=len(log_s), max_size=len(log_s)))
    from types import SimpleNamespace

    layers = [
        SimpleNamespace(
            name=str(i),
            depth=i,
            s=math.exp(v),
            s_stderr=None,
            interval=None,
            status="ok",
            reason="",
            is_head=False,
            numel=n,
        )
        for i, (v, n) in enumerate(zip(log_s, numel, strict=True))
    ]
    result = SimpleNamespace(
        layers=layers, status="ok", reason="", kappa=10.0, new_task_grad_sq=None
    )
    schedule = recommend_schedule(result, mode=mode, lam=lam, force=True)
    values = lambdas(schedule)
    assert weighted_mean(values, numel) == pytest.approx(lam)
    assert max(values) / min(values) <= 10 * (1 + 1e-9)
    scales = [g.lr_scale for g in schedule.groups]
    assert all(0.1 <= x <= 10 for x in scales)
    assert weighted_mean(scales, numel) == pytest.approx(1.0)
    products = [v * s for v, s in zip(values, scales, strict=True)]
    assert products == pytest.approx([products[0]] * len(products))


def test_extreme_spread_stays_finite():
    schedule = recommend_schedule(make_result([1e-300, 1.0, 1e300]))
    assert schedule.range == pytest.approx(10)
    assert all(math.isfinite(x) for x in (schedule.gamma, schedule.gamma_high, *lambdas(schedule)))
