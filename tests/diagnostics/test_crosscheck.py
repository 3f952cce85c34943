"""PyHessian's second opinion: right for ragged batches, tokens and keyword inputs too."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from curvature_cases import CASES, Case, unchanged, used
from oracles import extremes, hessian_block, mean_loss
from torch import Tensor, nn

from clcurv.curvature.numerics import borrowed, exact_numerics
from clcurv.curvature.objective import Objective
from clcurv.diagnostics.crosscheck import EACH_END, pyhessian_check
from clcurv.diagnostics.kappa import CrossCheck, KappaResult
from clcurv.diagnostics.sensitivity import measure_kappa, parameters_of
from clcurv.inputs.dataset import Samples
from clcurv.inputs.layers import Layer


def checked(case: Case, granularity: str = "block", **options) -> KappaResult:
    layers = options.pop("layers", None) or case.layers(granularity)
    options = {"tol": 1e-3, "batch_size": 5, **options}
    return measure_kappa(
        case.model, layers, case.samples, case.objective, cross_check=True, **options
    )


def dominant(case: Case, layer: Layer) -> float:
    """The dense block's eigenvalue of largest absolute value."""
    x, y = case.samples.inputs, case.samples.targets
    x = x.double() if isinstance(x, Tensor) and x.is_floating_point() else x
    y = y.double() if y.is_floating_point() else y
    block = parameters_of(case.model.double(), [layer])[layer.name]
    top, bottom = extremes(hessian_block(case.model, x, y, case.objective.name, block))
    return max(top, bottom, key=abs)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["conv", "attention", "next_token", "masked", "regression"])
def test_both_opinions_agree_with_the_dense_block(name: str, dtype: str) -> None:
    case = CASES[name](13)  # the last batch holds three
    layers = {x.name: x for x in case.layers()}
    found = checked(case, layers=list(layers.values()), dtype=dtype).cross_check
    assert found
    for check in found:
        truth = dominant(case, layers[check.name])
        assert check.s_pyhessian == pytest.approx(truth, rel=2e-2), check.name
        assert check.s == pytest.approx(truth, rel=2e-2), check.name
        assert check.relative_difference < 2e-2


def test_batches_with_unequal_numbers_of_tokens() -> None:
    """PyHessian weighs batches by their rows; the loss is a mean over scored tokens."""
    case = CASES["next_token"](13)
    case.samples.targets[:5, 2:] = -100
    layers = case.layers()
    for check in checked(case, layers=layers).cross_check:
        truth = dominant(case, next(x for x in layers if x.name == check.name))
        assert check.s_pyhessian == pytest.approx(truth, rel=2e-2)


def test_three_of_either_end() -> None:
    case = CASES["conv"](13)
    result = checked(case, "tensor", tol=1e-2)
    order = sorted((x for x in result.layers if x.status == "ok"), key=lambda x: -x.s)
    assert len(order) > 2 * EACH_END
    names = [x.name for x in order[:EACH_END] + order[-EACH_END:]]
    assert [c.name for c in result.cross_check] == names


def test_a_dominant_negative_eigenvalue_is_compared_with_lambda_min() -> None:
    """Squared error far from its targets: curved downwards more than upwards."""

    class Saddle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.tensor([0.3, 0.2, 0.1]))
            self.b = nn.Parameter(torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            w = self.w
            return (w[0] ** 2 - 0.4 * w[1] ** 2 + w[2] * 0.1 + self.b).expand(len(x), 1) + 0 * x

    torch.manual_seed(0)
    case = Case(Saddle(), Samples(torch.zeros(8, 1), torch.full((8, 1), 4.0)), Objective("mse"))
    layers = case.layers("tensor")
    result = checked(case, layers=layers)
    w = next(x for x in result.layers if x.name == "w")
    check = next(c for c in result.cross_check if c.name == "w")
    assert w.lambda_min < -w.s < 0
    assert check.s == w.lambda_min
    assert check.s_pyhessian == pytest.approx(w.lambda_min, rel=2e-2)


def test_a_layer_with_a_part_that_the_loss_does_not_see() -> None:
    """PyHessian stumbles over parameters without a gradient: they are left out of its block."""
    case = CASES["conv"](13)
    case.model.register_parameter("spare", nn.Parameter(torch.zeros(3)))
    layers = [
        Layer("first", ("conv1.weight", "spare"), 0),
        Layer("last", ("fc.weight", "fc.bias"), 1),
    ]
    found = checked(case, layers=layers).cross_check
    assert [c.name for c in found] == sorted(["first", "last"], key=[c.name for c in found].index)
    assert max(c.relative_difference for c in found) < 2e-2


def test_a_wrong_number_is_seen() -> None:
    """Ours changed by 10 %: the difference says so."""
    case = CASES["conv"](13)
    layers = case.layers()
    result = checked(case, layers=layers)
    wrong = [replace(x, s=1.1 * x.s) for x in result.layers]
    params = parameters_of(case.model, layers)
    flat = [p for group in params.values() for p in group]
    with exact_numerics(case.model), borrowed(case.model, flat):
        found = pyhessian_check(
            case.model, params, wrong, case.samples.split(5), case.objective, lambda *_: None
        )
    differences = [c.relative_difference for c in found if c.s > 0]  # not a λ_min
    assert differences == pytest.approx([0.1 / 1.1] * len(differences), rel=0.05)
    assert differences


def test_leaves_nothing_behind() -> None:
    case = CASES["conv"](13)
    layers = case.layers()
    used(case.model, case.samples.inputs)
    state, dtype = torch.get_rng_state(), torch.get_default_dtype()
    with unchanged(case.model):
        checked(case, layers=layers, dtype="float64")
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_default_dtype() == dtype


def test_gives_the_flags_back_when_it_fails() -> None:
    case = CASES["conv"](13)
    layers = case.layers()
    result = checked(case, layers=layers)
    params = parameters_of(case.model, layers)
    before = [p.requires_grad for p in case.model.parameters()]
    case.model.fc.weight.requires_grad_(False)
    before = [p.requires_grad for p in case.model.parameters()]

    def failing(stage: str, done: int, total: int) -> None:
        if done == 1:
            raise KeyboardInterrupt

    case.model.eval()
    with pytest.raises(KeyboardInterrupt):
        pyhessian_check(
            case.model, params, result.layers, case.samples.split(5), case.objective, failing
        )
    assert [p.requires_grad for p in case.model.parameters()] == before
    assert all(p.grad is None for p in case.model.parameters())
    assert torch.get_default_dtype() == torch.float32


def test_the_same_twice() -> None:
    case = CASES["conv"](13)
    one, other = (checked(case).cross_check for _ in range(2))
    assert one == other
    assert all(isinstance(c, CrossCheck) for c in one)


def test_is_not_run_unless_asked_for() -> None:
    case = CASES["conv"](13)
    assert measure_kappa(case.model, case.layers(), case.samples, case.objective).cross_check == ()


def test_the_oracles_mean_loss_is_the_surveys() -> None:
    case = CASES["masked"](13)
    found = checked(case).mean_loss
    x, y = case.samples.inputs, case.samples.targets
    assert found == pytest.approx(mean_loss(case.model.eval(), x, y, "masked-lm").item(), rel=1e-5)
