"""The trial before a run: what it refuses, and what it measures."""

from __future__ import annotations

import pytest
import torch
from curvature_cases import CASES, Case
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.flop_counter import FlopCounterMode

from clcurv.curvature.fisher import EmpiricalFisherGraph
from clcurv.curvature.ggn import GGNGraph
from clcurv.curvature.hessian import HessianGraph
from clcurv.curvature.numerics import exact_numerics
from clcurv.curvature.objective import Objective
from clcurv.curvature.probe import Probe, probe
from clcurv.diagnostics.sensitivity import parameters_of
from clcurv.errors import ArchitectureError, ClcurvError, NumericalError, ResourceError
from clcurv.inputs.dataset import Batch, Samples

GRAPHS = {"hessian": HessianGraph, "ggn": GGNGraph, "empirical-fisher": EmpiricalFisherGraph}


def tried(case: Case, kind: str = "hessian", granularity: str = "module") -> Probe:
    case.model.eval()
    params = parameters_of(case.model, case.layers(granularity))
    with exact_numerics(case.model):
        return probe(GRAPHS[kind], case.model, params, case.samples.split(4)[0], case.objective)


def around(*middle: nn.Module) -> Case:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), *middle, nn.Linear(6, 3))
    return Case(model, Samples(torch.randn(5, 4), torch.randint(3, (5,))), Objective())


def refused(case: Case, error: type[ClcurvError], kind: str = "hessian") -> str:
    with pytest.raises(error) as raised:
        tried(case, kind)
    text = str(raised.value)
    assert "\n" not in text
    assert len(text) < 200
    assert raised.value.hint
    assert "\n" not in raised.value.hint
    return text


