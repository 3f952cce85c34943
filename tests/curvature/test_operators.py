"""Block products against closed forms and dense blocks; what is kept, rebuilt, and counted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from curvature_cases import CASES, Case
from oracles import DENSE, difference_block, hessian_block
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from clcurv.curvature import operators
from clcurv.curvature.fisher import EmpiricalFisherGraph
from clcurv.curvature.ggn import GGNGraph
from clcurv.curvature.hessian import HessianGraph
from clcurv.curvature.numerics import borrowed, exact_numerics
from clcurv.curvature.objective import Objective
from clcurv.curvature.operators import BlockOperator, split_batch
from clcurv.diagnostics.sensitivity import parameters_of
from clcurv.errors import NumericalError, ResourceError
from clcurv.inputs.dataset import Batch, Samples

GRAPHS = {"hessian": HessianGraph, "ggn": GGNGraph, "empirical-fisher": EmpiricalFisherGraph}


def softmax_regression(n: int = 9, features: int = 4, classes: int = 3) -> Case:
    torch.manual_seed(0)
    model = nn.Linear(features, classes, bias=False).double()
    x, y = torch.randn(n, features).double(), torch.randint(classes, (n,))
    return Case(model, Samples(x, y), Objective())


def mlp(n: int = 13) -> Case:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)
    ).double()
    return Case(model, Samples(torch.randn(n, 6).double(), torch.randint(3, (n,))), Objective())


def operator_of(case: Case, kind: str = "hessian", size: int = 4, **options) -> BlockOperator:
    case.model.eval()
    params = parameters_of(case.model, case.layers("module"))
    chunks = case.samples.split(size)
    return BlockOperator(GRAPHS[kind], case.model, params, chunks, case.objective, **options)


def dense_of(operator: BlockOperator) -> dict[str, Tensor]:
    """Every block from products with the identity."""
    eyes = {n: torch.eye(operator.numel(n)).to(operator.like(n)) for n in operator.names}
    return {name: p.vectors for name, p in operator.products(eyes).items()}


def one_vector_each(operator: BlockOperator) -> dict[str, Tensor]:
    torch.manual_seed(7)
    return {n: torch.randn(2, operator.numel(n)).to(operator.like(n)) for n in operator.names}


def same(left: dict, right: dict, rtol: float = 1e-10) -> None:
    assert left.keys() == right.keys()
    for name in left:
        assert torch.allclose(left[name].vectors, right[name].vectors, rtol=rtol, atol=1e-12)


class TestClosedForms:
    @pytest.mark.parametrize("kind", ["hessian", "ggn"])
    def test_softmax_regression(self, kind: str) -> None:
        """Logits W x: the block is the mean of (diag p - p pᵀ) ⊗ x xᵀ."""
        case = softmax_regression()
        x = case.samples.inputs
        p = case.model(x).softmax(1).detach()
        curved = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
        expected = torch.einsum("nab,ni,nj->aibj", curved, x, x).reshape(12, 12) / len(x)
        (found,) = dense_of(operator_of(case, kind)).values()
        assert torch.allclose(found, expected, rtol=1e-12, atol=1e-15)

    def test_softmax_regression_empirical_fisher(self) -> None:
        """Mean of (p - y)(p - y)ᵀ ⊗ x xᵀ."""
        case = softmax_regression()
        x = case.samples.inputs
        error = case.model(x).softmax(1).detach() - torch.eye(3)[case.samples.targets].double()
        g = torch.einsum("na,ni->nai", error, x).reshape(len(x), -1)
        (found,) = dense_of(operator_of(case, "empirical-fisher")).values()
        assert torch.allclose(found, g.T @ g / len(x), rtol=1e-12, atol=1e-15)

    @pytest.mark.parametrize("kind", ["hessian", "ggn"])
    def test_linear_least_squares(self, kind: str) -> None:
        """Mean square over k outputs: 2/k · I ⊗ mean x xᵀ, whatever the targets."""
        torch.manual_seed(0)
        x, model = torch.randn(7, 3).double(), nn.Linear(3, 2, bias=False).double()
        case = Case(model, Samples(x, torch.randn(7, 2).double()), Objective("mse"))
        (found,) = dense_of(operator_of(case, kind)).values()
        expected = torch.kron(torch.eye(2).double(), x.T @ x / 7)
        assert torch.allclose(found, expected, rtol=1e-12, atol=1e-15)

    def test_bias_of_the_output_does_not_know_of_one_direction(self) -> None:
        """Adding one number to every logit changes nothing."""
        case = mlp()
        bias = dense_of(operator_of(case))["4"][-3:, -3:]
        assert torch.allclose(bias.sum(1), torch.zeros(3).double(), atol=1e-15)


class TestDense:
    @pytest.mark.parametrize("name", CASES)
    @pytest.mark.parametrize("kind", GRAPHS)
    def test_products(self, name: str, kind: str) -> None:
        """A random direction of every module's block against the dense matrix."""
        case = CASES[name](11).double()
        x, y = case.samples.inputs, case.samples.targets
        if isinstance(x, Tensor):
            case.samples = Samples(x.double(), y.double() if y.is_floating_point() else y)
        with exact_numerics(case.model):
            operator = operator_of(case, kind)
            vectors = one_vector_each(operator)
            products = operator.products(vectors)
        for block, params in parameters_of(case.model, case.layers("module")).items():
            dense = DENSE[kind](
                case.model, case.samples.inputs, case.samples.targets, case.objective.name, params
            )
            expected = vectors[block] @ dense
            scale = float(expected.norm()) + 1e-12
            assert float((products[block].vectors - expected).norm()) < 1e-9 * scale + 1e-14

    def test_the_oracle_itself_against_differences_of_first_gradients(self) -> None:
        """Autograd on both sides would hide a wrong second derivative of autograd's own."""
        case = CASES["attention"](6).double()
        for params in parameters_of(case.model, case.layers("module")).values():
            given = (case.model, case.samples.inputs, case.samples.targets, "cross-entropy")
            exact, rough = hessian_block(*given, params), difference_block(*given, params)
            assert torch.allclose(exact, rough, atol=1e-7 * float(exact.abs().max()) + 1e-9)


