"""`measure_kappa` against dense float64 blocks, and what it does when things go wrong."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import pytest
import torch
from curvature_cases import CASES, Case, unchanged, used
from oracles import (
    DENSE,
    empirical_fisher_block,
    extremes,
    fisher_block,
    ggn_block,
    hessian_block,
    mean_loss,
    rows_of,
)
from torch import Tensor, nn

from clcurv.curvature.hessian import HessianGraph
from clcurv.curvature.objective import Objective
from clcurv.diagnostics.kappa import KappaResult
from clcurv.diagnostics.sensitivity import (
    OPERATORS,
    PartialMeasurement,
    measure_kappa,
    parameters_of,
    plan_kappa,
)
from clcurv.errors import ArchitectureError, NumericalError, ResourceError, UsageError
from clcurv.inputs.dataset import Samples
from clcurv.inputs.layers import Layer

TIGHT = {"dtype": "float64", "tol": 1e-10, "max_steps": 500}


def measured(case: Case, granularity: str = "block", **options) -> KappaResult:
    layers = options.pop("layers", None) or case.layers(granularity)
    return measure_kappa(case.model, layers, case.samples, case.objective, **options)


def mlp(n: int = 40) -> Case:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    x, y = torch.randn(n, 5), torch.randint(3, (n,))
    return Case(model, Samples(x, y), Objective(), ("4.weight", "4.bias"))


def doubled(case: Case) -> tuple[nn.Module, object, Tensor, str]:
    """What the oracle takes: the model and data in float64 (the model itself is converted)."""
    x, y = case.samples.inputs, case.samples.targets
    x = x.double() if isinstance(x, Tensor) and x.is_floating_point() else x
    y = y.double() if y.is_floating_point() else y
    return case.model.double(), x, y, case.objective.name


def assert_dense(result: KappaResult, case: Case, layers: list[Layer], rel: float = 1e-6) -> None:
    given, dense = doubled(case), DENSE[result.operator]
    for layer, block in zip(result.layers, parameters_of(case.model, layers).values(), strict=True):
        top, bottom = extremes(dense(*given, block))
        assert layer.status == "ok", layer
        assert layer.s == pytest.approx(top, rel=rel), layer.name
        scale = max(abs(top), abs(bottom))
        assert layer.lambda_min == pytest.approx(bottom, rel=rel, abs=1e-7 * scale), layer.name


ALL = ("hessian", "ggn", "fisher", "empirical-fisher")
SOLVED = [
    *(("conv", 23, "block", kind, None) for kind in ALL),
    *(("attention", 21, "block", kind, 4) for kind in ALL),
    *(("next_token", 17, "block", kind, 5) for kind in ALL),
    ("conv", 23, "tensor", "hessian", 6),
    ("conv", 70, "block", "hessian", 9),
    ("vit", 19, "block", "hessian", 4),
    ("vit", 19, "block", "ggn", None),
    ("attention", 70, "tensor", "hessian", 9),
    ("next_token", 70, "tensor", "hessian", 16),
    ("masked", 18, "block", "hessian", 7),
    ("masked", 18, "block", "empirical-fisher", None),
    ("regression", 70, "tensor", "hessian", None),
    ("regression", 20, "block", "ggn", 3),
    ("one_hot", 20, "tensor", "hessian", None),
]


class TestDense:
    @pytest.mark.parametrize(("name", "n", "granularity", "kind", "batch_size"), SOLVED)
    def test_both_ends_equal_the_dense_blocks(
        self, name: str, n: int, granularity: str, kind: str, batch_size: int | None
    ) -> None:
        case = CASES[name](n)
        layers = case.layers(granularity)
        stages = set()
        result = measured(
            case,
            layers=layers,
            operator=kind,
            batch_size=batch_size,
            memory=0 if n == 70 else None,
            progress=lambda stage, done, total: stages.add(stage),
            **TIGHT,
        )
        assert ("scout" in stages) == (n >= 64)
        assert_dense(result, case, layers)

    def test_exact_fisher_by_its_definition_is_the_ggn(self) -> None:
        case = CASES["conv"](9).double()
        given = doubled(case)
        for block in parameters_of(case.model, case.layers()).values():
            assert torch.allclose(fisher_block(*given, block), ggn_block(*given, block), atol=1e-12)

    def test_the_square_of_the_mean_gradient_is_no_fisher(self) -> None:
        case = mlp()
        result = measured(case, "tensor", operator="empirical-fisher", **TIGHT)
        given = doubled(case)
        for layer, block in zip(
            result.layers, parameters_of(case.model, case.layers("tensor")).values(), strict=True
        ):
            dense = empirical_fisher_block(*given, block)
            (g,) = torch.autograd.grad(mean_loss(*given), block)
            assert layer.s == pytest.approx(extremes(dense)[0], rel=1e-6)
            assert layer.s > 2 * float(g.square().sum())

    def test_default_settings_meet_their_tolerance(self) -> None:
        """float32, tol 1e-2, as a user runs it; with a scout and without."""
        for name, n in itertools.product(("conv", "attention", "next_token"), (40, 80)):
            case = CASES[name](n)
            layers = case.layers()
            result = measured(case, layers=layers)
            given = doubled(case)
            for layer, block in zip(
                result.layers, parameters_of(case.model, layers).values(), strict=True
            ):
                assert layer.converged
                assert layer.s == pytest.approx(extremes(hessian_block(*given, block))[0], rel=1e-2)

    @pytest.mark.parametrize(("every", "size", "gain", "common"), [(4, 1, 1.5, 3), (8, 2, 15, 1)])
    def test_a_layer_that_the_hardest_samples_never_meet(
        self, every: int, size: float, gain: float, common: int
    ) -> None:
        """Most texts use a few common words and are predicted well; the others rare ones.

        The hardest samples only hold rare words, and the block falls apart over vocabularies:
        a search that starts within one never leaves it. The top lies in the other.
        """
        torch.manual_seed(0)

        class Bag(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.embed, self.fc = nn.Embedding(100, 4), nn.Linear(4, 3)

            def forward(self, x: Tensor) -> Tensor:
                return self.fc(torch.tanh(self.embed(x)).mean(1))

        n, model = 256, Bag()
        rare = torch.arange(n) % every == 0
        rare_words, common_words = torch.randint(20, 100, (n, 3)), torch.randint(common, (n, 3))
        x = torch.where(rare[:, None], rare_words, common_words)
        with torch.no_grad():
            model.embed.weight[:20] *= size
            model.fc.weight *= gain
            out = model(x)
        y = torch.where(rare, out.argmin(1), out.argmax(1))
        case = Case(model, Samples(x, y), Objective())
        top = extremes(hessian_block(*doubled(case), [model.embed.weight]))[0]
        for lambda_min in (True, False):
            found = measured(case, "tensor", lambda_min=lambda_min, dtype="float64").layers[0]
            assert found.s == pytest.approx(top, rel=1e-2)

    def test_any_seed_gives_the_same_numbers_to_the_tolerance(self) -> None:
        case = CASES["attention"](80)
        runs = [measured(case, seed=seed) for seed in range(4)]
        for layers in zip(*(r.layers for r in runs), strict=True):
            values = [x.s for x in layers]
            assert max(values) <= 1.011 * min(values)


class TestSplits:
    @pytest.mark.parametrize("name", ["conv", "attention", "next_token"])
    def test_any_split_gives_the_same_numbers_in_float32(self, name: str) -> None:
        case = CASES[name](66)
        ends = name == "conv"
        given = {"tol": 1e-6, "max_steps": 200, "lambda_min": ends}
        reference = measured(case, batch_size=66, **given)
        for size, memory in ((7, 0), (32, 10**9)):
            found = measured(case, batch_size=size, memory=memory, **given)
            assert found.batch_size == size
            for one, other in zip(found.layers, reference.layers, strict=True):
                assert one.s == pytest.approx(other.s, rel=1e-5)
                if ends:
                    assert one.lambda_min == pytest.approx(other.lambda_min, abs=1e-5 * one.s)

    def test_kept_and_rebuilt_graphs_give_the_same_numbers(self) -> None:
        """Also where the layers no longer fit in one wave: a layer's start is its own."""
        case = CASES["conv"](40)
        kept = measured(case, memory=10**9, batch_size=8)
        rebuilt = measured(case, memory=0, batch_size=8)
        assert [x.s for x in kept.layers] == pytest.approx([x.s for x in rebuilt.layers], rel=1e-6)
        assert kept.kappa_low == pytest.approx(rebuilt.kappa_low, rel=1e-5)

    def test_order_of_samples_does_not_matter(self) -> None:
        case = mlp()
        turned = Samples(case.samples.inputs.flip(0), case.samples.targets.flip(0))
        one, other = (
            measured(Case(case.model, s, case.objective), **TIGHT, batch_size=7)
            for s in (case.samples, turned)
        )
        assert [x.s for x in one.layers] == pytest.approx([x.s for x in other.layers], rel=1e-9)

    def test_waves_give_the_same_numbers(self) -> None:
        case = CASES["conv"](40)
        together, apart = (measured(case, memory=m, **TIGHT) for m in (10**9, 0))
        for one, other in zip(together.layers, apart.layers, strict=True):
            assert one.s == pytest.approx(other.s, rel=1e-9)
            assert one.s_stderr is not None


