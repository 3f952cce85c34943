"""The spectrum of a task against dense float64 eigenvalues."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from curvature_cases import Case, TiedLanguageModel, case_of, spread, unchanged
from oracles import DENSE
from torch import Tensor, nn

from clcurv.curvature.objective import Objective
from clcurv.diagnostics import task_spectrum
from clcurv.diagnostics.spectrum import TaskSpectrum
from clcurv.diagnostics.task_spectrum import measure_spectrum
from clcurv.errors import NumericalError, ResourceError, UsageError
from clcurv.inputs.dataset import Samples


def params_of(case: Case) -> dict[str, list[nn.Parameter]]:
    return {"all": list(case.model.parameters())}


def measured(case: Case, **options) -> TaskSpectrum:
    options = {"dtype": "float64", "batch_size": 5, **options}
    return measure_spectrum(case.model, params_of(case), case.samples, case.objective, **options)


def truth(case: Case, operator: str) -> np.ndarray:
    params = list(case.model.parameters())
    samples = case.samples
    matrix = DENSE[operator](
        case.model, samples.inputs, samples.targets, case.objective.name, params
    )
    return torch.linalg.eigvalsh(matrix).numpy()


class TestExact:
    @pytest.mark.parametrize(
        ("operator", "method"),
        [
            ("hessian", "dense"),
            ("ggn", "dense"),
            ("ggn", "gram"),
            ("fisher", "gram"),
            ("empirical-fisher", "gram"),
        ],
    )
    @pytest.mark.parametrize("name", ["conv", "next_token", "regression", "one_hot"])
    def test_eigenvalues_and_counts(self, name: str, operator: str, method: str) -> None:
        case = case_of(name)
        oracle = "ggn" if operator == "fisher" else operator
        values = truth(case, oracle)
        found = measured(case, operator=operator, method=method, eps_fast=(0.01, 1e9))
        scale = abs(values).max()
        assert found.method == method
        assert found.n_parameters == len(values)
        assert found.lambda_max == pytest.approx(values[-1], rel=1e-9)
        assert found.lambda_min == pytest.approx(values[0], abs=1e-9 * scale)
        assert found.trace == pytest.approx(values.sum(), abs=1e-9 * scale)
        assert found.trace_stderr == 0.0
        for rank in (found.rank_fast, found.rank_relative, *found.curve):
            assert rank is not None
            true = (values > rank.eps).sum(), (values < -rank.eps).sum()
            assert (rank.positive, rank.negative) == true
            assert rank.low == rank.count == rank.high == sum(true)
            assert rank.fraction == pytest.approx(rank.count / len(values))
        assert found.rank_relative.eps == pytest.approx(0.01 * scale)
        (rule,) = found.quadrature
        assert sum(rule.weights) == pytest.approx(1.0)
        assert np.dot(rule.nodes, rule.weights) * len(values) == pytest.approx(found.trace)
        assert list(rule.nodes) == sorted(rule.nodes)

    def test_gram_and_dense_spectra_are_equal(self) -> None:
        case = case_of("attention")
        left, right = (measured(case, operator="ggn", method=m) for m in ("gram", "dense"))
        kept = [x for x in left.quadrature[0].nodes if x > 1e-8]
        assert np.allclose(kept, right.quadrature[0].nodes[-len(kept) :], atol=1e-10)

    def test_chosen_by_size(self) -> None:
        case = case_of("conv")
        assert measured(case).method == "dense"
        assert measured(case, operator="ggn").method == "gram"
        assert measured(case, operator="fisher", memory=10_000).method == "dense"

    def test_not_chosen_for_more_parameters(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(task_spectrum, "DENSE_MOST", 10)
        found = measured(case_of("regression"), probes=2, steps=3)
        assert (found.method, found.probes, found.steps) == ("lanczos-quadrature", 2, 3)


class TestQuadrature:
    @pytest.mark.parametrize(
        ("name", "operator"),
        [
            ("conv", "hessian"),
            ("conv", "ggn"),
            ("attention", "hessian"),
            ("next_token", "ggn"),
            ("regression", "hessian"),
            ("regression", "empirical-fisher"),
        ],
    )
    def test_against_the_dense_spectrum(self, name: str, operator: str) -> None:
        case = case_of(name)
        values = truth(case, operator)
        found = measured(
            case, operator=operator, method="lanczos-quadrature", probes=6, steps=40, seed=3
        )
        scale = abs(values).max()
        assert found.lambda_max == pytest.approx(values[-1], rel=1e-6)
        assert found.lambda_max_residual < 1e-3 * scale
        assert found.lambda_min == pytest.approx(values[0], abs=1e-4 * scale)
        assert found.lambda_min_converged
        assert found.trace_stderr is not None
        assert abs(found.trace - values.sum()) < 4 * found.trace_stderr
        outside = 0
        for rank in (found.rank_relative, *found.curve):
            assert rank.low is not None
            assert rank.high is not None
            true = (abs(values) > rank.eps).sum()
            outside += not rank.low - 1e-9 <= true <= rank.high + 1e-9
        # All points see the same probes: an unlucky draw takes several of them along.
        assert outside <= 5
        for rule in found.quadrature:
            assert min(rule.weights) >= 0
            assert sum(rule.weights) == pytest.approx(1.0, abs=1e-12)

    @pytest.mark.parametrize("size", [1, 4, 23])
    def test_any_split_of_the_data_gives_the_same(self, size: int) -> None:
        case = case_of("conv")
        options = {"method": "lanczos-quadrature", "probes": 2, "steps": 12}
        left, right = (measured(case, batch_size=b, **options) for b in (size, 10))
        assert np.allclose(left.quadrature[1].nodes, right.quadrature[1].nodes, atol=1e-9)
        assert np.allclose(left.quadrature[1].weights, right.quadrature[1].weights, atol=1e-9)

    @pytest.mark.parametrize("memory", [120_000, 40_000])
    def test_waves_and_rebuilt_graphs_give_the_same(self, memory: int) -> None:
        case = case_of("conv")
        options = {"method": "lanczos-quadrature", "probes": 5, "steps": 12}
        plenty, scarce = measured(case, **options), measured(case, memory=memory, **options)
        assert scarce.cost_gradients > plenty.cost_gradients
        for left, right in zip(plenty.quadrature, scarce.quadrature, strict=True):
            assert np.allclose(left.nodes, right.nodes, atol=1e-9)

    def test_seeds_differ_and_repeat(self) -> None:
        case = case_of("regression")
        options = {"method": "lanczos-quadrature", "probes": 2, "steps": 5}
        first, again, other = (measured(case, seed=s, **options) for s in (1, 1, 2))
        assert first == again
        assert first.quadrature != other.quadrature

    def test_graphs_are_built_once_and_shared(self) -> None:
        """A kept graph and 2 gradients a product and nothing else."""
        case = case_of("conv")
        found = measured(case, method="lanczos-quadrature", probes=4, steps=10, batch_size=23)
        assert found.cost_gradients < 40 * 2.3 + 2

    def test_float32_is_near(self) -> None:
        case = case_of("conv")
        values = truth(case, "hessian")
        found = measured(case, method="lanczos-quadrature", probes=6, steps=60, dtype="float32")
        assert found.lambda_max == pytest.approx(values[-1], rel=1e-4)
        assert found.noise < 1e-3 * values[-1]
        assert found.curve[0].eps >= found.noise

    def test_progress_reaches_the_end(self) -> None:
        told: list[tuple[str, int, int]] = []
        measured(
            case_of("regression"),
            method="lanczos-quadrature",
            probes=3,
            steps=4,
            progress=lambda *a: told.append(a),
        )
        assert told[-1] == ("quadrature", 12, 12)


class TestCorners:
    def test_a_single_parameter(self) -> None:
        torch.manual_seed(0)
        model = nn.Linear(1, 1, bias=False).double()
        x = torch.randn(6, 1).double()
        case = Case(model, Samples(x, torch.randn(6, 1).double()), Objective("mse"))
        expected = float(2 * x.square().mean())
        for method in ("dense", "lanczos-quadrature"):
            found = measured(case, method=method)
            assert found.lambda_max == pytest.approx(expected)
            assert found.lambda_min == pytest.approx(expected)
            assert found.rank_relative.fraction == 1.0

    def test_a_zero_operator(self) -> None:
        class Flat(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.w = nn.Parameter(torch.ones(3))

            def forward(self, x: Tensor) -> Tensor:
                return x + 0 * self.w.square().sum()

        samples = Samples(torch.randn(5, 2).double(), torch.arange(5) % 2)
        case = Case(Flat().double(), samples, Objective())
        for method in ("dense", "lanczos-quadrature"):
            found = measured(case, method=method)
            assert found.lambda_max == found.lambda_min == 0.0
            assert found.rank_relative.count == 0
            assert found.curve == ()

    def test_tied_weights_count_once(self) -> None:
        torch.manual_seed(0)
        case = case_of("next_token")
        assert isinstance(case.model, TiedLanguageModel)
        twice = {"embed": [case.model.embed.weight], "rest": list(case.model.parameters())}
        found = measure_spectrum(
            case.model, twice, case.samples, case.objective, dtype="float64", method="dense"
        )
        assert found.n_parameters == sum(p.numel() for p in case.model.parameters())
        assert found.lambda_max == pytest.approx(truth(case, "hessian")[-1])

    def test_a_part_of_the_parameters(self) -> None:
        case = case_of("conv")
        head = [case.model.fc.weight, case.model.fc.bias]  # type: ignore[union-attr]
        found = measure_spectrum(
            case.model, {"fc": head}, case.samples, case.objective, dtype="float64"
        )
        values = torch.linalg.eigvalsh(
            DENSE["hessian"](
                case.model, case.samples.inputs, case.samples.targets, "cross-entropy", head
            )
        )
        assert found.n_parameters == 15
        assert found.lambda_max == pytest.approx(float(values[-1]))

    def test_the_model_comes_back_as_it_was(self) -> None:
        torch.manual_seed(0)
        model = spread(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))).train()
        model[0].bias.requires_grad_(False)
        case = Case(model, Samples(torch.randn(9, 3), torch.arange(9) % 2), Objective())
        with unchanged(model):
            measured(case, method="lanczos-quadrature", probes=2, steps=3)

    def test_two_samples(self) -> None:
        torch.manual_seed(0)
        model = spread(nn.Linear(3, 2)).double()
        case = Case(model, Samples(torch.randn(2, 3).double(), torch.tensor([0, 1])), Objective())
        values = truth(case, "hessian")
        assert measured(case).lambda_max == pytest.approx(values[-1])
        assert measured(case, operator="ggn").lambda_max == pytest.approx(values[-1])

    @pytest.mark.parametrize("method", ["dense", "gram", "lanczos-quadrature"])
    def test_not_a_number_is_named(self, method: str) -> None:
        case = case_of("regression")
        inputs = case.samples.inputs
        assert isinstance(inputs, Tensor)
        inputs[17, 0] = torch.nan
        with pytest.raises(NumericalError, match=r"micro-batch 3|sample 17"):
            measured(case, method=method, operator="ggn")

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"operator": "hessien"}, "operator"),
            ({"dtype": "float16"}, "dtype"),
            ({"probes": 0}, "probes"),
            ({"steps": 0}, "steps"),
            ({"eps_relative": 1.5}, "relative"),
            ({"method": "gram"}, "not of the Hessian"),
            ({"method": "guess"}, "method"),
        ],
    )
    def test_options_that_make_no_sense(self, options: dict, text: str) -> None:
        with pytest.raises(UsageError, match=text):
            measured(case_of("regression"), **options)

    def test_no_parameters(self) -> None:
        case = case_of("regression")
        with pytest.raises(UsageError, match="no parameters"):
            measure_spectrum(case.model, {}, case.samples, case.objective)

    @pytest.mark.parametrize(
        ("options", "hint"),
        [
            ({"method": "lanczos-quadrature", "steps": 40}, "--lanczos-steps"),
            ({"method": "dense"}, "--method lanczos,"),
            ({"method": "gram", "operator": "ggn"}, "--samples"),
        ],
    )
    def test_what_does_not_fit_says_what_would(self, options: dict, hint: str) -> None:
        with pytest.raises(ResourceError) as stopped:
            measured(case_of("regression"), memory=8_000, **options)
        assert hint in str(stopped.value.hint)
