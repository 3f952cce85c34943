"""Losses by their definition, and what does not fit them."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from oracles import row_hessians, rows_of, term_losses
from torch import Tensor, nn

from clcurv.curvature.objective import Objective, forward
from clcurv.errors import MismatchError, UsageError
from clcurv.inputs.dataset import Batch


class Fixed(nn.Module):
    """Returns what it was given, so that outputs can be chosen."""

    def forward(self, x: Tensor) -> Tensor:
        return x


def class_ids(n: int = 6, classes: int = 4) -> Batch:
    torch.manual_seed(0)
    return Batch(torch.randn(n, classes).double(), torch.randint(classes, (n,)))


def token_batch(n: int = 4, length: int = 5, vocab: int = 6) -> Batch:
    torch.manual_seed(1)
    targets = torch.randint(vocab, (n, length))
    targets[0, 1:3] = -100
    targets[2] = -100
    return Batch(torch.randn(n, length, vocab).double(), targets)


def test_cross_entropy_is_log_sum_minus_the_label() -> None:
    rows = torch.tensor([[0.0, math.log(3.0)], [1.0, 1.0]]).double()
    found = Objective().per_term(rows, torch.tensor([1, 0]))
    assert found.tolist() == pytest.approx([math.log(4 / 3), math.log(2)])


def test_mse_is_the_mean_over_outputs() -> None:
    rows = torch.tensor([[1.0, 2.0], [0.0, 0.0]])
    found = Objective("mse").per_term(rows, torch.tensor([[0.0, 0.0], [3.0, 4.0]]))
    assert found.tolist() == pytest.approx([2.5, 12.5])


@pytest.mark.parametrize("name", ["cross-entropy", "next-token", "masked-lm"])
@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_tokens_are_scored_where_they_should_be(name: str, scale: float) -> None:
    batch, objective = token_batch(), Objective(name, scale)
    rows, targets = objective.rows(batch.inputs, batch.targets)
    theirs, wanted = rows_of(Fixed(), batch.inputs, batch.targets, name)
    assert torch.equal(rows, theirs)
    assert torch.equal(targets, wanted)
    assert objective.terms(batch.targets) == len(rows) == (10 if name == "next-token" else 13)
    found = objective.loss_sum(Fixed(), batch)
    assert float(found) == pytest.approx(scale * float(term_losses(theirs, wanted, name).sum()))


def test_next_token_predicts_the_following_one() -> None:
    """Certain of the right next token: loss zero; certain of the present one: not."""
    ids = torch.tensor([[0, 1, 2, 3]])
    following = 50 * nn.functional.one_hot(torch.tensor([[1, 2, 3, 0]]), 4).double()
    present = 50 * nn.functional.one_hot(ids, 4).double()
    objective = Objective("next-token")
    assert float(objective.loss_sum(Fixed(), Batch(following, ids))) == pytest.approx(0, abs=1e-9)
    assert float(objective.loss_sum(Fixed(), Batch(present, ids))) == pytest.approx(150)


def test_class_ids_become_one_hot_for_mse() -> None:
    batch = class_ids()
    rows, targets = Objective("mse").rows(batch.inputs, batch.targets)
    assert torch.equal(targets.argmax(1), batch.targets)
    assert targets.sum(1).tolist() == [1.0] * 6
    assert targets.dtype == rows.dtype == torch.float64


def test_a_single_regression_output_may_be_a_vector() -> None:
    rows, targets = Objective("mse").rows(torch.zeros(3, 1), torch.tensor([1.0, 2.0, 3.0]))
    assert rows.shape == targets.shape == (3, 1)


def test_dense_prediction_has_its_classes_second() -> None:
    """As torch's cross_entropy takes it: (n, C, h, w) against (n, h, w)."""
    torch.manual_seed(0)
    output, targets = torch.randn(2, 5, 3, 4), torch.randint(5, (2, 3, 4))
    targets[0, 0] = -100
    objective = Objective()
    found = objective.loss_sum(Fixed(), Batch(output, targets)) / objective.terms(targets)
    assert float(found) == pytest.approx(float(nn.functional.cross_entropy(output, targets)))


def test_a_batch_without_a_scored_term_is_empty_not_nan() -> None:
    batch = Batch(torch.randn(2, 3, 4), torch.full((2, 3), -100))
    objective = Objective("masked-lm")
    assert objective.terms(batch.targets) == 0
    assert float(objective.loss_sum(Fixed(), batch)) == 0.0