class TestInvariants:
    @pytest.mark.parametrize("name", ["attention", "regression"])
    def test_no_block_exceeds_the_whole(self, name: str) -> None:
        case = CASES[name](20)
        result = measured(case, "tensor", **TIGHT)
        top, bottom = extremes(hessian_block(*doubled(case), list(case.model.parameters())))
        assert max(x.s for x in result.layers) <= top * (1 + 1e-9)
        assert min(x.lambda_min for x in result.layers) >= bottom - 1e-9 * top

    def test_of_a_psd_matrix_the_whole_is_at_most_the_sum(self) -> None:
        case = CASES["attention"](20)
        result = measured(case, "tensor", operator="ggn", **TIGHT)
        top, _ = extremes(ggn_block(*doubled(case), list(case.model.parameters())))
        assert max(x.s for x in result.layers) <= top * (1 + 1e-9)
        assert top <= sum(x.s for x in result.layers) * (1 + 1e-9)
        assert all(x.lambda_min >= -1e-9 * x.s for x in result.layers)

    def test_the_last_layers_cross_entropy_block_is_psd(self) -> None:
        result = measured(CASES["conv"](), **TIGHT)
        head = result.layers[-1]
        assert head.is_head
        assert head.lambda_min >= -1e-10 * head.s

    @pytest.mark.parametrize("kind", ["hessian", "ggn"])
    @pytest.mark.parametrize("scale", [1e-3, 7.0])
    def test_scaling_the_loss_scales_s(self, kind: str, scale: float) -> None:
        case = mlp(70)
        plain = measured(case, operator=kind, dtype="float64")
        case.objective = Objective(scale=scale)
        scaled = measured(case, operator=kind, dtype="float64")
        for one, other in zip(scaled.layers, plain.layers, strict=True):
            assert one.steps == other.steps
            assert one.s == pytest.approx(scale * other.s, rel=1e-8)
            assert one.s_stderr == pytest.approx(scale * other.s_stderr, rel=1e-6)
            assert one.lambda_min == pytest.approx(scale * other.lambda_min, rel=1e-6)
        assert scaled.kappa == pytest.approx(plain.kappa, rel=1e-8)
        assert scaled.mean_loss == pytest.approx(scale * plain.mean_loss)

    def test_doubling_the_sample_changes_nothing(self) -> None:
        case = mlp(30)
        twice = Samples(torch.cat([case.samples.inputs] * 2), torch.cat([case.samples.targets] * 2))
        one, other = (
            measured(Case(case.model, s, case.objective), **TIGHT) for s in (case.samples, twice)
        )
        assert [x.s for x in one.layers] == pytest.approx([x.s for x in other.layers], rel=1e-9)

    def test_tied_weights_count_once(self) -> None:
        case = CASES["next_token"]()
        layers = case.layers("tensor")
        assert sum("embed" in x.name or "out.weight" in x.name for x in layers) == 1
        result = measured(case, layers=layers)
        tied = next(x for x in result.layers if x.tied_names)
        assert tied.numel == 28


