"""Influences against numerical derivatives of the weighted statistic, errors against new draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from clcurv.curvature.influence import effective_rank_slope, share_influence, stderr_of

H = 1e-6


def erank(second: np.ndarray) -> float:
    sigma = np.sqrt(np.linalg.eigvalsh(second).clip(min=0))
    p = sigma[sigma > 0] / sigma.sum()
    return float(np.exp(-(p * np.log(p)).sum()))


def rank_influences(rows: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(rows.T @ rows)
    return ((rows @ vectors) ** 2) @ effective_rank_slope(values)


def derivative(statistic, n: int) -> np.ndarray:
    """∂T/∂w_s at w = 1, by central differences."""
    steps = np.eye(n) * H
    return np.array([(statistic(1 + e) - statistic(1 - e)) / (2 * H) for e in steps])


def test_effective_rank() -> None:
    rows = np.random.default_rng(0).normal(size=(30, 6)) * np.arange(1, 7)
    expected = derivative(lambda w: erank((rows * w[:, None]).T @ rows), 30)
    assert rank_influences(rows) == pytest.approx(expected, rel=1e-6, abs=1e-8)
    assert rank_influences(rows).sum() == pytest.approx(0, abs=1e-12)


def test_directions_that_are_zero_have_no_slope() -> None:
    assert effective_rank_slope([0.0, 4.0, 4.0])[0] == 0
    assert effective_rank_slope([0.0, 0.0]).tolist() == [0, 0]
    # All equal is the largest rank there is: a flat top.
    assert effective_rank_slope([4.0, 4.0]) == pytest.approx([0, 0], abs=1e-15)


def problem(seed: int, n: int = 40, d: int = 12) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, d)) / np.arange(1, d + 1)
    return rows, rows @ rng.normal(size=d) + rng.normal(size=n)


def share(rows: np.ndarray, start: np.ndarray, count: int, w: np.ndarray) -> float:
    root = np.sqrt(w)
    rows, start = rows * root[:, None], start * root
    _, vectors = np.linalg.eigh(rows @ rows.T)
    return float(((vectors[:, -count:].T @ start) ** 2).sum() / (start @ start))


@pytest.mark.parametrize("count", [1, 4, 11])
def test_share_of_some_modes(count: int) -> None:
    rows, start = problem(0)
    gram = torch.from_numpy(rows @ rows.T)
    values, vectors = torch.linalg.eigh(gram)
    inside = torch.arange(len(start)) >= len(start) - count
    found = share_influence(values, vectors, torch.from_numpy(start), inside).numpy()
    expected = derivative(lambda w: share(rows, start, count, w), len(start))
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-8)


def test_all_or_no_modes_leave_no_doubt() -> None:
    rows, start = problem(0)
    values, vectors = torch.linalg.eigh(torch.from_numpy(rows @ rows.T))
    for inside in (torch.ones(len(start)), torch.zeros(len(start))):
        found = share_influence(values, vectors, torch.from_numpy(start), inside.bool())
        assert float(found.abs().max()) < 1e-12


def test_errors_are_the_spread_over_new_data() -> None:
    def draw(seed: int) -> np.ndarray:
        noise = np.random.default_rng(seed).normal(size=(300, 20))
        return np.maximum(noise / np.arange(1, 21) ** 0.5, 0)

    stated = stderr_of(rank_influences(draw(0)))
    spread = np.std([erank(x.T @ x) for x in map(draw, range(1, 301))])
    assert stated == pytest.approx(spread, rel=0.2)


def test_rows_of_one_sample_count_together() -> None:
    assert stderr_of([1.0, -1.0, 2.0, -2.0], [2, 2]) == pytest.approx(0, abs=1e-15)
    assert stderr_of([1.0, 2.0, -3.0], [2, 0, 1]) == pytest.approx(np.sqrt(18))
    assert stderr_of([3.0, -4.0]) == pytest.approx(5)
    assert stderr_of([1.0]) is None
    assert stderr_of([1.0, np.nan]) is None
