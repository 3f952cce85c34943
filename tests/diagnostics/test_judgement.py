"""Which s may be used, and κ over those."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from kappa_results import make_layer

from clcurv.curvature.lanczos import Extremes, Start, lockstep_extremes
from clcurv.curvature.products import Products, project
from clcurv.diagnostics.judgement import condition, layer_sensitivity
from clcurv.inputs.layers import Layer

WEIGHTS = [0.5, 0.5]


def extremes_of(*values: float, max_steps: int = 9, seed: int = 0) -> Extremes:
    """What the solver says of a diagonal matrix whose two chunks are equal."""
    matrix = torch.diag(torch.tensor(values, dtype=torch.float64)) / 2

    def products(vectors, bases):
        return {
            n: Products(2 * (v @ matrix), torch.stack([project(bases[n], v @ matrix)] * 2))
            for n, v in vectors.items()
        }

    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(1, len(values), generator=generator, dtype=torch.float64)
    return lockstep_extremes(
        products, {"a": Start(start)}, tol=1e-6, max_steps=max_steps, bottom=True
    )["a"]


def judged(found: Extremes | None, **options):
    layer = Layer("a", ("a.weight", "a.bias"), 3, is_head=True, tied_names=("b.weight",))
    given = {
        "numel": 7,
        "found": found,
        "weights": WEIGHTS,
        "unused": False,
        "noise": 1e-9,
        "lambda_min": True,
    }
    return layer_sensitivity(layer, **{**given, **options})


def test_a_good_layer() -> None:
    found = judged(extremes_of(2.0, 1.0, -0.5))
    assert (found.status, found.reason, found.converged) == ("ok", "", True)
    assert (found.name, found.param_names, found.depth) == ("a", ("a.weight", "a.bias"), 3)
    assert (found.numel, found.is_head, found.tied_names) == (7, True, ("b.weight",))
    assert found.s == pytest.approx(2)
    assert found.lambda_min == pytest.approx(-0.5)
    assert found.steps == 3
    assert found.s_stderr == pytest.approx(0, abs=1e-12)


def test_unused_is_no_zero() -> None:
    found = judged(None, unused=True)
    assert (found.status, found.s, found.lambda_min) == ("unused", None, None)
    assert "depend" in found.reason


def test_not_reached() -> None:
    found = judged(None)
    assert (found.status, found.s, found.converged) == ("unconverged", None, False)
    assert "not reached" in found.reason


def test_lambda_min_only_when_asked_for_and_found() -> None:
    good = extremes_of(2.0, 1.0, -0.5)
    assert judged(good, lambda_min=False).lambda_min is None
    assert judged(replace(good, bottom_converged=False)).lambda_min is None


@pytest.mark.parametrize("noise", [0.0, 1e-9])
def test_no_curvature(noise: float) -> None:
    found = judged(extremes_of(0.0, 0.0, 0.0), noise=noise)
    assert found.status == "below-resolution"


def test_positive_but_within_rounding() -> None:
    assert judged(extremes_of(1e-8, 0.0, 0.0), noise=1e-9).status == "below-resolution"
    assert judged(extremes_of(1e-7, 0.0, 0.0), noise=1e-9).status == "ok"


def test_tiny_but_far_above_rounding_is_measured() -> None:
    """The scale of the loss alone must not decide."""
    found = judged(extremes_of(1e-20, 0.0, -1e-21), noise=1e-30)
    assert (found.status, found.s) == ("ok", pytest.approx(1e-20))


def test_positive_beside_a_large_negative_one_is_judged_by_itself() -> None:
    assert judged(extremes_of(1e-8, 0.0, -5.0), noise=1e-9).status == "below-resolution"


def test_curved_downwards() -> None:
    found = judged(extremes_of(-1.0, -2.0))
    assert (found.status, found.s) == ("non-positive", pytest.approx(-1))
    assert "-1" in found.reason


def test_a_negative_value_after_too_few_steps_is_no_saddle() -> None:
    found = judged(extremes_of(*np.linspace(-3, 0.1, 40), max_steps=1, seed=1))
    assert found.s < 0
    assert (found.status, found.converged) == ("unconverged", False)
    assert "1 steps" in found.reason


def test_unconverged_says_how_far() -> None:
    found = judged(extremes_of(*np.linspace(0.9, 1, 40), max_steps=2))
    assert (found.status, found.converged) == ("unconverged", False)
    assert "2 steps" in found.reason
    assert found.error_bound is not None
    assert found.error_bound > 1e-6


def test_the_solvers_own_noise_counts() -> None:
    noisy = replace(extremes_of(1e-3, 0.0), noise=1e-3)
    assert judged(noisy).status == "below-resolution"


SHARES = {"a": [1.9, 2.1], "b": [0.55, 0.45], "c": [1.0, 1.0], "head": [50.0, 50.0]}


class TestCondition:
    layers = (make_layer("a", 0, 4.0), make_layer("b", 1, 1.0), make_layer("c", 2, 2.0))

    def of(self, layers, *, include_head: bool = False):
        return condition(layers, SHARES, WEIGHTS, include_head=include_head)

    def test_largest_over_smallest(self) -> None:
        found = self.of(self.layers)
        assert (found["kappa"], found["status"], found["reason"]) == (4.0, "ok", "")
        assert found["kappa_low"] < 4 < found["kappa_high"]
        high, low = np.percentile([4.0, 1.0, 2.0], [90, 10])
        assert found["p90_p10"] == pytest.approx(high / low)

    def test_no_interval_of_a_ratio_of_largest_to_smallest_goes_below_one(self) -> None:
        layers = (make_layer("a", 0, 1.01), make_layer("b", 1, 1.0))
        found = condition(layers, {"a": [0.1, 0.91], "b": [0.9, 0.1]}, WEIGHTS, include_head=False)
        assert found["kappa_low"] == 1.0

    def test_heads_only_when_asked_for(self) -> None:
        layers = (*self.layers, make_layer("head", 3, 100.0, is_head=True))
        assert self.of(layers)["kappa"] == 4.0
        assert self.of(layers, include_head=True)["kappa"] == 100.0

    @pytest.mark.parametrize("status", ["non-positive", "below-resolution"])
    def test_refused_with_the_layer_named(self, status: str) -> None:
        bad = make_layer("x.y", 3, -1.0, status=status, reason="why")
        found = self.of((*self.layers, bad))
        assert (found["status"], found["reason"]) == ("refused", "layer x.y: why")
        assert found["kappa"] is found["kappa_low"] is found["kappa_high"] is None
        assert found["p90_p10"] is None

    def test_refused_where_too_few_steps_found_nothing_positive(self) -> None:
        early = make_layer("early", 3, -0.1, status="unconverged", reason="2 steps")
        assert self.of((*self.layers, early))["reason"] == "layer early: 2 steps"

    def test_a_bad_head_does_not_count(self) -> None:
        head = make_layer("head", 3, -1.0, status="non-positive", is_head=True)
        assert self.of((*self.layers, head))["status"] == "ok"
        assert self.of((*self.layers, head), include_head=True)["status"] == "refused"

    def test_unused_layers_are_left_out(self) -> None:
        spare = make_layer("spare", 3, None, status="unused")
        assert self.of((*self.layers, spare))["kappa"] == 4.0

    def test_refused_where_a_layer_was_not_reached(self) -> None:
        late = make_layer("late", 3, None, status="unconverged", reason="not reached")
        assert self.of((*self.layers, late))["reason"] == "layer late: not reached"

    def test_refused_with_fewer_than_two(self) -> None:
        assert self.of(self.layers[:1])["status"] == "refused"
        assert self.of(())["status"] == "refused"

    def test_solver_errors_widen_the_interval(self) -> None:
        rough = (replace(self.layers[0], error_bound=0.2), *self.layers[1:])
        assert self.of(rough)["kappa_high"] > 1.15 * self.of(self.layers)["kappa_high"]
