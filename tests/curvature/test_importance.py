"""Importances against closed forms and against definitions written out sample by sample."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import transformers
from curvature_cases import CASES, Case, case_of, spread, unchanged
from torch import Tensor, nn

from clcurv.curvature import importance as room
from clcurv.curvature import importance_run as run_room
from clcurv.curvature.importance import Importance, measure_importance
from clcurv.curvature.importance_sums import Sums
from clcurv.curvature.layer_gradients import Use
from clcurv.curvature.layerwise import Layerwise
from clcurv.curvature.objective import Objective
from clcurv.curvature.per_sample import PerSample
from clcurv.errors import (
    DataError,
    MismatchError,
    NumericalError,
    ResourceError,
    UsageError,
)
from clcurv.inputs.dataset import Batch, Samples
from clcurv.inputs.layers import Layer

ESTIMATORS = ("mas", "fisher", "fisher-sampled", "fisher-empirical")


def measured(case: Case, **options) -> Importance:
    return measure_importance(
        case.model, case.samples, case.objective, **{"dtype": "float64", **options}
    )


@pytest.fixture
def by_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is taken layer by layer."""
    monkeypatch.setattr(run_room.Run, "_by_layer", lambda *_: None)


def linear(n: int = 11, features: int = 4, classes: int = 3) -> Case:
    torch.manual_seed(0)
    model = nn.Linear(features, classes, bias=False).double()
    x, y = torch.randn(n, features).double(), torch.randint(classes, (n,))
    return Case(model, Samples(x, y, digest="d" * 64), Objective())


def close(found: Importance, expected: dict[str, Tensor], tol: float = 1e-10) -> None:
    assert found.tensors.keys() == expected.keys()
    scale = max(float(e.max()) for e in expected.values())
    for name, e in expected.items():
        assert found.tensors[name].shape == e.shape
        assert float((found.tensors[name] - e).abs().max()) <= tol * scale, name


def first(samples: Samples, n: int) -> Samples:
    batch = samples.split(n)[0]
    return Samples(batch.inputs, batch.targets)


# Definitions, one sample at a time, with nothing of clcurv's but the network.


def terms_of(case: Case, i: int) -> tuple[Tensor, Tensor]:
    """Scored rows (T, C) of sample i with their graph, and targets."""
    inputs, targets = case.samples.inputs, case.samples.targets[i : i + 1]
    if isinstance(inputs, Tensor):
        out = case.model(inputs[i : i + 1])
    else:
        out = case.model(**{k: v[i : i + 1] for k, v in inputs.items()})
    out = getattr(out, "logits", out)
    if case.objective.name == "mse":
        if not targets.is_floating_point():
            targets = torch.eye(out.shape[-1], dtype=out.dtype)[targets]
        return out.reshape(1, -1), targets.reshape(1, -1)
    if case.objective.name == "next-token":
        out, targets = out[:, :-1], targets[:, 1:]
    out, targets = out.reshape(-1, out.shape[-1]), targets.reshape(-1)
    return out[targets != -100], targets[targets != -100]