class TestModelComesBack:
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    @pytest.mark.parametrize("operator", OPERATORS)
    def test_after_a_run(self, dtype: str, operator: str) -> None:
        case = CASES["conv"](20)
        used(case.model, case.samples.inputs)
        layers = case.layers()
        with unchanged(case.model):
            measured(case, layers=layers, dtype=dtype, operator=operator, cross_check=True)

    @pytest.mark.parametrize("memory", [0, None])
    def test_after_an_interruption(self, memory: int | None) -> None:
        case = CASES["conv"](40)
        used(case.model, case.samples.inputs)
        layers = case.layers()
        for stop in range(1, 12, 2):
            with unchanged(case.model), pytest.raises(KeyboardInterrupt):
                measured(case, layers=layers, progress=interrupting(stop), memory=memory)

    def test_after_an_error(self) -> None:
        case = CASES["conv"](20)
        used(case.model, case.samples.inputs)
        layers = case.layers()
        case.samples.inputs[11] = float("nan")
        with unchanged(case.model), pytest.raises(NumericalError):
            measured(case, layers=layers, dtype="float64")

    def test_the_random_state_too(self) -> None:
        case = mlp()
        before = torch.get_rng_state()
        measured(case, cross_check=True)
        assert torch.equal(torch.get_rng_state(), before)
        assert torch.get_default_dtype() == torch.float32


