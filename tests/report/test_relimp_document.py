"""The report of `clcurv relimp`: what it holds, what it warns of, and that it reads back."""

from __future__ import annotations

import io
import json
import math

import pytest
from pydantic import ValidationError
from relimp_results import (
    make_document,
    make_layer,
    make_look_ahead,
    make_result,
    make_search,
    make_side,
    make_tensor,
)

from clcurv.errors import InputError
from clcurv.report.document import to_json
from clcurv.report.reader import load_document, load_report
from clcurv.report.relimp_document import DensityInfo, RelimpDocument


def test_shares_are_of_the_parameters_outside_the_head() -> None:
    shares = make_document().shares
    assert shares.protected == pytest.approx((0.6 * 1000 + 0.2 * 3000) / 4000)
    assert shares.shared == pytest.approx((0.1 * 1000 + 0.3 * 3000) / 4000)
    assert shares.protected + shares.shared + shares.free == pytest.approx(1)
    assert make_document([make_layer("head", 0, is_head=True)]).shares is None


def test_documents_are_read_back_as_they_were() -> None:
    for doc in (
        make_document(document={"search": make_search()}),
        make_document(past_only=True),
        make_document(document={"complete": False}, past_only=True),
    ):
        text = to_json(doc)
        assert load_report(io.StringIO(text)) == doc
        assert load_document(io.StringIO(text), RelimpDocument) == doc
        held = json.loads(text)
        assert (held["schema"], held["schema_version"]) == ("clcurv.relimp", "1.0")


def test_a_number_that_is_not_finite_becomes_null() -> None:
    layer = make_layer(rank_correlation=math.nan, multiplier_max=math.inf, past_stderr=math.nan)
    doc = make_document([layer], past=make_side(mean_loss=math.inf))
    assert doc.layers[0].agreement.rank_correlation is None
    assert (doc.layers[0].multiplier_max, doc.layers[0].past_stderr) == (None, None)
    assert doc.past.mean_loss is None
    assert "NaN" not in to_json(doc)
    assert "Infinity" not in to_json(doc)


def test_the_past_alone() -> None:
    doc = make_document(past_only=True)
    assert [x.past_mean for x in doc.layers] == [0.5, 0.5, 0.5]
    assert [x.past_stderr for x in doc.layers] == [0.05, 0.05, 0.05]
    assert (doc.layers[0].protected, doc.layers[0].agreement) == (None, None)
    assert doc.penalty is None


def test_the_search_names_its_trials() -> None:
    doc = make_document(document={"search": make_search()})
    found = doc.search
    assert (found.reference, found.uniform, found.chosen) == (0, 2, 3)
    assert found.trials[4].status == "diverged"
    assert doc.penalty.searched
    assert "score 0.800 against 0.850 without a penalty and 0.750" in doc.penalty.advice
    uniform = make_document(document={"search": make_search(chosen=2)})
    assert uniform.penalty.kind == "uniform"
    assert uniform.penalty.advice.startswith("uniform penalty")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"past": make_side(accuracy=0.12)}, "accuracy of the network on the past task, 12.0 %"),
        ({"current": make_side(accuracy=0.1)}, "accuracy of the look-ahead copy"),
        ({"past": make_side(near_zero=0.7)}, "70.0 % of the past importances are (nearly) zero"),
        ({"look_ahead": make_look_ahead(loss_after=2.4)}, "did not lower the validation loss"),
        ({"lambda_": 9.0}, "overshoots"),
    ],
)
def test_warnings_follow_from_the_numbers(changes, said) -> None:
    assert any(said in w for w in make_document(**changes).warnings)
    assert not any(said in w for w in make_document().warnings)


def test_tensors_without_importance_are_named() -> None:
    layer = make_layer()
    empty = make_tensor(layer, status="no-importance")
    doc = make_document([layer], tensors=(empty,))
    assert any("neither task has any importance in blocks.0.weight" in w for w in doc.warnings)
    few = make_document([layer], tensors=(empty, make_tensor(layer, numel=200_000)))
    assert not few.warnings


def test_trials_of_an_interrupted_search_are_kept() -> None:
    trials = make_search().trials[:2]
    doc = make_document(document={"complete": False, "trials": trials}, past_only=True)
    assert [t.phase for t in doc.search.trials] == ["reference", "uniform"]
    assert (doc.search.chosen, doc.search.acceptable) == (None, False)


def test_nothing_to_hold() -> None:
    doc = make_document(lambda_=0.0, lambda_ceiling=None)
    assert doc.penalty.ceiling is None
    assert "nothing to hold" in doc.penalty.advice


def test_accuracy_has_its_binomial_error() -> None:
    assert make_document().past.accuracy_stderr == pytest.approx(math.sqrt(0.9 * 0.1 / 400))


def test_a_density_of_another_shape_is_refused() -> None:
    with pytest.raises(ValidationError, match="do not fit"):
        DensityInfo(past_edges=(0.0, 1.0), current_edges=(0.0, 1.0), counts=((1, 2),))


def test_other_documents_are_not_taken_for_it() -> None:
    held = json.loads(to_json(make_document()))
    with pytest.raises(InputError, match=r"clcurv\.other"):
        load_report(held | {"schema": "clcurv.other"})
    with pytest.raises(InputError, match=r"version '2\.0'"):
        load_report(held | {"schema_version": "2.0"})
    with pytest.raises(InputError, match="layers"):
        load_report(held | {"layers": []})


def test_results_without_a_look_ahead_are_told() -> None:
    assert make_document(look_ahead=None).look_ahead is None
    assert make_result().look_ahead is not None
