"""α_rel, thresholds and multipliers by hand, and on networks built so that the answer is known."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from importance_makers import LAYERS, importance, small
from torch import Tensor, nn

from clcurv.curvature.importance import measure_importance
from clcurv.curvature.objective import Objective
from clcurv.diagnostics import relative as room
from clcurv.diagnostics.relative import (
    lambda_ceiling,
    lambda_up_between,
    near_zero_share,
    overall_agreement,
    relate,
    relative_importance,
    threshold,
)
from clcurv.errors import MismatchError, UsageError
from clcurv.inputs.dataset import Samples
from clcurv.inputs.layers import Layer, discover_layers

_VALUES = st.lists(
    st.floats(0, 1e30, allow_nan=False, allow_subnormal=False), min_size=1, max_size=20
)


@settings(max_examples=200, deadline=None)
@given(_VALUES, st.integers(0, 19))
def test_alpha_rel_lies_between_zero_and_one(values: list[float], turn: int) -> None:
    past = torch.tensor(values, dtype=torch.float64)
    current = past.roll(turn)
    found = relative_importance(past, current)
    assert bool(((found >= 0) & (found <= 1)).all())
    assert not bool(found[past == 0].any())


def test_alpha_rel_does_not_depend_on_the_scale() -> None:
    a, b = (torch.rand(50, dtype=torch.float64) for _ in range(2))
    found = relative_importance(a, b)
    assert torch.allclose(found, a / (a + b), atol=1e-9)
    assert torch.allclose(relative_importance(1e-30 * a, 1e-30 * b), found)


def test_a_past_equal_to_the_current_task_gives_one_half() -> None:
    for estimator in ("mas", "fisher"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))
        samples = Samples(torch.randn(40, 5), torch.randint(3, (40,)))
        layers = discover_layers(model, samples.split(2)[0], granularity="module")
        same = measure_importance(model, samples, Objective(), estimator=estimator, layers=layers)
        _, tensors, found = relate(same, same, layers)
        for t in tensors:
            assert t.relative_mean == pytest.approx(0.5, abs=1e-6)
            assert t.tau == pytest.approx(0.4, abs=1e-6)
            assert (t.lambda_up, t.protected) == (3.0, 1.0)
        for x in found:
            assert x.quantiles == pytest.approx((0.5,) * 5, abs=1e-6)
            assert (x.rank_correlation, x.overlap) == (1, 1)
            assert x.past_stderr == same.layer_stderr[x.name]


class TwoRoads(nn.Module):
    """Inputs 0 to 2 go through one branch, 3 to 5 through the other."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(3, 4, bias=False), nn.Linear(3, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.left(x[:, :3]), self.right(x[:, 3:])], dim=1)


def test_disjoint_tasks_on_disjoint_parameters_separate_completely() -> None:
    torch.manual_seed(0)
    model = TwoRoads()
    x = torch.randn(30, 6)
    labels = torch.randint(8, (30,))
    sides = []
    for columns in (slice(0, 3), slice(3, 6)):
        own = torch.zeros_like(x)
        own[:, columns] = x[:, columns]
        sides.append(measure_importance(model, Samples(own, labels), Objective()))
    layers = [Layer("left", ("left.weight",), 0), Layer("right", ("right.weight",), 1)]
    multipliers, tensors, found = relate(sides[0], sides[1], layers)
    left, right = found
    assert left.quantiles == pytest.approx((1,) * 5)
    assert right.quantiles == (0,) * 5
    assert (left.protected, left.shared, left.free) == (1, 0, 0)
    # Nothing of the past is there to protect, and the top tenth matters now alone.
    assert (right.protected, right.shared, right.free) == (0, 0, 1)
    assert not bool(multipliers["right.weight"].any())
    assert torch.allclose(
        multipliers["left.weight"].double(),
        tensors[0].lambda_up * sides[0].tensors["left.weight"],
    )
    assert (tensors[0].lambda_up, tensors[1].lambda_up) == (2.0, 20.0)


