from __future__ import annotations

import pytest

from clcurv.errors import NumericalError, UsageError
from clcurv.training.search_plan import (
    SearchSettings,
    Trial,
    ceiling,
    chosen_trial,
    is_acceptable,
    next_plan,
    reference_trial,
    uniform_trial,
)


def run(score, *, rates=(0.1,), most=10, largest=2.0, up_matters=True, **more):
    """The search with a made-up score of every plan; None diverges."""
    settings = SearchSettings(learning_rates=rates, max_trials=most, **more)
    trials = []
    while True:
        plan = next_plan(settings, trials, largest_importance=largest, up_matters=up_matters)
        if plan is None:
            return trials
        value = score(plan)
        if plan.phase == "reference":
            fine = value is not None
        else:
            fine = is_acceptable(value, reference_trial(trials).score, settings.allowed_drop)
        trials.append(
            Trial(
                plan.phase, plan.number, plan.lr, plan.lambda_, plan.lambda_down, plan.m,
                "diverged" if value is None else "ok", value, None if value is None else -value,
                fine, 1, 0.0,
            )
        )  # fmt: skip
        assert len(trials) < 99


def phases(trials):
    return [t.phase for t in trials]


def test_the_usual_course():
    """λ falls by .9 until 10 % are lost at most; λ_down by .8 until the score beats that."""

    def score(plan):
        if plan.phase == "reference":
            return {0.1: 0.9, 0.3: 0.95}[plan.lr]
        if plan.phase == "uniform":
            return {1: 0.6, 2: 0.7, 3: 0.86}[plan.number]
        return {1: 0.8, 2: 0.855, 3: 0.87}[plan.number]

    trials = run(score, rates=(0.1, 0.3))
    assert phases(trials) == ["reference"] * 2 + ["uniform"] * 3 + ["lambda-down"] * 3
    assert reference_trial(trials).lr == 0.3
    start = 1 / (0.3 * 2.0)
    assert [t.lambda_ for t in trials[2:5]] == pytest.approx([start, 0.9 * start, 0.81 * start])
    assert {t.lambda_ for t in trials[5:]} == {trials[4].lambda_}
    assert [t.lambda_down for t in trials[5:]] == pytest.approx([1.0, 0.8, 0.64])
    assert uniform_trial(trials) is trials[4]
    assert chosen_trial(trials) is trials[7]


def test_then_lambda_up_falls_too():
    def score(plan):
        if plan.phase == "reference":
            return 1.0
        if plan.phase == "uniform":
            return 0.95
        return 0.9 if plan.phase == "lambda-down" or plan.number < 3 else 0.96

    trials = run(score, most=4)
    assert phases(trials) == [
        "reference", "uniform", *["lambda-down"] * 4, *["lambda-up"] * 3
    ]  # fmt: skip
    assert [t.m for t in trials[-3:]] == pytest.approx([0.9, 0.8, 0.7])
    assert {t.lambda_down for t in trials[-3:]} == {trials[5].lambda_down}
    assert phases(run(score, most=4, up_matters=False))[-1] == "lambda-down"


def test_m_ends_at_zero_and_every_phase_at_its_most():
    trials = run(lambda plan: 1.0 if plan.phase == "reference" else 0.0, rates=(0.1,) * 20)
    assert {p: phases(trials).count(p) for p in set(phases(trials))} == {
        "reference": 10, "uniform": 10, "lambda-down": 10, "lambda-up": 10
    }  # fmt: skip
    assert trials[-1].m == 0.0
    assert not chosen_trial(trials).acceptable


def test_the_best_acceptable_trial_is_kept_not_the_last():
    scores = {1: 0.93, 2: 0.91, 3: 0.5, 4: 0.92}

    def score(plan):
        return {"reference": 1.0, "uniform": 0.95}.get(plan.phase) or scores.get(plan.number, 0.1)

    trials = run(score, most=4)
    assert chosen_trial(trials).phase == "lambda-down"
    assert chosen_trial(trials).number == 1


def test_without_an_acceptable_relative_trial_the_uniform_one_is_kept():
    values = {"reference": 1.0, "uniform": 0.95}
    trials = run(lambda plan: values.get(plan.phase, 0.2), most=3)
    assert chosen_trial(trials).phase == "uniform"
    assert chosen_trial(trials).acceptable


def test_a_relative_trial_may_rescue_what_no_uniform_one_did():
    values = {"reference": 1.0, "uniform": 0.5}

    def score(plan):
        return values.get(plan.phase) or (0.7 if plan.number < 3 else 0.92)

    trials = run(score, most=4)
    assert phases(trials)[-3:] == ["lambda-down"] * 3  # 0.7 beats 0.5, and is not enough
    assert not uniform_trial(trials).acceptable
    assert chosen_trial(trials) is trials[-1]


def test_diverged_trials_are_passed_over():
    def score(plan):
        if plan.phase == "reference":
            return None if plan.lr > 0.5 else 0.9
        return None if plan.number < 3 else 0.88

    trials = run(score, rates=(1.0, 0.1))
    assert reference_trial(trials).lr == 0.1
    assert phases(trials)[2:5] == ["uniform"] * 3
    assert uniform_trial(trials).number == 3
    assert chosen_trial(trials).score == 0.88
    with pytest.raises(NumericalError, match="every learning rate"):
        run(lambda plan: None)


def test_all_uniform_trials_may_diverge():
    def score(plan):
        return 0.9 if plan.phase == "reference" else None if plan.phase == "uniform" else 0.85

    trials = run(score, most=3)
    assert phases(trials) == ["reference", *["uniform"] * 3, "lambda-down"]
    assert trials[-1].lambda_ == trials[-2].lambda_
    assert chosen_trial(trials) is trials[-1]


def test_scores_below_zero():
    """Minus a loss: a tenth of its size may be lost."""
    assert is_acceptable(-1.1, -1.0, 0.1)
    assert not is_acceptable(-1.2, -1.0, 0.1)
    assert not is_acceptable(None, -1.0, 0.1)


def test_the_ceiling():
    assert ceiling(0.1, 5.0) == pytest.approx(2.0)
    for nothing in (0.0, float("nan"), float("inf")):
        with pytest.raises(NumericalError, match="nothing to hold"):
            ceiling(0.1, nothing)


def test_equal_scores_go_to_the_lower_loss_then_to_the_first():
    def trial(number, loss):
        return Trial("reference", number, 0.1 * number, 0, 1, 1, "ok", 0.9, loss, True, 1, 0.0)

    assert reference_trial([trial(1, 0.5), trial(2, 0.3), trial(3, 0.3)]).number == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"learning_rates": ()}, {"learning_rates": (0.0,)}, {"allowed_drop": 1.0},
        {"max_trials": 0}, {"lambda_decay": 1.0}, {"down_decay": 0.0}, {"up_step": -1.0},
    ],
)  # fmt: skip
def test_settings_out_of_range(wrong):
    with pytest.raises(UsageError):
        SearchSettings(**{"learning_rates": (0.1,), **wrong})


def test_planning_needs_no_torch():
    import subprocess
    import sys

    code = "import sys, clcurv.training.search_plan; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