class TestChunks:
    @pytest.mark.parametrize("kind", GRAPHS)
    def test_any_split_gives_the_same_products(self, kind: str) -> None:
        case = mlp()
        whole = operator_of(case, kind, size=13)
        vectors = one_vector_each(whole)
        for size in (1, 4, 12):  # 12 leaves a last chunk of one
            same(operator_of(case, kind, size=size).products(vectors), whole.products(vectors))

    def test_projections_are_every_chunks_share(self) -> None:
        case = mlp()
        operator = operator_of(case, size=5)
        vectors = one_vector_each(operator)
        bases = {n: torch.randn(3, operator.numel(n)).double() for n in operator.names}
        found = operator.products(vectors, bases)
        params = parameters_of(case.model, case.layers("module"))
        for name, product in found.items():
            assert product.projections.shape == (3, 3, 2)
            for share, chunk in zip(product.projections, case.samples.split(5), strict=True):
                part = hessian_block(
                    case.model, chunk.inputs, chunk.targets, "cross-entropy", params[name]
                ) * (len(chunk) / 13)
                assert torch.allclose(share, bases[name] @ part @ vectors[name].T, atol=1e-12)
            total = bases[name] @ product.vectors.T
            assert torch.allclose(product.projections.sum(0), total, atol=1e-12)

    def test_ignored_tokens_do_not_count(self) -> None:
        case = CASES["masked"](12).double()
        case.samples.targets[:3] = -100  # the first chunks have no term at all
        with exact_numerics(case.model):
            operator = operator_of(case, size=2)
            vectors = one_vector_each(operator)
            found = operator.products(vectors)
            assert operator.chunk_terms[0] == 0
            rest = Samples(
                {k: v[3:] for k, v in case.samples.inputs.items()}, case.samples.targets[3:]
            )
            same(operator_of(Case(case.model, rest, case.objective)).products(vectors), found)

    def test_another_denominator(self) -> None:
        case = mlp()
        mean, total = operator_of(case), operator_of(case, n_terms=1)
        vectors = one_vector_each(mean)
        for name, product in total.products(vectors).items():
            expected = 13 * mean.products(vectors)[name].vectors
            assert torch.allclose(product.vectors, expected)

    def test_split_batch_keeps_order_and_rows(self) -> None:
        batch = Batch({"a": torch.arange(7), "b": torch.arange(14).view(7, 2)}, torch.arange(7))
        pieces = split_batch(batch, 3)
        assert [len(p) for p in pieces] == [3, 3, 1]
        for key in ("a", "b"):
            assert torch.equal(torch.cat([p.inputs[key] for p in pieces]), batch.inputs[key])
        assert split_batch(batch, None) == [batch]
        assert split_batch(batch, 7) == [batch]


