"""What may be compared with what, and several tasks in one importance."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from importance_makers import importance, small

from clcurv.diagnostics.importance_kind import accumulate, check_fits, check_same_kind
from clcurv.errors import MismatchError


def test_the_same_kind_passes_also_with_a_grown_head() -> None:
    check_same_kind(small(), small(1))
    check_same_kind(small(), small(1, rows=5))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("estimator", "fisher"),
        ("compat", "reference"),
        ("mode", "batch"),
        ("loss", "mse"),
        ("batch_size", 20),
        ("n_samples", 65),
    ],
)
def test_other_settings_are_refused_with_both_values(field: str, value: object) -> None:
    other = replace(small(), **{field: value})
    with pytest.raises(MismatchError, match=f"{getattr(small(), field)} .* {value} ") as caught:
        check_same_kind(small(), other)
    assert caught.value.hint
    if field == "n_samples":
        check_same_kind(small(), other, samples_may_differ=True)


def test_other_models_are_refused() -> None:
    shapes = {n: tuple(t.shape) for n, t in small().tensors.items()}
    check_fits(small(), shapes)
    check_fits(small(), shapes | {"head.weight": (9, 6)})
    for bad, says in (
        (shapes | {"body.bias": (7,)}, "'body.bias' has shape"),
        (shapes | {"body.weight": (7, 5)}, "'body.weight' has shape"),  # no head
        (shapes | {"head.weight": (2, 6)}, "'head.weight' has shape"),  # a smaller one
        (shapes | {"head.weight": (3, 7)}, "'head.weight' has shape"),
        (shapes | {"more": (1,)}, "'more' which it lacks"),
        ({n: s for n, s in shapes.items() if n != "body.bias"}, "'body.bias' of which"),
    ):
        with pytest.raises(MismatchError, match=says) as caught:
            check_fits(small(), bad, where="old.safetensors")
        assert str(caught.value).startswith("old.safetensors is of another model")


def test_the_mean_over_tasks_is_the_mean_whatever_the_order_of_joining() -> None:
    tasks = [small(seed) for seed in range(4)]
    total = tasks[0]
    for task in tasks[1:]:
        total = accumulate(total, task)
    for name in total.tensors:
        expected = torch.stack([t.tensors[name] for t in tasks]).mean(0)
        assert torch.allclose(total.tensors[name], expected)
    assert total.accumulated == 4
    assert total.layer_stderr == pytest.approx({"body": 0.25 / 2})  # of a mean of four
    assert total.mean_loss == pytest.approx(0.5)
    assert total.digest not in [t.digest for t in tasks]


def test_the_maximum_over_tasks() -> None:
    a, b = small(0), small(1)
    joined = accumulate(a, b, how="max")
    for name in joined.tensors:
        assert torch.equal(joined.tensors[name], torch.maximum(a.tensors[name], b.tensors[name]))
    assert joined.layer_stderr == {}


def test_new_rows_were_not_important_before() -> None:
    joined = accumulate(small(0), small(1, rows=5)).tensors["head.weight"]
    new = small(1, rows=5).tensors["head.weight"]
    assert torch.allclose(joined[3:], new[3:] / 2)
    assert torch.allclose(joined[:3], (new[:3] + small(0).tensors["head.weight"]) / 2)


def test_other_kinds_are_not_joined() -> None:
    with pytest.raises(MismatchError):
        accumulate(small(), replace(small(1), estimator="fisher"))
    with pytest.raises(MismatchError):
        accumulate(small(), importance({"other": torch.ones(2)}))
    assert accumulate(small(), replace(small(1), n_samples=9)).n_samples == 9