def interrupting(at: int):
    """Progress that presses Ctrl-C at its `at`-th call."""
    calls = itertools.count(1)

    def progress(stage: str, done: int, total: int) -> None:
        if next(calls) == at:
            raise KeyboardInterrupt

    return progress


def test_an_interrupted_run_tells_what_it_knows() -> None:
    case = CASES["conv"](80)
    stages: list[str] = []

    def progress(stage: str, done: int, total: int) -> None:
        stages.append(stage)
        if stages.count("all data") == 2:
            raise KeyboardInterrupt

    with pytest.raises(PartialMeasurement) as stopped:
        measured(case, tol=1e-9, progress=progress)
    result = stopped.value.result
    assert any("interrupted" in note for note in result.notes)
    assert {x.status for x in result.layers} <= {"ok", "unconverged"}
    assert all(x.s is not None and x.s > 0 for x in result.layers)
    assert result.cost_gradients > 0


def test_layers_not_reached_are_named() -> None:
    """With memory for one layer at a time the others come later."""

    def progress(stage: str, done: int, total: int) -> None:
        if stage == "all data" and done == 1:
            raise KeyboardInterrupt

    with pytest.raises(PartialMeasurement) as stopped:
        measured(mlp(), memory=0, progress=progress)
    result = stopped.value.result
    assert [x.status for x in result.layers][1:] == ["unconverged"] * (len(result.layers) - 1)
    assert result.status == "refused"
    assert result.layers[1].name in result.reason


