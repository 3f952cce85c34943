"""Rank correlation and top tenth against SciPy and by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from clcurv.diagnostics import agreement as room
from clcurv.diagnostics.agreement import Agreement, agreement


def correlated(n: int, seed: int = 0, noise: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    x = rng.exponential(size=n)
    return torch.tensor(x), torch.tensor(x * np.exp(noise * rng.standard_normal(n)))


def test_the_rank_correlation_is_scipys_with_ties() -> None:
    x, y = correlated(500)
    x[::3] = 0
    found = agreement(x, y)
    assert found.rank == pytest.approx(stats.spearmanr(x, y).statistic)


def test_the_interval_is_the_bootstrap_of_scipy() -> None:
    x, y = correlated(300)
    found = agreement(x, y)
    theirs = stats.bootstrap(
        (x.numpy(), y.numpy()),
        lambda a, b: stats.spearmanr(a, b).statistic,
        paired=True,
        vectorized=False,
        n_resamples=2000,
        method="percentile",
        rng=np.random.default_rng(1),
    ).confidence_interval
    assert found.rank_low == pytest.approx(theirs.low, abs=0.02)
    assert found.rank_high == pytest.approx(theirs.high, abs=0.02)


@pytest.mark.parametrize("kind", ["distinct", "ties", "zeros"])
def test_intervals_with_ties_are_those_of_elements_drawn_one_by_one(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "RESAMPLES", 2000)
    x, y = (t.numpy() for t in correlated(200))
    if kind == "ties":
        x, y = np.round(x, 1), np.round(y)
    if kind == "zeros":
        x[::4], y[1::3] = 0, 0
    rng = np.random.default_rng(3)
    ranks, overlaps = [], []
    for _ in range(2000):
        rows = rng.integers(200, size=200)
        a, b = x[rows], y[rows]
        ranks.append(stats.spearmanr(a, b).statistic)
        top = [(v >= np.sort(v)[-20]) & (v > 0) for v in (a, b)]
        overlaps.append((top[0] & top[1]).sum() / top[0].sum())
    found = agreement(torch.tensor(x), torch.tensor(y))
    assert (found.rank_low, found.rank_high) == pytest.approx(
        np.quantile(ranks, [0.025, 0.975]), abs=0.02
    )
    assert (found.overlap_low, found.overlap_high) == pytest.approx(
        np.quantile(overlaps, [0.025, 0.975]), abs=0.04
    )


@pytest.mark.parametrize("ties", [False, True])
def test_one_resample_is_scipys_of_the_elements_repeated(ties: bool) -> None:
    x, y = (np.round(t.numpy(), 1) if ties else t.numpy() for t in correlated(300))
    first, second = room._Order(x), room._Order(y)
    partner, back = second.place[first.order], first.place[second.order]
    for weights in room._resamples(300, np.random.default_rng(1)):
        a, b = (np.repeat(v[first.order], weights) for v in (x, y))
        found = room._spearman(first, second, partner, weights, weights[back])
        assert found == pytest.approx(stats.spearmanr(a, b).statistic, abs=1e-12)
        top = [v >= np.sort(v)[-30] for v in (a, b)]
        found = room._overlap(first, second, partner, weights, weights[back])
        assert found == (top[0] & top[1]).sum() / top[0].sum()


def test_the_interval_covers() -> None:
    x, y = correlated(20_000)
    true = float(stats.spearmanr(x, y).statistic)
    inside = 0
    for trial in range(40):
        rows = np.random.default_rng(trial).integers(20_000, size=400)
        found = agreement(x[rows], y[rows], seed=trial)
        inside += found.rank_low <= true <= found.rank_high
    assert inside >= 34


def test_the_top_tenth_by_hand() -> None:
    x = torch.arange(40.0).double()
    y = x.clone()
    y[38], y[0] = 0.0, 100.0  # one of four leaves
    found = agreement(x, y)
    assert found.overlap == 0.75
    assert found.overlap_low < 0.75 < found.overlap_high
    assert agreement(x, x).overlap == 1
    assert agreement(x, x.flip(0)) == Agreement(-1, -1, -1, 0, 0, 0)


def test_what_is_zero_is_in_no_top() -> None:
    x, y = torch.zeros(100).double(), torch.ones(100).double()
    x[:5] = 1
    found = agreement(x, x)
    assert (found.overlap, found.rank) == (1, 1)
    assert agreement(torch.zeros(100).double(), y).overlap is None
    assert agreement(x, y).rank is None  # constant
    other = torch.zeros(100).double()
    other[5:10] = 1
    assert agreement(x, other).overlap == 0


def test_few_elements() -> None:
    one = torch.ones(1).double()
    assert agreement(one, one) == Agreement()
    x = torch.arange(3.0).double()
    assert agreement(x, x) == Agreement(rank=1, overlap=1)


def test_large_tensors_are_drawn_from_with_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = correlated(20_000)
    whole = agreement(x, y)
    monkeypatch.setattr(room, "SUBSAMPLE", 2000)
    first, again, other = (agreement(x, y, seed=s) for s in (0, 0, 1))
    assert first == again != other
    assert first.rank_low < whole.rank < first.rank_high
    assert first.rank_high - first.rank_low > whole.rank_high - whole.rank_low
