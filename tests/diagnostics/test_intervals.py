"""Standard errors by the textbook, intervals by simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from clcurv.diagnostics.intervals import log_ratio_interval, share_stderr


def test_equal_chunks_give_the_textbook_standard_error_of_a_mean() -> None:
    values = np.array([1.0, 2.0, 4.0, 7.0, 11.0])
    found = share_stderr((values / 5).tolist(), [0.2] * 5)
    assert found == pytest.approx(values.std(ddof=1) / np.sqrt(5))
    assert found == pytest.approx(stats.sem(values))


def test_a_ragged_last_chunk_counts_less() -> None:
    """Ratio estimator: deviations of every chunk's total from its expected part."""
    sizes, means = np.array([10, 10, 10, 1]), np.array([1.0, 2.0, 3.0, 50.0])
    weights = sizes / sizes.sum()
    mean = float(weights @ means)
    expected = np.sqrt(((weights * (means - mean)) ** 2).sum() * 4 / 3)
    assert share_stderr((weights * means).tolist(), weights.tolist()) == pytest.approx(expected)


def test_equal_chunk_means_have_no_error() -> None:
    assert share_stderr([0.6, 0.3, 0.3], [0.5, 0.25, 0.25]) == pytest.approx(0, abs=1e-15)


def test_a_chunk_without_terms_is_allowed() -> None:
    assert share_stderr([1.0, 0.5, 0.0], [0.6, 0.4, 0.0]) is not None


@pytest.mark.parametrize("count", [0, 1])
def test_no_spread_from_one_chunk(count: int) -> None:
    assert share_stderr([1.0] * count, [1.0] * count) is None
    assert log_ratio_interval([1.0] * count, [1.0] * count, [1.0] * count) is None


def test_standard_error_matches_the_spread_over_repetitions() -> None:
    rng = np.random.default_rng(0)
    shares = rng.gamma(4, 1 / 16, (2000, 16)) / 4
    claimed = [share_stderr(s.tolist(), [1 / 16] * 16) for s in shares]
    assert np.mean(claimed) == pytest.approx(shares.sum(1).std(), rel=0.05)


@pytest.mark.parametrize("chunks", [4, 16])
@pytest.mark.parametrize("correlation", [0.0, 0.8])
@pytest.mark.parametrize("ragged", [False, True])
def test_the_interval_covers_the_true_ratio(chunks: int, correlation: float, ragged: bool) -> None:
    """Synthetic chunk means with true ratio 10; nominal 95 %."""
    rng = np.random.default_rng(0)
    sizes = np.full(chunks, 8.0)
    if ragged:
        sizes[-1] = 3
    weights = sizes / sizes.sum()
    hits, runs = 0, 600
    for _ in range(runs):
        common = rng.standard_normal(chunks)
        own = rng.standard_normal((2, chunks))
        noise = np.sqrt(correlation) * common + np.sqrt(1 - correlation) * own
        means = 1 + 0.4 * noise / np.sqrt(sizes / 8)
        low, high = log_ratio_interval(  # type: ignore[misc]
            (10 * weights * means[0]).tolist(), (weights * means[1]).tolist(), weights.tolist()
        )
        hits += low <= 10 <= high
    assert 0.90 <= hits / runs <= 0.99


def test_chunks_are_paired() -> None:
    """Both layers high on the same chunks: the ratio hardly varies."""
    x = [0.1, 0.4, 0.2, 0.3]
    together = log_ratio_interval([10 * v for v in x], x, [0.25] * 4)
    apart = log_ratio_interval([10 * v for v in x], x[::-1], [0.25] * 4)
    assert together == pytest.approx((10, 10))
    assert apart[1] - apart[0] > 1  # type: ignore[index]


def test_solver_error_widens_it() -> None:
    shares = ([1.0, 1.2, 0.9], [0.1, 0.11, 0.12], [1 / 3] * 3)
    low, high = log_ratio_interval(*shares)  # type: ignore[misc]
    wider = log_ratio_interval(*shares, solver_error=0.1)
    assert wider == pytest.approx((low * np.exp(-0.1), high * np.exp(0.1)))
    assert low < 3.1 / 0.33 < high


def test_level() -> None:
    shares = ([1.0, 1.2, 0.9], [0.1, 0.11, 0.12], [1 / 3] * 3)
    half = [
        np.log(log_ratio_interval(*shares, level=level)[1] / (3.1 / 0.33))  # type: ignore[index]
        for level in (0.5, 0.95)
    ]
    assert half[1] / half[0] == pytest.approx(stats.t.ppf(0.975, 2) / stats.t.ppf(0.75, 2))


@pytest.mark.parametrize("bad", [[-1.0, 0.5], [0.0, 0.0]])
def test_no_interval_of_a_ratio_that_is_not_positive(bad: list[float]) -> None:
    assert log_ratio_interval(bad, [1.0, 1.0], [0.5, 0.5]) is None
    assert log_ratio_interval([1.0, 1.0], bad, [0.5, 0.5]) is None