class Custom(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.tanh()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * (1 - x.tanh().square())


class Once(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Custom.apply(x)


class Fused(nn.Module):
    """Attention by a kernel without second derivatives, as inside a compiled or pinned module."""

    def forward(self, x: Tensor) -> Tensor:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        q = x[:, None, None, :]
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(q, q, q)[:, 0, 0]


class Noisy(nn.Module):
    def __init__(self, size: float) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        return x + self.size * torch.randn_like(x)


class Switching(nn.Module):
    """Deterministic in value, not in its derivatives."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        weight = torch.rand(()) if self.calls % 2 else 1.0
        return x.detach() + weight * (x.tanh() - x.tanh().detach())


@pytest.mark.parametrize("kind", GRAPHS)
def test_an_operation_without_second_derivative_is_refused(kind: str) -> None:
    """It leads to no parameter, so autograd would skip it without a word."""
    text = refused(around(Once()), ArchitectureError, kind)
    assert text == "no second derivative through Custom"


@pytest.mark.parametrize("kind", GRAPHS)
def test_also_beside_a_path_that_has_one(kind: str) -> None:
    class Residual(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.tanh() + Custom.apply(x)

    assert "Custom" in refused(around(Residual()), ArchitectureError, kind)


def test_below_all_layers_it_does_no_harm() -> None:
    case = around(nn.Tanh())
    case.model.insert(0, Once())
    assert tried(case).unused == frozenset()


def test_a_pinned_fused_kernel_is_named() -> None:
    assert "attention" in refused(around(Fused()), ArchitectureError)


def test_noise_in_eval_mode_is_refused() -> None:
    for size in (1.0, 0.01):
        assert "not deterministic" in refused(around(Noisy(size)), NumericalError)


def test_dropout_by_hand_is_refused() -> None:
    class Dropping(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.dropout(x, 0.5)

    assert "not deterministic" in refused(around(Dropping()), NumericalError)


def test_a_constant_loss_is_refused() -> None:
    class Constant(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.zeros_like(x)

    case = around()
    case.model.append(Constant())
    assert "does not depend" in refused(case, NumericalError)


def test_detached_output_is_refused() -> None:
    class Detached(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.detach()

    case = around()
    case.model.append(Detached())
    assert "does not depend" in refused(case, NumericalError)


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("DefaultCPUAllocator: no")],
)
def test_out_of_memory(error: Exception) -> None:
    def build(*_: object) -> None:
        raise error

    case = around()
    params = parameters_of(case.model, case.layers())
    with pytest.raises(ResourceError, match="4 samples"):
        probe(build, case.model, params, case.samples.split(4)[0], case.objective)  # type: ignore[arg-type]


def test_other_faults_of_the_model_stay_what_they_are() -> None:
    class Faulty(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("a fault of the user's own")

    case = around(nn.Tanh())
    layers = case.layers()
    case.model.insert(1, Faulty())
    params = {"0": [case.model[0].weight]}
    with pytest.raises(RuntimeError, match="the user's own"):
        probe(HessianGraph, case.model, params, case.samples.split(4)[0], case.objective)
    assert layers


@pytest.mark.parametrize("kind", GRAPHS)
def test_unused_layers_are_named(kind: str) -> None:
    case = around(nn.Tanh())
    case.model.register_module("spare", nn.Linear(2, 2))
    case.model.forward = case.model[:3].forward  # type: ignore[method-assign]
    assert tried(case, kind).unused == {"spare"}


def test_a_layer_used_in_part_is_used() -> None:
    case = around(nn.Tanh())
    case.model[0].register_parameter("spare", nn.Parameter(torch.zeros(2)))
    assert tried(case).unused == frozenset()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", GRAPHS)
def test_every_network_passes(name: str, kind: str) -> None:
    trial = tried(CASES[name](6), kind)
    assert trial.unused == frozenset()
    assert all(0 <= noise < 1e-5 for noise in trial.noise.values())


def test_rounding_of_float32_is_seen_and_smaller_in_float64() -> None:
    single = tried(CASES["conv"](6))
    case = CASES["conv"](6).double()
    case.samples = Samples(case.samples.inputs.double(), case.samples.targets)
    double = tried(case)
    assert max(single.noise.values()) > 1e3 * max(double.noise.values())


def test_costs_are_those_of_the_layers() -> None:
    torch.manual_seed(0)
    width = 16
    model = nn.Sequential(*[m for _ in range(6) for m in (nn.Linear(width, width), nn.Tanh())])
    case = Case(model, Samples(torch.randn(4, width), torch.randint(width, (4,))), Objective())
    trial = tried(case)
    products = list(trial.product_flops.values())
    assert products == sorted(products, reverse=True)
    # forward 2 w², backward 4 w² a layer and sample, less the gradient of the input
    assert trial.gradient_flops == pytest.approx(6 * 2 * width**2 * 3 - 2 * width**2)
    assert trial.graph_flops == pytest.approx(trial.gradient_flops, rel=0.2)


@pytest.mark.parametrize("width", [32, 128])
def test_bytes_grow_with_the_activations_not_with_the_weights(width: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 3)
    )
    case = Case(model, Samples(torch.randn(4, width), torch.randint(3, (4,))), Objective())
    per_sample = tried(case).bytes_per_sample
    assert 4 * width < per_sample < 4 * width * 20


def test_leaves_no_gradient() -> None:
    case = around(nn.Tanh())
    tried(case)
    assert all(p.grad is None for p in case.model.parameters())


def test_a_batch_without_scored_terms_passes() -> None:
    case = CASES["masked"](6)
    case.samples.targets[:] = -100
    trial = tried(case)
    assert trial.unused == frozenset()
    assert set(trial.noise.values()) == {0.0}


def test_one_sample_is_enough() -> None:
    case = around(nn.Tanh())
    params = parameters_of(case.model, case.layers())
    batch = Batch(case.samples.inputs[:1], case.samples.targets[:1])
    assert probe(HessianGraph, case.model, params, batch, case.objective).bytes_per_sample > 0


def test_a_product_that_is_not_counted_costs_what_its_neighbours_say() -> None:
    torch.manual_seed(0)
    width, depth = 16, 21
    model = nn.Sequential(*[m for _ in range(depth) for m in (nn.Linear(width, width), nn.Tanh())])
    case = Case(model, Samples(torch.randn(4, width), torch.randint(width, (4,))), Objective())
    trial = tried(case)
    layers = parameters_of(case.model, case.layers("module"))
    graph = HessianGraph(case.model, case.samples.split(4)[0], case.objective, layers)
    for name, params in layers.items():
        with FlopCounterMode(display=False) as counter:
            graph.product(name, [torch.ones_like(p) for p in params])
        counted = counter.get_total_flops() / 4
        assert trial.product_flops[name] == pytest.approx(counted, rel=0.05)