class TestStatuses:
    @pytest.mark.parametrize("operator", OPERATORS)
    def test_unused(self, operator: str) -> None:
        case = mlp()
        case.model.register_module("spare", nn.Linear(2, 2))
        case.model.forward = case.model[:5].forward  # type: ignore[method-assign]
        result = measured(case, "module", operator=operator)
        spare = next(x for x in result.layers if x.name == "spare")
        assert (spare.status, spare.s, spare.s_stderr, spare.steps) == ("unused", None, None, 0)
        assert result.status == "ok"
        assert result.kappa is not None

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_no_curvature_is_no_tiny_sensitivity(self, dtype: str) -> None:
        """A key's bias adds one number to all scores of a query: the softmax does not see it."""
        result = measured(CASES["masked"](30), "tensor", dtype=dtype)
        bias = next(x for x in result.layers if x.name.endswith("key.bias"))
        assert bias.status == "below-resolution"
        assert result.status == "refused"

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    @pytest.mark.parametrize("n", [40, 80])
    def test_no_curvature_in_a_single_number(self, dtype: str, n: int) -> None:
        class Shift(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.shift = nn.Parameter(torch.tensor(0.3))

            def forward(self, x: Tensor) -> Tensor:
                return x + self.shift

        case = mlp(n)
        case.model.append(Shift())
        case.head = ()
        shift = measured(case, "tensor", dtype=dtype).layers[-1]
        assert (shift.numel, shift.status) == (1, "below-resolution")

    def test_curved_downwards_refuses_kappa_and_names_the_layer(self) -> None:
        class Square(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner, self.a = nn.Linear(2, 1), nn.Parameter(torch.tensor(0.1))

            def forward(self, x: Tensor) -> Tensor:
                return self.inner(x) + self.a**2

        torch.manual_seed(0)
        case = Case(
            Square(), Samples(torch.randn(12, 2), torch.full((12, 1), 5.0)), Objective("mse")
        )
        result = measured(case, "tensor", **TIGHT)
        a = next(x for x in result.layers if x.name == "a")
        top = extremes(hessian_block(*doubled(case), [case.model.a]))[0]
        assert (a.status, a.s) == ("non-positive", pytest.approx(top))
        assert a.s < 0
        assert result.kappa is None
        assert "layer a:" in result.reason

    def test_unconverged_is_said(self) -> None:
        result = measured(CASES["vit"](30), max_steps=1, tol=1e-4)
        assert {x.status for x in result.layers} == {"unconverged"}
        assert not any(x.converged for x in result.layers)
        assert all(x.error_bound > 1e-4 for x in result.layers)

    def test_one_layer_has_no_kappa(self) -> None:
        case = mlp()
        result = measured(
            case, layers=[Layer("all", tuple(n for n, _ in case.model.named_parameters()), 0)]
        )
        assert (result.status, result.kappa) == ("refused", None)
        assert result.layers[0].status == "ok"


class TestRefusals:
    def test_nan_in_one_sample(self) -> None:
        case = CASES["conv"](50)
        case.samples.inputs[41] = float("nan")
        with pytest.raises(NumericalError, match=r"sample 41 .*first at layer conv1") as refused:
            measured(case)
        assert "\n" not in str(refused.value)

    def test_nan_weights(self) -> None:
        case = CASES["conv"](50)
        layers = case.layers()
        for p in case.model.parameters():
            p.data.fill_(float("nan"))
        with pytest.raises(NumericalError, match=r"not finite .*first at layer conv1"):
            measured(case, layers=layers)

    def test_nan_deep_inside(self) -> None:
        case = CASES["conv"](50)
        case.model.bn2.weight.data[0] = float("nan")
        with pytest.raises(NumericalError, match="first at layer bn2"):
            measured(case)

    def test_constant_loss(self) -> None:
        class Constant(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return torch.ones_like(x)

        case = mlp()
        layers = case.layers()
        case.model.append(Constant())
        with pytest.raises(NumericalError, match="does not depend"):
            measured(case, layers=layers)

    def test_noise_in_eval_mode(self) -> None:
        class Noise(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return x + 0.1 * torch.randn_like(x)

        case = mlp()
        layers = case.layers()
        case.model.insert(2, Noise())
        # the layers were named before the noise came between
        renamed = {"2.": "3.", "4.": "5."}
        layers = [
            replace(x, param_names=tuple(renamed.get(n[:2], n[:2]) + n[2:] for n in x.param_names))
            for x in layers
        ]
        with pytest.raises(NumericalError, match="not deterministic"):
            measured(case, layers=layers)

    def test_no_second_derivative(self) -> None:
        from torch.autograd.function import once_differentiable

        class Once(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x: Tensor) -> Tensor:
                return x.clone()

            @staticmethod
            @once_differentiable
            def backward(ctx, grad: Tensor) -> Tensor:
                return grad.clone()

        class Layered(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return Once.apply(x)

        case = mlp()
        layers = case.layers()
        case.model.append(Layered())
        with pytest.raises(ArchitectureError, match="second derivative through Once"):
            measured(case, layers=layers)

    def test_nothing_is_scored(self) -> None:
        case = CASES["next_token"]()
        case.samples.targets[:] = -100
        with pytest.raises(NumericalError, match="ignored"):
            measured(case)

    def test_usage(self) -> None:
        case = mlp()
        with pytest.raises(UsageError):
            measured(case, operator="kfac")
        with pytest.raises(UsageError):
            measured(case, dtype="float16")
        with pytest.raises(UsageError):
            measure_kappa(case.model, [], case.samples, case.objective)


class TestMemory:
    @pytest.mark.parametrize("limit", [1, 3, 5])
    @pytest.mark.parametrize("n", [40, 80])
    def test_back_off_keeps_the_numbers(
        self, monkeypatch: pytest.MonkeyPatch, limit: int, n: int
    ) -> None:
        case = mlp(n)
        plenty = measured(case, batch_size=9, **TIGHT)
        monkeypatch.setitem(OPERATORS, "hessian", starved(limit))
        found = measured(case, batch_size=9, **TIGHT)
        for one, other in zip(found.layers, plenty.layers, strict=True):
            assert one.s == pytest.approx(other.s, rel=1e-9)
            assert one.s_stderr == pytest.approx(other.s_stderr, rel=1e-6)
        assert (found.batch_size, found.n_batches) == (plenty.batch_size, plenty.n_batches)
        assert any(note.startswith("out of memory") for note in found.notes)
        assert plenty.notes == ()

    def test_one_sample_is_the_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(OPERATORS, "hessian", starved(0))
        case = mlp()
        with unchanged(case.model), pytest.raises(ResourceError) as refused:
            measured(case)
        assert refused.value.hint

    @pytest.mark.parametrize("limit", [1, 5])
    def test_the_forward_pass_backs_off_too(self, limit: int) -> None:
        class Limited(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                if len(x) > limit:
                    raise torch.OutOfMemoryError("CUDA out of memory")
                return x

        case = mlp()
        layers = case.layers()
        plenty = measured(case, layers=layers, batch_size=8, **TIGHT)
        case.model.append(Limited())
        found = measured(case, layers=layers, batch_size=8, new_task=case.samples, **TIGHT)
        assert found.mean_loss == pytest.approx(plenty.mean_loss)
        assert [x.s for x in found.layers] == pytest.approx([x.s for x in plenty.layers], rel=1e-9)
        assert found.new_task_grad_sq is not None

    def test_a_plan_is_what_is_done(self) -> None:
        case = mlp(80)
        for memory in (0, 10**5, 10**9):
            layout = plan_kappa(
                case.model, case.layers(), case.samples, case.objective, memory=memory
            )
            result = measured(case, memory=memory)
            assert (layout.chunk, layout.n_chunks) == (result.batch_size, result.n_batches)


def starved(limit: int):
    def build(model, batch, objective, layers):
        if len(batch) > limit:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return HessianGraph(model, batch, objective, layers)

    return build


class Counting(HessianGraph):
    """Notes every graph built and every product taken."""

    graphs: list[tuple[int, list[str], set[int]]]
    taken: list[Counter[str]]

    def __init__(self, model, batch, objective, layers):
        required = {id(p) for p in model.parameters() if p.requires_grad}
        self.graphs.append((len(batch), list(layers), required))
        self.mine: Counter[str] = Counter()
        self.taken.append(self.mine)
        super().__init__(model, batch, objective, layers)

    def product(self, layer, vector, *, batched=False):
        self.mine[layer] += len(vector[0]) if batched else 1
        return super().product(layer, vector, batched=batched)


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> type[Counting]:
    monkeypatch.setattr(Counting, "graphs", [], raising=False)
    monkeypatch.setattr(Counting, "taken", [], raising=False)
    monkeypatch.setitem(OPERATORS, "hessian", Counting)
    return Counting


class TestWork:
    def test_kept_graphs_are_built_once(self, counting: type[Counting]) -> None:
        measured(mlp(80), batch_size=10, memory=10**9)
        sizes = [n for n, _, _ in counting.graphs]
        assert sizes == [4, 10, 6, *[10] * 8]  # probe, scout of 16 in chunks of 10, all

    def test_rebuilt_graphs_are_built_once_a_pass_for_the_active_layers(
        self, counting: type[Counting]
    ) -> None:
        case = mlp(40)
        passes: list[int] = []
        result = measured(
            case,
            batch_size=10,
            memory=0,
            layers=case.layers("module"),
            progress=lambda stage, done, total: (
                passes.append(done) if stage == "all data" else None
            ),
        )
        assert len(counting.graphs) == 1 + 4 * len(passes)
        params = parameters_of(case.model, case.layers("module"))
        for _, active, required in counting.graphs[1:]:
            assert required == {id(p) for name in active for p in params[name]}
        steps = {x.name: x.steps for x in result.layers}
        taken: Counter[str] = sum(counting.taken[1:], Counter())
        assert taken == {name: 4 * k for name, k in steps.items()}

    def test_converged_layers_drop_out(self, counting: type[Counting]) -> None:
        """A layer of two numbers is exhausted at once; the others go on without it."""
        case = mlp(40)

        class Gain(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.gain = nn.Parameter(torch.ones(1))

            def forward(self, x: Tensor) -> Tensor:
                return self.gain * x

        case.model.insert(0, Gain())
        case.head = ()
        result = measured(case, "module", tol=1e-6, batch_size=40, memory=10**9)
        steps = {x.name: x.steps for x in result.layers}
        assert steps["0"] == 1 < steps["1"]
        (_, whole) = counting.taken
        assert whole["0"] == 1

    def test_cost_is_counted_in_gradients(self) -> None:
        case = mlp(80)
        cheap, dear = measured(case, tol=1e-1), measured(case, tol=1e-8)
        assert 0 < cheap.cost_gradients < dear.cost_gradients
        without = measured(case, tol=1e-2, lambda_min=False)
        assert without.cost_gradients < measured(case, tol=1e-2).cost_gradients
        assert all(x.lambda_min is None for x in without.layers)


class TestReport:
    def test_what_a_forward_pass_tells(self) -> None:
        case = CASES["next_token"]()
        result = measured(case)
        given = doubled(case)
        rows, targets = rows_of(*given)
        assert result.n_terms == len(targets)
        assert result.mean_loss == pytest.approx(mean_loss(*given).item(), rel=1e-5)
        assert result.accuracy == pytest.approx(float((rows.argmax(1) == targets).float().mean()))

    def test_chance_is_the_commonest_class(self) -> None:
        case = mlp(40)
        counts = torch.bincount(case.samples.targets)
        assert measured(case).chance == pytest.approx(float(counts.max()) / 40)

    def test_regression_has_no_accuracy(self) -> None:
        result = measured(CASES["regression"]())
        assert result.accuracy is result.chance is None

    def test_settings_are_recorded(self) -> None:
        result = measured(
            mlp(), operator="ggn", dtype="float64", tol=0.02, max_steps=33, seed=5, batch_size=9
        )
        assert (result.operator, result.dtype, result.tol) == ("ggn", "float64", 0.02)
        assert (result.max_steps, result.seed, result.device) == (33, 5, "cpu")
        assert (result.n_samples, result.n_batches, result.batch_size) == (40, 5, 9)

    def test_standard_error_is_the_spread_of_the_chunks(self) -> None:
        case = mlp(38)
        result = measured(case, batch_size=8, **TIGHT)
        given = doubled(case)
        for layer, block in zip(
            result.layers, parameters_of(case.model, case.layers()).values(), strict=True
        ):
            dense = hessian_block(*given, block)
            v = torch.linalg.eigh(dense)[1][:, -1]
            deviations = 0.0
            for chunk in Samples(given[1], given[2]).split(8):
                part = hessian_block(given[0], chunk.inputs, chunk.targets, given[3], block)
                deviations += float((len(chunk) / 38 * (v @ part @ v - v @ dense @ v)) ** 2)
            assert layer.s_stderr == pytest.approx((deviations * 5 / 4) ** 0.5, rel=1e-6)

    def test_one_micro_batch_has_no_spread(self) -> None:
        result = measured(mlp(), batch_size=40)
        assert all(x.s_stderr is None for x in result.layers)
        assert result.kappa_low is None

    def test_gradient_of_a_new_task(self) -> None:
        case = mlp()
        torch.manual_seed(5)
        new = Samples(torch.randn(11, 5), torch.randint(3, (11,)))
        result = measured(case, new_task=new, batch_size=4, dtype="float64")
        case.samples = new
        loss = mean_loss(*doubled(case))
        for name, block in parameters_of(case.model, case.layers()).items():
            grads = torch.autograd.grad(loss, block, retain_graph=True)
            expected = sum(float(g.square().sum()) for g in grads)
            assert result.new_task_grad_sq[name] == pytest.approx(expected)

    def test_progress_ends_with_all_layers(self) -> None:
        told: list[tuple[str, int, int]] = []
        case = mlp(80)
        measured(case, progress=lambda *state: told.append(state))
        stages = list(dict.fromkeys(stage for stage, _, _ in told))
        assert stages == ["forward pass", "scout", "all data"]
        assert told[-1][1] == told[-1][2] == len(case.layers())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_the_same_numbers() -> None:
    case = CASES["conv"](70)
    cpu = measured(case, **TIGHT)
    with unchanged(case.model):
        gpu = measured(case, device="cuda", **TIGHT)
    assert [x.s for x in gpu.layers] == pytest.approx([x.s for x in cpu.layers], rel=1e-8)
