"""Verdicts over streams of chosen numbers."""

import pytest
from spectrum_results import (
    failed_task,
    make_features,
    make_modes,
    make_rank,
    make_result,
    make_spectrum,
    make_task,
)

from clcurv.recommend.l2er import judge


def stream(fractions=(), eranks=(), shares=(), **changes):
    n = max(map(len, (fractions, eranks, shares)))
    tasks = [
        make_task(
            i + 1,
            fractions[i] if fractions else 0.05,
            erank=eranks[i] if eranks else 30.0,
            share=shares[i] if shares else 0.9,
        )
        for i in range(n)
    ]
    return make_result(tasks=tasks, **changes)


DOWN = (0.05, 0.03, 0.01, 0.01)
RANKS = (30, 25, 15, 14)
SHARES = (0.9, 0.6, 0.3, 0.3)


def test_all_three_fall():
    verdict = judge(stream(DOWN, RANKS, SHARES))
    assert verdict.verdict == "collapsed"
    assert [s.name for s in verdict.signals] == [
        "eps_rank.fast", "fast_modes.share", "effective_rank",
    ]  # fmt: skip
    assert [s.agrees for s in verdict.signals] == [True] * 3
    assert verdict.signals[0].ratio == pytest.approx(0.2)
    assert verdict.signals[2].reference == pytest.approx(22.5)  # mean of 30 and 15
    assert verdict.late == (4,)
    assert "5 % at the first task (×0.20)" in verdict.evidence
    assert "a risk, not a proof" in verdict.evidence


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({"fractions": DOWN}, "at risk"),
        ({"eranks": RANKS}, "at risk"),
        ({"fractions": DOWN, "eranks": RANKS}, "at risk"),
        ({"fractions": DOWN, "shares": SHARES}, "at risk"),
        ({"shares": SHARES}, "healthy"),  # hangs on a few samples
        ({"eranks": (30, 29, 28, 27)}, "healthy"),
        ({"eranks": (30, 40, 50, 60)}, "healthy"),
    ],
)
def test_anything_less_is_no_collapse(parts, expected):
    verdict = judge(stream(**parts))
    assert verdict.verdict == expected
    assert "collapse" not in verdict.evidence.lower()


def test_without_lr_and_steps_it_is_never_called_a_collapse():
    tasks = [
        make_task(i, erank=e, fast_modes=None, spectrum=make_spectrum(f, fast=False))
        for i, (f, e) in enumerate(zip(DOWN, RANKS, strict=True), 1)
    ]
    verdict = judge(make_result(tasks=tasks, lr=None, steps=None))
    assert verdict.verdict == "at risk"
    assert verdict.signals[0].name == "eps_rank.relative"
    assert verdict.signals[1].agrees is None
    assert "one of three figures is missing" in verdict.evidence


def test_one_bad_task_among_the_late_ones_decides_nothing():
    eranks = [30.0] * 11 + [30.0, 10.0, 29.0, 31.0]
    verdict = judge(stream(eranks=eranks))
    assert verdict.late == (12, 13, 14, 15)
    assert verdict.verdict == "healthy"


def test_tasks_that_scatter_about_the_reference_do_not_fall():
    shares = [0.3] * 12 + [0.05, 0.4, 0.05, 0.31]
    late = judge(stream(shares=shares)).signals[1]
    assert late.value < 0.8 * late.reference
    assert late.agrees is False


def test_overlapping_intervals_over_the_probes_decide_nothing():
    wide = make_rank(0.05, low=0.01, high=0.2, upper=200.0)
    narrow = make_rank(0.03, low=0.005, high=0.02, upper=200.0)
    tasks = [make_task(1, spectrum=make_spectrum(rank_fast=wide))]
    tasks += [make_task(i, spectrum=make_spectrum(rank_fast=narrow)) for i in (2, 3)]
    signal = judge(make_result(tasks=tasks)).signals[0]
    assert (signal.direction, signal.agrees) == ("flat", False)
    assert "overlap" in signal.reason


def test_what_is_not_resolved_is_not_used():
    def tasks(relative, **changes):
        unresolved = {"status": "not-resolved", "reason": "m and m/2 steps differ"}
        spectrum = make_spectrum(
            rank_fast=make_rank(0.001, upper=200.0, **unresolved),
            rank_relative=make_rank(0.04, **({} if relative else unresolved)),
        )
        return [make_task(i, spectrum=spectrum, **changes) for i in range(1, 5)]

    other = judge(make_result(tasks=tasks(True))).signals[0]
    assert (other.name, other.agrees) == ("eps_rank.relative", False)
    neither = judge(make_result(tasks=tasks(False)))
    assert (neither.signals[0].name, neither.signals[0].agrees) == ("eps_rank.fast", None)
    assert "m and m/2 steps differ" in neither.evidence
    assert neither.verdict == "healthy"
    gone = tasks(False, fast_modes=make_modes(status="not-resolved"))
    assert judge(make_result(tasks=gone)).verdict == "inconclusive"


def test_one_task_shows_no_trend():
    verdict = judge(make_result(tasks=[make_task(1)]))
    assert verdict.verdict == "inconclusive"
    assert "--reference fresh" in verdict.evidence


def test_one_task_beside_a_fresh_copy():
    result = make_result(
        tasks=[make_task(1, 0.01, erank=10, share=0.2)], reference=make_task(1),
        reference_kind="fresh",
    )  # fmt: skip
    verdict = judge(result)
    assert verdict.verdict == "collapsed"
    assert "in a fresh copy" in verdict.evidence


def test_failed_tasks_are_passed_over():
    tasks = [*stream(DOWN, RANKS, SHARES).tasks, failed_task(5)]
    verdict = judge(make_result(tasks=tasks))
    assert verdict.verdict == "collapsed"
    assert 5 not in verdict.late
    failed = [failed_task(1), failed_task(2)]
    assert judge(make_result(tasks=failed, reference=failed[0])).verdict == "inconclusive"


def test_effective_ranks_of_few_rows_are_compared_at_equal_n_only():
    def task(index, n, erank):
        few = make_features(erank, n=n, enough=False, ceiling=min(n, 100))
        return make_task(index, features=(few,))

    same = judge(make_result(tasks=[task(1, 200, 30), task(2, 200, 10)]))
    assert same.signals[2].agrees is True
    other = judge(make_result(tasks=[task(1, 200, 30), task(2, 50, 10)]))
    assert other.signals[2].agrees is None


@pytest.mark.parametrize(("error", "agrees"), [(0.0, True), (2.0, True), (5.0, False)])
def test_a_fall_within_the_errors_over_the_data_is_none(error, agrees):
    """Reference and end 22.5 and 11.25: the difference is 1.59 of √2 · 5, and 4.0 of √2 · 2."""
    tasks = [make_task(i, erank=e, erank_stderr=error) for i, e in ((1, 30.0), (2, 15.0))]
    signal = judge(make_result(tasks=tasks)).signals[2]
    assert signal.agrees is agrees
    assert ("within errors" in signal.reason) is not agrees
    tasks = [make_task(i, share=s, share_stderr=error / 100) for i, s in ((1, 0.225), (2, 0.1125))]
    signal = judge(make_result(tasks=tasks)).signals[1]
    assert (signal.name, signal.agrees) == ("fast_modes.share", agrees)