class Counting:
    """A graph builder that notes the size, the trainable parameters and the layers of each call."""

    def __init__(self, build: Callable = HessianGraph) -> None:
        self.build, self.calls = build, []

    def __call__(self, model, batch, objective, layers):
        trainable = {n for n, p in model.named_parameters() if p.requires_grad}
        self.calls.append((len(batch), trainable, list(layers)))
        return self.build(model, batch, objective, layers)


def counted(case: Case, names: list[str] | None = None, size: int = 4, **options):
    params = parameters_of(case.model.eval(), case.layers("module"))
    chosen = {n: params[n] for n in (names or params)}
    build = Counting(options.pop("build", HessianGraph))
    chunks = case.samples.split(size)
    return build, BlockOperator(build, case.model, chosen, chunks, case.objective, **options)


class TestGraphs:
    @pytest.mark.parametrize("keep", [0, 1, 2, 4, 100])
    @pytest.mark.parametrize("kind", GRAPHS)
    def test_keeping_changes_no_number(self, keep: int, kind: str) -> None:
        case = mlp()
        build, operator = counted(case, build=GRAPHS[kind], keep_graphs=keep)
        vectors = one_vector_each(operator)
        for _ in range(3):
            same(operator.products(vectors), operator_of(case, kind).products(vectors))
        kept = min(keep, 4)
        assert len(build.calls) == kept + 3 * (4 - kept)
        assert operator.graph_samples == sum(n for n, _, _ in build.calls)

    def test_released_graphs_are_built_again(self) -> None:
        build, operator = counted(mlp(), keep_graphs=4)
        vectors = one_vector_each(operator)
        before = operator.products(vectors)
        operator.release()
        same(operator.products(vectors), before)
        assert len(build.calls) == 8

    def test_products_are_counted_by_samples_and_vectors(self) -> None:
        _, operator = counted(mlp())
        vectors = one_vector_each(operator)
        operator.products({"2": vectors["2"], "4": vectors["4"][:1]})
        assert operator.product_samples == {"2": 2 * 13, "4": 13}

    def test_a_rebuilt_graph_starts_at_the_first_active_layer(self) -> None:
        build, operator = counted(mlp())
        operator.products({"4": one_vector_each(operator)["4"]})
        assert {frozenset(t) for _, t, _ in build.calls} == {frozenset({"4.weight", "4.bias"})}
        assert all(layers == ["4"] for _, _, layers in build.calls)

    @pytest.mark.parametrize("keep", [0, 4])
    def test_layers_of_another_wave_are_not_in_the_graph(self, keep: int) -> None:
        """A wave holds some layers; all the others still require grad outside of it."""
        case = mlp()
        build, operator = counted(case, ["2"], keep_graphs=keep)
        operator.products(one_vector_each(operator))
        assert {frozenset(t) for _, t, _ in build.calls} == {frozenset({"2.weight", "2.bias"})}
        assert all(p.requires_grad for p in case.model.parameters())

    def test_flags_are_put_back_when_building_fails(self) -> None:
        case = mlp()

        def broken(*_: object) -> None:
            raise ValueError("no graph")

        _, operator = counted(case, build=broken)
        with pytest.raises(ValueError, match="no graph"):
            operator.products({"4": one_vector_each(operator)["4"]})
        assert all(p.requires_grad for p in case.model.parameters())

    @pytest.mark.parametrize("kind", GRAPHS)
    def test_a_late_layer_costs_less_than_an_early_one(self, kind: str) -> None:
        """The second pass only walks the part of the graph above the layer."""
        torch.manual_seed(0)
        width, depth = 32, 8
        parts = [m for _ in range(depth) for m in (nn.Linear(width, width), nn.Tanh())]
        model = nn.Sequential(*parts, nn.Linear(width, 3)).double()
        samples = Samples(torch.randn(8, width).double(), torch.randint(3, (8,)))
        operator = operator_of(Case(model, samples, Objective()), kind, size=8, keep_graphs=1)
        vectors = {n: v[:1] for n, v in one_vector_each(operator).items()}
        operator.products(vectors)
        flops = []
        for name in operator.names:
            with FlopCounterMode(display=False) as counter:
                operator.products({name: vectors[name]})
            flops.append(counter.get_total_flops())
        assert flops == sorted(flops, reverse=True)
        assert flops[-1] < 0.1 * flops[0]
        # a sweep costs about half of what full products would
        assert sum(flops) < 0.65 * len(flops) * flops[0]

    def test_no_graph_survives_a_pass_that_keeps_none(self) -> None:
        import gc
        import weakref

        alive: list[weakref.ref] = []

        def build(*given):
            assert not [r for r in alive if r() is not None]  # one at a time
            graph = HessianGraph(*given)
            alive.append(weakref.ref(graph))
            return graph

        _, operator = counted(mlp(), build=build)
        gc.disable()
        try:
            operator.products(one_vector_each(operator))
            assert [r() for r in alive] == [None] * 4
        finally:
            gc.enable()