def test_thresholds() -> None:
    values = torch.tensor([0.0, 0.2, 0.4, 1.0], dtype=torch.float64)
    assert threshold(values, "fixed") == 0.5
    assert threshold(values, "scaled-mean") == pytest.approx(0.32)
    assert threshold(values, "mean-plus-std") == pytest.approx(0.4 + math.sqrt(0.56 / 4))


def by_hand(multiplier: str) -> tuple[Tensor, Tensor]:
    past = importance({"body.weight": torch.tensor([4.0, 1.0, 0.0])})
    now = importance({"body.weight": torch.tensor([1.0, 4.0, 3.0])})
    layer = [Layer("body", ("body.weight",), 0)]
    found, tensors, _ = relate(
        past, now, layer, lambda_up=7.0, lambda_down=0.5, multiplier=multiplier
    )
    assert tensors[0].tau == pytest.approx(0.8 * 1.0 / 3)
    return found["body.weight"], past.tensors["body.weight"]


def test_the_papers_and_the_codes_multipliers() -> None:
    # α_rel is 0.8, 0.2, 0; τ = 0.267.
    found, _ = by_hand("paper")
    assert found.tolist() == pytest.approx([7 * 4, 0.5 * 1, 0])
    found, _ = by_hand("code")
    assert found.tolist() == pytest.approx([0.8 * 7 * 4, 0.2 * 0.5 * 1, 0])


def test_lambda_up() -> None:
    half = lambda_up_between(0.5, upper=40)
    assert half(0.3) == 4 + 0.5 * 36
    assert lambda_up_between(1, upper=2)(0.3) == 4  # never below the lowest
    assert lambda_up_between(0, upper=40)(0.0) == 20
    _, tensors, _ = relate(small(), small(1), LAYERS, lambda_up=half)
    for t in tensors:
        assert t.lambda_up == half(t.tau)


def test_the_ceiling() -> None:
    multipliers = {"a": torch.tensor([1.0, 4.0]), "b": torch.zeros(3)}
    assert lambda_ceiling(multipliers, 0.05) == pytest.approx(5)
    assert lambda_ceiling({"b": torch.zeros(3)}, 0.05) is None
    # One step of gradient descent on the penalty alone lands on θ* at the ceiling.
    theta, lam = 3.0, lambda_ceiling({"a": torch.tensor([4.0])}, 0.05)
    assert theta - 0.05 * lam * 4.0 * theta == pytest.approx(0)


def test_new_rows_of_the_head_are_free() -> None:
    past, now = small(), small(1, rows=5)
    multipliers, _, layers = relate(past, now, LAYERS)
    head = multipliers["head.weight"]
    assert head.shape == (5, 6)
    assert not bool(head[3:].any())
    assert bool((head[:3] > 0).all())
    assert layers[1].near_zero == pytest.approx(0.4)
    with pytest.raises(MismatchError):
        relate(now, past, LAYERS)


def test_shares_sum_to_one_and_count_what_they_say() -> None:
    generator = torch.Generator().manual_seed(3)
    b = torch.rand(20, 20, generator=generator)
    a = b + 0.1 * torch.rand(20, 20, generator=generator) - 0.05
    a.clamp_(min=0.01)
    layer = [Layer("body", ("body.weight",), 4)]
    _, (tensor,), (found,) = relate(
        importance({"body.weight": a}), importance({"body.weight": b}), layer, tau_mode="fixed"
    )
    top_a, top_b = (x >= x.flatten().sort().values[-40] for x in (a, b))
    assert bool(((a > b) & top_b).any())  # protected, were they not important now
    assert found.shared == pytest.approx(float((top_a & top_b).float().mean()))
    assert found.protected == pytest.approx(float(((a > b) & ~top_b).float().mean()))
    assert found.protected + found.shared + found.free == pytest.approx(1)
    assert tensor.protected == pytest.approx(float((a > b).float().mean()))
    assert (found.name, found.depth, found.numel) == ("body", 4, 400)
    assert found.multiplier_max == pytest.approx(tensor.lambda_up * float(a[a > b].max()))


