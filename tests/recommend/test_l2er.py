"""Coefficients from measured scales."""

import subprocess
import sys

import pytest
from spectrum_results import make_result, make_task

from clcurv.errors import UsageError
from clcurv.recommend.l2er import (
    PUBLISHED_ER_LR,
    PUBLISHED_RATIO,
    SHARE,
    judge,
    recommend_l2er,
)


class Scale:
    """An `ErScale` of chosen numbers."""

    def __init__(self, er=10.0, task=1.0, layers=("2", "4"), window=150):
        self.er_gradient, self.task_gradient = er, task
        self.layers, self.window, self.effective_rank = layers, window, 20.0


def advise(scale=None, lr=0.1, result=None, **changes):
    result = result or make_result((0.05, 0.03, 0.01))
    return recommend_l2er(result, judge(result), scale, lr, **changes)


def test_the_step_is_a_share_of_the_tasks_own():
    scale = Scale(er=10.0, task=2.0)
    advice = advise(scale, lr=0.02, er_every=5)
    assert advice.er_lr * scale.er_gradient == pytest.approx(SHARE * 5 * 0.02 * scale.task_gradient)
    assert (advice.er_layers, advice.window, advice.er_every) == (("2", "4"), 150, 5)


@pytest.mark.parametrize("factor", [0.5, 3.0])
def test_it_scales_with_the_network(factor):
    base, other = advise(Scale(er=15)), advise(Scale(er=15 * factor))
    assert other.er_lr == pytest.approx(base.er_lr / factor)


def test_with_momentum_the_tasks_steps_are_longer():
    plain = advise(Scale(er=20), result=make_result((0.05, 0.03, 0.01)))
    moving = advise(Scale(er=20), result=make_result((0.05, 0.03, 0.01), momentum=0.5))
    assert moving.er_lr == pytest.approx(2 * plain.er_lr)
    assert moving.beta == pytest.approx(plain.beta)
    assert "momentum 0.5" in moving.derivation


def test_equivalents_of_the_objective():
    advice = advise(Scale())
    assert advice.lam == advice.weight_decay / 2 == 5e-4
    assert advice.beta == pytest.approx(advice.er_lr / (0.1 * advice.er_every * 2))


@pytest.mark.parametrize("lr", [1e-4, 1e-3, 1e-2, 0.1, 1.0])
@pytest.mark.parametrize("er", [1e-6, 1.0, 1e6])
def test_it_stays_within_what_is_published(lr, er):
    advice = advise(Scale(er=er), lr=lr)
    assert PUBLISHED_ER_LR[0] <= advice.er_lr <= PUBLISHED_ER_LR[1]
    assert advice.er_lr <= PUBLISHED_RATIO[1] * lr
    if PUBLISHED_RATIO[0] * lr <= PUBLISHED_ER_LR[1]:
        assert advice.er_lr >= PUBLISHED_RATIO[0] * lr


def test_without_a_measurement_the_middle_of_what_is_published():
    advice = advise(None, lr=0.01)
    assert advice.er_lr == pytest.approx(1e-3)
    assert advice.er_layers == ("body.2", "body.4")
    assert "not measured" in advice.derivation
    assert "zero in one" in advise(Scale(er=0.0), lr=0.01).derivation


def test_no_learning_rate():
    advice = advise(Scale(), lr=None, result=make_result((0.05, 0.03, 0.01), lr=None))
    assert advice.lr == 0.01
    assert "no learning rate was given, 0.01 is assumed" in advice.derivation
    assert advise(Scale(), lr=None).lr == 0.01  # the result's own
    assert "assumed" not in advise(Scale(), lr=None).derivation


def test_nothing_where_nothing_is_wrong():
    for result, word in (
        (make_result((0.05, 0.05, 0.05)), "healthy"),
        (make_result(tasks=[make_task(1)]), "inconclusive"),
    ):
        advice = advise(Scale(), result=result)
        numbers = (advice.weight_decay, advice.er_lr, advice.er_every, advice.window)
        assert (*numbers, advice.lam, advice.beta) == (0,) * 6
        assert word in advice.derivation


def test_no_features_leave_the_weight_decay():
    tasks = [make_task(i, f, share=18 * f, features=()) for i, f in ((1, 0.05), (2, 0.01))]
    advice = advise(None, result=make_result(tasks=tasks))
    assert (advice.weight_decay, advice.er_lr, advice.er_layers) == (1e-3, 0.0, ())


@pytest.mark.parametrize("bad", [{"lr": 0.0}, {"lr": float("nan")}, {"er_every": 0}])
def test_refusals(bad):
    with pytest.raises(UsageError):
        advise(Scale(), **bad)


def test_no_torch_is_needed():
    code = "import clcurv.recommend.l2er, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