def starved(limit: int, error: BaseException, graph: Callable = HessianGraph) -> Callable:
    """A builder for which more than `limit` samples are too many."""

    def build(model, batch, objective, layers):
        if len(batch) > limit:
            raise error
        return graph(model, batch, objective, layers)

    return build


ALLOCATOR = RuntimeError(
    "[enforce fail at alloc_cpu.cpp:114] data. DefaultCPUAllocator: can't allocate memory"
)


class TestMemory:
    @pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), ALLOCATOR])
    @pytest.mark.parametrize("keep", [0, 3])
    @pytest.mark.parametrize("limit", [1, 2, 3])
    def test_halves_and_goes_on_with_the_same_numbers(
        self, limit: int, keep: int, error: BaseException
    ) -> None:
        case = mlp()
        _, operator = counted(case, build=starved(limit, error), size=6, keep_graphs=keep)
        vectors = one_vector_each(operator)
        found, expected = operator.products(vectors), operator_of(case, size=6).products(vectors)
        same(found, expected)
        for name in found:  # chunks stay the unit of the standard errors
            assert torch.allclose(found[name].projections, expected[name].projections)
        assert operator.notes[-1].startswith("out of memory")
        assert len(operator.notes) == {3: 1, 2: 2, 1: 3}[limit]
        same(operator.products(vectors), found)
        assert len(operator.notes) == {3: 1, 2: 2, 1: 3}[limit]

    def test_keeps_no_graph_any_more(self) -> None:
        error = torch.OutOfMemoryError("CUDA out of memory")
        build, operator = counted(mlp(), build=starved(2, error), keep_graphs=4)
        vectors = one_vector_each(operator)
        operator.products(vectors)
        before = len(build.calls)
        operator.products(vectors)
        assert len(build.calls) == before + 7  # 13 samples in chunks of 4, halved

    def test_in_the_midst_of_a_product(self) -> None:
        class Starved(HessianGraph):
            def __init__(self, model, batch, objective, layers):
                super().__init__(model, batch, objective, layers)
                self.size = len(batch)

            def product(self, layer, vector):
                if self.size > 2:
                    raise torch.OutOfMemoryError("CUDA out of memory")
                return super().product(layer, vector)

        case = mlp()
        _, operator = counted(case, build=Starved, keep_graphs=3)
        vectors = one_vector_each(operator)
        same(operator.products(vectors), operator_of(case).products(vectors))

    def test_one_sample_is_the_end(self) -> None:
        error = torch.OutOfMemoryError("CUDA out of memory")
        _, operator = counted(mlp(), build=starved(0, error))
        with pytest.raises(ResourceError, match="one sample") as refused:
            operator.products(one_vector_each(operator))
        assert refused.value.hint
        assert "\n" not in str(refused.value)

    def test_other_errors_are_not_taken_for_it(self) -> None:
        _, operator = counted(mlp(), build=starved(0, RuntimeError("shapes do not fit")))
        with pytest.raises(RuntimeError, match="shapes do not fit"):
            operator.products(one_vector_each(operator))