def test_weights_of_a_schedule_scale_the_multipliers() -> None:
    plain, _, _ = relate(small(), small(1), LAYERS)
    scaled, _, _ = relate(small(), small(1), LAYERS, weights={"body.weight": 3.0})
    assert torch.allclose(scaled["body.weight"], 3 * plain["body.weight"])
    assert torch.equal(scaled["body.bias"], plain["body.bias"])


def test_rounding_is_no_importance() -> None:
    """The slope in a key's bias is zero but for rounding; two roundings make no half."""
    tensors = {"body.weight": torch.ones(4), "body.bias": torch.full((3,), 1e-9)}
    layer = [Layer("body", ("body.weight", "body.bias"), 0)]
    _, (weight, bias), _ = relate(importance(tensors), importance(tensors), layer)
    assert (weight.status, bias.status) == ("ok", "no-importance")
    assert bias.relative_mean == 0
    squares = importance(tensors, estimator="fisher")
    assert relate(squares, squares, layer)[1][1].status == "ok"  # 1e-9 of a square is not
    matters = {"body.weight": torch.ones(4), "body.bias": torch.ones(3)}
    for sides in ((tensors, matters), (matters, tensors)):  # to one task it does matter
        then, now = (importance(side) for side in sides)
        assert relate(then, now, layer)[1][1].status == "ok"
    nothing = {"body.weight": torch.ones(4), "body.bias": torch.zeros(3)}
    multipliers, (_, bias), _ = relate(importance(nothing), importance(nothing), layer)
    assert bias.status == "no-importance"
    assert not bool(multipliers["body.bias"].any())


def test_near_zero_share_and_overall_agreement() -> None:
    values = torch.ones(10)
    values[:3] = 0
    values[3] = 1e-12
    assert near_zero_share(importance({"w": values})) == pytest.approx(0.4)
    a, b = small(), small()
    b.tensors["head.weight"].copy_(1 - b.tensors["head.weight"])
    assert overall_agreement(a, b, LAYERS).rank == 1  # without the head
    assert overall_agreement(a, b, LAYERS[1:]).rank is None
    unmarked = [replace(layer, is_head=False) for layer in LAYERS]
    assert overall_agreement(a, b, unmarked).rank == 1  # the importance knows the head too


def test_the_top_tenth_of_forty_is_four() -> None:
    values = {"w": torch.arange(1.0, 41.0)}
    _, _, (found,) = relate(importance(values), importance(values), [Layer("body", ("w",), 0)])
    assert (found.shared, found.protected) == (0.1, 0.9)


def test_large_layers_are_drawn_from(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(3)
    a, b = (importance({"w": torch.rand(50_000, generator=generator)}) for _ in range(2))
    layer = [Layer("body", ("w",), 0)]
    exact = relate(a, b, layer)[2][0]
    monkeypatch.setattr(room, "EXACT", 5000)
    drawn = relate(a, b, layer)[2][0]
    assert drawn.quantiles == pytest.approx(exact.quantiles, abs=0.05)
    assert drawn.shared == pytest.approx(exact.shared, abs=0.005)
    assert relate(a, b, layer)[2][0] == drawn


def test_what_does_not_go_together() -> None:
    more = replace(small(1), n_samples=small().n_samples + 1)
    with pytest.raises(MismatchError, match="n samples"):
        relate(small(), more, LAYERS)
    assert (
        relate(small(), more, LAYERS, samples_may_differ=True)[0].keys() == small().tensors.keys()
    )
    with pytest.raises(MismatchError, match="estimator mas"):
        relate(small(), replace(small(1), estimator="fisher"), LAYERS)
    for options in (
        {"tau_mode": "best"},
        {"multiplier": "mine"},
        {"lambda_up": math.nan},
        {"lambda_down": -1.0},
    ):
        with pytest.raises(UsageError):
            relate(small(), small(1), LAYERS, **options)