@pytest.mark.parametrize("name", ["cross-entropy", "mse", "masked-lm", "next-token"])
def test_scores_of_a_forward_pass(name: str) -> None:
    batch = class_ids() if name in ("cross-entropy", "mse") else token_batch()
    score, loss, correct = Objective(name).curvature_scores(Fixed(), batch)
    rows, targets = rows_of(Fixed(), batch.inputs, batch.targets, name)
    terms = term_losses(rows, targets, name)
    assert len(score) == len(loss) == len(batch)
    assert float(loss.sum()) == pytest.approx(float(terms.sum()))
    wanted = targets.argmax(1) if name == "mse" else targets
    assert correct == int((rows.argmax(1) == wanted).sum())
    if name == "mse":
        assert score.tolist() == [1.0] * 6
        return
    hessian = row_hessians(rows, name).diagonal(dim1=1, dim2=2).sum(1)
    residual = rows.softmax(1) - nn.functional.one_hot(targets, rows.shape[1])
    each = torch.maximum(hessian, residual.square().sum(1))
    assert float(score.sum()) == pytest.approx(float(each.sum()))


def test_scores_belong_to_their_sample() -> None:
    batch = token_batch()
    score, loss, _ = Objective("masked-lm").curvature_scores(Fixed(), batch)
    assert score[2] == loss[2] == 0
    alone = Batch(batch.inputs[1:2], batch.targets[1:2])
    expected = Objective("masked-lm").curvature_scores(Fixed(), alone)
    assert float(score[1]) == pytest.approx(float(expected[0]))
    assert float(loss[1]) == pytest.approx(float(expected[1]))


@pytest.mark.parametrize(
    ("output", "targets", "name"),
    [
        (torch.zeros(3, 4), torch.zeros(3, 2).long(), "cross-entropy"),
        (torch.zeros(3, 4), torch.tensor([0, 1, 4]), "cross-entropy"),
        (torch.zeros(3, 4), torch.tensor([0, 1, -1]), "cross-entropy"),
        (torch.zeros(3), torch.tensor([0, 1, 2]), "cross-entropy"),
        (torch.zeros(3, 4), torch.zeros(3), "cross-entropy"),
        (torch.zeros(3, 4), torch.zeros(3, 2), "mse"),
        (torch.zeros(3, 4), torch.tensor([0, 1, 9]), "mse"),
        (torch.zeros(3, 5, 6), torch.zeros(3, 4).long(), "masked-lm"),
        (torch.zeros(3, 6), torch.tensor([0, 1, 2]), "next-token"),
        (torch.zeros(3, 5, 6), torch.zeros(3, 5), "next-token"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(
    output: Tensor, targets: Tensor, name: str
) -> None:
    with pytest.raises(MismatchError) as refused:
        Objective(name).rows(output, targets)
    assert "\n" not in str(refused.value)


def test_labels_outside_are_counted() -> None:
    with pytest.raises(MismatchError, match=r"label 7 .* 4 classes \(2 of 3 labels do\)"):
        Objective().rows(torch.zeros(3, 4), torch.tensor([0, 7, 9]))


def test_unknown_loss() -> None:
    with pytest.raises(UsageError, match="hinge"):
        Objective("hinge")  # type: ignore[arg-type]


def test_what_models_return() -> None:
    x = torch.zeros(2, 3)
    wrapped = {
        "tensor": lambda inputs: inputs,
        "logits": lambda inputs: SimpleNamespace(logits=inputs),
        "tuple": lambda inputs: (inputs, None),
        "list": lambda inputs: [inputs],
    }
    for call in wrapped.values():
        assert forward(call, Batch(x, x)) is x  # type: ignore[arg-type]
    with pytest.raises(MismatchError, match="dict"):
        forward(lambda inputs: {"a": inputs}, Batch(x, x))  # type: ignore[arg-type]


def test_mappings_are_keywords() -> None:
    def model(*, a: Tensor, b: Tensor) -> Tensor:
        return a + b

    batch = Batch({"a": torch.ones(2), "b": torch.ones(2)}, torch.zeros(2))
    assert forward(model, batch).tolist() == [2.0, 2.0]  # type: ignore[arg-type]