class Root(nn.Module):
    """Its slope is finite at zero for the loss used here, its curvature is not."""

    def forward(self, x: Tensor) -> Tensor:
        return x.abs().pow(1.5)


class TestNotFinite:
    def test_nan_names_micro_batch_and_first_module(self) -> None:
        case = mlp()
        case.samples.inputs[9, 0] = float("nan")
        operator = operator_of(case)
        with pytest.raises(NumericalError, match=r"not finite on micro-batch 2 .*layer 0\)"):
            operator.products(one_vector_each(operator))
        hooks = [h for m in case.model.modules() for h in m._forward_hooks]
        assert hooks == []

    def test_bad_weights_in_the_middle(self) -> None:
        case = mlp()
        case.model[2].weight.data[0, 0] = float("nan")
        operator = operator_of(case)
        with pytest.raises(NumericalError, match=r"micro-batch 0 \(first at layer 2\)"):
            operator.products(one_vector_each(operator))

    def test_a_finite_loss_with_an_infinite_curvature(self) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3, bias=False), Root(), nn.Linear(3, 2)).double()
        x = torch.randn(6, 3).double()
        x[5] = 0
        case = Case(model, Samples(x, torch.randint(2, (6,))), Objective())
        operator = operator_of(case, size=2)
        with pytest.raises(NumericalError, match="layer 0 is not finite on micro-batch 2"):
            operator.products(one_vector_each(operator))


def test_unused_parameters_are_zero() -> None:
    case = mlp()
    case.model.register_module("spare", nn.Linear(2, 2).double())
    case.model.forward = case.model[:5].forward  # type: ignore[method-assign]
    for kind in GRAPHS:
        operator = operator_of(case, kind)
        assert "spare" in operator.names
        spare = operator.products(one_vector_each(operator))["spare"]
        assert not spare.vectors.any()
        assert not spare.projections.any()


def test_gradients_leave_no_grad_and_no_cycle() -> None:
    case = mlp()
    operator = operator_of(case, keep_graphs=4)
    operator.products(one_vector_each(operator))
    assert all(p.grad is None for p in case.model.parameters())


def test_borrowed_float64_is_what_the_operator_sees() -> None:
    case = mlp()
    case.model.float()
    params = list(case.model.parameters())
    with borrowed(case.model, params, dtype=torch.float64):
        assert operator_of(case).like("0").dtype == torch.float64
    assert operator_of(case).like("0").dtype == torch.float32


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_products_on_a_gpu_equal_the_cpus() -> None:
    case = mlp()
    expected = operator_of(case)
    vectors = one_vector_each(expected)
    products = expected.products(vectors)
    case.model.cuda()
    case.samples = Samples(case.samples.inputs.cuda(), case.samples.targets.cuda())
    moved = operator_of(case).products({n: v.cuda() for n, v in vectors.items()})
    for name, product in moved.items():
        assert torch.allclose(product.vectors.cpu(), products[name].vectors, rtol=1e-9, atol=1e-12)
        assert product.projections.device.type == "cpu"


def test_out_of_memory_by_message() -> None:
    assert operators.out_of_memory(torch.OutOfMemoryError("x"))
    assert operators.out_of_memory(ALLOCATOR)
    assert not operators.out_of_memory(RuntimeError("memory format"))
    assert not operators.out_of_memory(ValueError("not enough memory"))