def gradients(value: Tensor, params: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    found = torch.autograd.grad(value, list(params.values()), retain_graph=True, allow_unused=True)
    return {
        n: torch.zeros_like(p) if g is None else g
        for (n, p), g in zip(params.items(), found, strict=True)
    }


def by_definition(case: Case, estimator: str) -> tuple[dict[str, Tensor], list[dict], list[int]]:
    """Importance, every sample's contribution, and its weight."""
    case.model.eval()
    params = dict(case.model.named_parameters())
    shares, weights = [], []
    for i in range(len(case.samples)):
        rows, targets = terms_of(case, i)
        if len(rows) == 0:
            continue
        if estimator == "mas":
            share = {n: g.abs() for n, g in gradients(rows.square().sum(), params).items()}
            weights.append(1)
        elif estimator == "fisher-empirical":
            if case.objective.name == "mse":
                loss = (rows - targets).square().mean(1).sum()
            else:
                loss = (rows.logsumexp(1) - rows[range(len(rows)), targets]).sum()
            share = {n: g.square() for n, g in gradients(loss, params).items()}
            weights.append(len(rows))
        else:
            share = {n: torch.zeros_like(p) for n, p in params.items()}
            for row in rows:
                if case.objective.name == "mse":
                    parts = [(2 / len(row), value) for value in row]
                else:
                    p = row.detach().softmax(0)
                    parts = [(float(p[c]), row.log_softmax(0)[c]) for c in range(len(row))]
                for weight, value in parts:
                    for n, g in gradients(value, params).items():
                        share[n] += weight * g.square()
            weights.append(len(rows))
        shares.append(share)
    total = {n: sum(s[n] for s in shares) / sum(weights) for n in params}
    return total, shares, weights


def test_mas_of_a_linear_map_is_its_closed_form() -> None:
    case = linear()
    w, x = case.model.weight.detach(), case.samples.inputs
    expected = (2 * (x @ w.T)[:, :, None] * x[:, None, :]).abs().mean(0)
    found = measured(case)
    close(found, {"weight": expected})
    assert (found.estimator, found.compat, found.mode) == ("mas", "per-sample", "per-sample")
    assert (found.n_samples, found.batch_size, found.digest) == (11, None, "d" * 64)


def test_exact_fisher_of_softmax_regression_is_its_closed_form() -> None:
    case = linear()
    x = case.samples.inputs
    p = (x @ case.model.weight.detach().T).softmax(1)
    close(
        measured(case, estimator="fisher"),
        {"weight": (p * (1 - p)).T @ x.square() / len(x)},
    )


def test_exact_fisher_of_linear_regression_is_its_closed_form() -> None:
    case = linear()
    x = case.samples.inputs
    case.samples = Samples(x, torch.randn(len(x), 3).double())
    case.objective = Objective("mse")
    close(
        measured(case, estimator="fisher"),
        {"weight": (2 / 3 * x.square().mean(0)).expand(3, -1)},
    )


@pytest.mark.parametrize("loss", ["cross-entropy", "mse"])
def test_sampled_fisher_is_the_exact_one_on_average(loss: str) -> None:
    case = linear(n=4000)
    if loss == "mse":
        case.samples = Samples(case.samples.inputs, torch.zeros(4000, 3).double())
    case.objective = Objective(loss)
    draws = [
        measured(case, estimator="fisher-sampled", seed=seed).tensors["weight"] for seed in range(8)
    ]
    exact = measured(case, estimator="fisher").tensors["weight"]
    # Relative error of one entry of one draw about √(6/4000): 0.014 over 8 draws.
    off = torch.stack(draws).mean(0) / exact - 1
    assert float(off.abs().max()) < 0.06
    assert abs(float(off.mean())) < 0.02
    assert not torch.equal(draws[0], draws[1])


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("estimator", ["mas", "fisher", "fisher-empirical"])
def test_every_network_and_loss_against_the_definition(name: str, estimator: str) -> None:
    case = case_of(name)
    if estimator == "fisher":
        case.samples = first(case.samples, 7)
    expected, _, _ = by_definition(case, estimator)
    found = measured(case, estimator=estimator)
    close(found, expected)
    assert not [note for note in found.notes if "one by one" in note]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_no_batch_size_changes_the_numbers(name: str, estimator: str) -> None:
    case = case_of(name)
    if estimator == "fisher":
        case.samples = first(case.samples, 7)
    whole = measured(case, estimator=estimator)
    for size in (1, 4):
        other = measured(case, estimator=estimator, batch_size=size)
        close(other, dict(whole.tensors))
        assert other.layer_stderr == pytest.approx(whole.layer_stderr)
        assert other.mean_loss == pytest.approx(whole.mean_loss)
        assert other.accuracy == whole.accuracy


def test_standard_errors_are_those_of_the_mean_over_samples() -> None:
    case = case_of("conv")
    _, shares, _ = by_definition(case, "mas")
    layers = case.layers()
    found = measured(case, layers=layers)
    for layer in layers:
        values = torch.stack(
            [torch.cat([s[n].reshape(-1) for n in layer.param_names]).mean() for s in shares]
        )
        expected = float(values.std()) / math.sqrt(len(values))
        assert found.layer_stderr[layer.name] == pytest.approx(expected)


def test_the_model_comes_back_as_it_was_also_from_the_conventions_that_train() -> None:
    case = case_of("conv")
    case.model.train()
    for compat in ("per-sample", "reference", "facil", "avalanche", "authors"):
        with unchanged(case.model):
            measured(case, compat=compat, batch_size=5)


def test_neither_batch_statistics_nor_dropout_enter() -> None:
    case = case_of("conv")
    expected, _, _ = by_definition(case, "mas")
    case.model.fc = nn.Sequential(nn.Dropout(0.5), case.model.fc)
    case.model.train()
    found = measured(case)
    renamed = {n.replace("fc.", "fc.1."): e for n, e in expected.items()}
    close(found, renamed)


def gpt2(n: int = 6) -> Case:
    torch.manual_seed(11)
    config = transformers.GPT2Config(
        vocab_size=9, n_positions=8, n_embd=4, n_layer=1, n_head=2, n_inner=5
    )
    model = spread(transformers.GPT2LMHeadModel(config)).double()
    ids = torch.randint(9, (n, 6))
    mask = (torch.arange(6) < torch.randint(3, 7, (n, 1))).long()
    targets = ids.masked_fill(mask == 0, -100)
    return Case(
        model,
        Samples({"input_ids": ids, "attention_mask": mask}, targets),
        Objective("next-token"),
    )


def test_transposed_convolutions_of_gpt2_and_its_tied_head() -> None:
    case = gpt2()
    expected, _, _ = by_definition(case, "mas")
    found = measured(case)
    close(found, expected)
    assert not found.notes  # vectorised
    assert "lm_head.weight" not in found.tensors  # the embedding's, once
    assert found.tensors["transformer.h.0.attn.c_attn.weight"].shape == (4, 12)


def test_padding_does_not_count() -> None:
    case = gpt2()
    short = measured(case)
    inputs = case.samples.inputs
    wider = {
        "input_ids": nn.functional.pad(inputs["input_ids"], (0, 2), value=3),
        "attention_mask": nn.functional.pad(inputs["attention_mask"], (0, 2)),
    }
    targets = nn.functional.pad(case.samples.targets, (0, 2), value=-100)
    case.samples = Samples(wider, targets)
    close(measured(case), dict(short.tensors))


def test_mas_reads_no_labels() -> None:
    case = linear()
    expected = dict(measured(case).tensors)
    case.samples = Samples(case.samples.inputs, torch.full((11,), 99))
    found = measured(case)
    close(found, expected)
    assert found.mean_loss is None
    assert found.accuracy is None
    assert any("label 99" in note for note in found.notes)
    with pytest.raises(MismatchError, match="label 99"):
        measured(case, estimator="fisher-empirical")


class Branching(nn.Module):
    """What it does depends on a value, which no batched tensor can answer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) if float(x.sum()) > 0 else self.b(x)


@pytest.mark.usefixtures("by_sample")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("estimator", ["mas", "fisher"])
def test_the_same_without_going_layer_by_layer(name: str, estimator: str) -> None:
    case = case_of(name)
    case.samples = first(case.samples, 5)
    expected, _, _ = by_definition(case, estimator)
    found = measured(case, estimator=estimator)
    close(found, expected)
    assert not [note for note in found.notes if "one by one" in note]


def test_what_cannot_be_batched_is_taken_one_by_one_and_said() -> None:
    case = linear()
    case.model = Branching().double()
    expected, _, _ = by_definition(case, "mas")
    found = measured(case)
    close(found, expected)
    assert any("one by one" in note for note in found.notes)


@pytest.mark.parametrize("kind", [nn.Conv2d, nn.BatchNorm2d])
def test_a_layers_result_that_is_wrong_is_not_believed(
    kind: type[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = case_of("conv")
    expected, _, _ = by_definition(case, "mas")
    true = Use.dense

    def wrong(self, rows):
        return true(self, rows) * (1.02 if isinstance(self.module, kind) else 1)

    monkeypatch.setattr(Use, "dense", wrong)
    found = measured(case)
    close(found, expected)
    assert any("not taken layer by layer" in note for note in found.notes)


@pytest.mark.usefixtures("by_sample")
def test_a_vectorised_result_that_is_wrong_is_not_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = case_of("conv")
    expected, _, _ = by_definition(case, "mas")
    true = PerSample._mapped

    def wrong(self, *args, **kwargs):
        grads, rows = true(self, *args, **kwargs)
        return {n: 1.01 * g for n, g in grads.items()}, rows

    monkeypatch.setattr(PerSample, "_mapped", wrong)
    found = measured(case)
    close(found, expected)
    assert any("differs" in note for note in found.notes)


@pytest.mark.parametrize("way", [Layerwise.add, PerSample.__call__])
def test_memory_that_runs_out_halves_the_chunk(
    way: Callable, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    case, owner = case_of("conv"), Layerwise
    expected = dict(measured(case).tensors)
    if way is PerSample.__call__:
        request.getfixturevalue("by_sample")
        owner = PerSample
    sizes, most = [], 6

    def small(self, batch: Batch, *rest):
        sizes.append(len(batch))
        if len(batch) > most:
            raise torch.OutOfMemoryError("out of memory")
        return way(self, batch, *rest)

    monkeypatch.setattr(owner, way.__name__, small)
    found = measured(case)
    close(found, expected)
    trial = [run_room.TRIAL] if owner is Layerwise else []
    assert sizes == [*trial, 23, 12, 6, 6, 6, 5]
    assert found.notes[-1] == "out of memory: chunks halved to 6 samples"
    most = 0
    monkeypatch.setattr(PerSample, "__call__", small)
    with pytest.raises(ResourceError, match="single sample"):
        measured(case)


def test_memory_that_runs_out_half_way_is_no_reason_to_count_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    true = Sums.add

    def full(self, name: str, block: Tensor, how: str, at: int = 0) -> None:
        if len(self._totals) > 1 and len(self._chunk[name]) > run_room.TRIAL and name == "bn1.bias":
            raise torch.OutOfMemoryError("out of memory")
        true(self, name, block, how, at)

    monkeypatch.setattr(Sums, "add", full)
    with pytest.raises(ResourceError, match="out of memory"):
        measured(case_of("conv"))


@pytest.mark.usefixtures("by_sample")
def test_memory_bounds_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of("conv")
    sizes: list[int] = []
    true = PerSample.__call__

    def spy(self, batch: Batch, noise: Tensor):
        sizes.append(len(batch))
        return true(self, batch, noise)

    monkeypatch.setattr(PerSample, "__call__", spy)
    own = 8 * sum(p.numel() for p in case.model.parameters())
    measured(case, memory=own)
    assert max(sizes) == 1


def by_batches(case: Case, size: int, function: Callable[[Tensor], Tensor]) -> list[dict]:
    params = dict(case.model.named_parameters())
    batches = case.samples.split(size)
    return [
        {n: g.abs() for n, g in gradients(function(case.model(b.inputs)), params).items()}
        for b in batches
    ]


def summed(parts: list[dict], scale: float) -> dict[str, Tensor]:
    return {n: scale * sum(p[n] for p in parts) for n in parts[0]}


def test_conventions_of_others_in_eval_mode() -> None:
    case = case_of("conv")  # 23 samples: 5, 5, 5, 5, 3
    case.model.eval()
    parts = by_batches(case, 5, lambda out: out.square().sum())
    found = measured(case, compat="reference", batch_size=5)
    close(found, summed(parts, 1 / 23))
    assert (found.mode, found.batch_size, found.compat) == ("batch", 5, "reference")
    close(measured(case, compat="authors", batch_size=5), summed(parts, 5 / 23))
    assert measured(case, compat="authors").batch_size == 20


def test_conventions_of_others_in_train_mode() -> None:
    case = case_of("conv")
    case.model.train()  # each batch with its own statistics
    before = {n: b.clone() for n, b in case.model.named_buffers()}
    parts = by_batches(case, 5, lambda out: out.norm(dim=1).mean())
    case.model.load_state_dict(before, strict=False)
    case.model.eval()
    found = measured(case, compat="facil", batch_size=5)
    close(found, summed(parts[:4], 1 / 4))  # full batches only
    assert found.mode == "batch-train"
    close(measured(case, compat="avalanche", batch_size=5), summed(parts, 3 / 5))


def test_a_batch_gradient_loses_what_cancels() -> None:
    case = linear(n=40)
    reference = measured(case, compat="reference", batch_size=20).tensors["weight"]
    own = measured(case).tensors["weight"]
    assert bool((reference <= own + 1e-12).all())
    assert float(reference.mean() / own.mean()) < 0.9


def test_conventions_are_of_mas_alone() -> None:
    case = linear()
    with pytest.raises(UsageError, match="convention of MAS"):
        measured(case, estimator="fisher", compat="reference")
    with pytest.raises(UsageError, match="unknown --compat"):
        measured(case, compat="mine")
    with pytest.raises(UsageError, match="unknown estimator"):
        measured(case, estimator="mean")


def test_the_exact_fisher_of_many_classes_is_refused() -> None:
    case = linear(classes=21)
    with pytest.raises(UsageError, match="20 backward passes") as caught:
        measured(case, estimator="fisher")
    assert "fisher-sampled" in str(caught.value.hint)
    found = measured(case, estimator="fisher", max_classes=21)
    x = case.samples.inputs
    p = (x @ case.model.weight.detach().T).softmax(1)
    close(found, {"weight": (p * (1 - p)).T @ x.square() / len(x)})
    assert found.cost_gradients == pytest.approx(1 / 3 + 2 / 3 * 20)


def test_small_squares_survive_single_precision() -> None:
    case = linear()
    case.model.weight.data *= 1e-8
    case.samples = Samples(1e-8 * case.samples.inputs, torch.zeros(11, 3).double())
    case.objective = Objective("mse")
    x, w = case.samples.inputs, case.model.weight.detach()
    expected = ((2 / 3 * (x @ w.T))[:, :, None] * x[:, None]).square().mean(0)
    found = measured(case, estimator="fisher-empirical", dtype="float32").tensors["weight"]
    assert float(expected.max()) < 1e-45
    assert torch.allclose(found, expected, rtol=1e-5, atol=0)


def test_a_bad_sample_is_named() -> None:
    case = case_of("conv")
    case.samples.inputs[13, 0, 2, 2] = math.nan
    with pytest.raises(NumericalError, match=r"sample 13 .*conv1"):
        measured(case)
    with pytest.raises(NumericalError, match="sample 13"):
        measured(case, compat="reference", batch_size=1)


class Rooted(nn.Module):
    """Finite output, infinite slope at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(2, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return 1 + self.a(x).abs().sqrt()


def test_an_infinite_gradient_is_named() -> None:
    x = torch.ones(5, 2)
    x[3] = 0
    case = Case(Rooted(), Samples(x, torch.zeros(5, dtype=torch.long)), Objective())
    with pytest.raises(NumericalError, match=r"layer a\.weight is not finite on sample 3"):
        measured(case)


def test_parameters_without_part_in_the_output() -> None:
    case = linear()
    case.model = nn.Sequential(case.model)
    case.model.register_parameter("idle", nn.Parameter(torch.ones(3).double()))
    found = measured(case)
    assert not bool(found.tensors["idle"].any())
    assert any("idle" in note for note in found.notes)
    with pytest.raises(NumericalError, match="none of them"):
        measured(case, layers=[Layer("idle", ("idle",), 0)])


def test_bad_requests() -> None:
    case = linear()
    empty = Samples(torch.zeros(0, 4), torch.zeros(0, dtype=torch.long))
    with pytest.raises(DataError, match="empty"):
        measure_importance(case.model, empty, case.objective)
    with pytest.raises(UsageError, match="batch of 0"):
        measured(case, batch_size=0)
    with pytest.raises(MismatchError, match="cannot be run"):
        measure_importance(case.model, Samples(torch.zeros(3, 9), torch.zeros(3)), case.objective)
    case.samples = Samples(case.samples.inputs, torch.full((11,), -100))
    with pytest.raises(NumericalError, match="every target is ignored"):
        measured(case, estimator="fisher-empirical")


def test_layers_choose_what_is_measured() -> None:
    case = case_of("conv")
    layers = [x for x in case.layers() if not x.is_head]
    found = measured(case, layers=layers)
    assert found.tensors.keys() == {n for x in layers for n in x.param_names}
    assert found.layer_stderr.keys() == {x.name for x in layers}
    whole = measured(case, layers=case.layers())
    assert whole.head == ("fc.weight", "fc.bias")
    wider = room.fingerprint_of(
        {
            n: ((9, *t.shape[1:]) if n in whole.head else tuple(t.shape))
            for n, t in whole.tensors.items()
        },
        whole.head,
    )
    assert wider == whole.fingerprint != found.fingerprint


def test_progress_counts_samples() -> None:
    seen: list[tuple[str, int, int]] = []
    measured(case_of("conv"), batch_size=10, progress=lambda *a: seen.append(a))
    assert seen == [("importances", done, 23) for done in (10, 20, 23)]
