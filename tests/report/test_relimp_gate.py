"""Gates on the report of `clcurv relimp`."""

from __future__ import annotations

import pytest
from kappa_results import make_document as kappa_report
from relimp_results import make_document, make_layer, make_search, make_side

from clcurv.errors import UsageError
from clcurv.report.gate import evaluate, parse_gate
from clcurv.report.relimp_document import RelimpDocument


def judged(doc, expression):
    verdict = evaluate([parse_gate(expression, document=RelimpDocument)], doc)
    return verdict.gates[0].outcome


@pytest.mark.parametrize(
    ("expression", "outcome"),
    [
        ("shares.shared>0.2", "fail"),
        ("shares.shared>0.3", "pass"),
        ("agreement.rank_correlation>0.4", "fail"),
        ("agreement.rank_correlation>0.5", "inconclusive"),
        ("agreement.overlap>0.4", "pass"),
        ("layers[0].agreement.overlap>0.35", "inconclusive"),
        ("layers[*].shared>0.25", "fail"),
        ("layers[*].agreement.rank_correlation<0.3", "pass"),
        ('layers["blocks.1"].protected<0.5', "fail"),
        ("penalty.lambda>100", "pass"),
        ("past.accuracy<0.8", "pass"),
        ("past.accuracy<0.9", "inconclusive"),
        ("past.accuracy<0.95", "fail"),
        ("layers[0].past_mean>0.55", "inconclusive"),
        ("look_ahead.score_after<0.5", "pass"),
        ("estimator.estimator!=mas", "pass"),
        ("search.acceptable==false", "inconclusive"),
    ],
)
def test_gates(expression, outcome) -> None:
    layers = [
        make_layer("blocks.0", 0),
        make_layer("blocks.1", 1, numel=3000, protected=0.2, shared=0.3, free=0.5),
        make_layer("head", 2, numel=50, is_head=True),
    ]
    assert judged(make_document(layers), expression) == outcome


def test_the_head_does_not_decide_among_layers() -> None:
    layers = [make_layer("body", 0), make_layer("head", 1, is_head=True, protected=0.99)]
    assert judged(make_document(layers), "layers[*].protected>0.9") == "pass"
    assert judged(make_document(layers), 'layers["head"].protected>0.9') == "fail"


def test_what_is_not_known_is_inconclusive() -> None:
    constant = make_layer(rank_correlation=None, rank_low=None, rank_high=None)
    few = make_layer(overlap_low=None, overlap_high=None)
    assert judged(make_document([constant]), "layers[0].agreement.rank_correlation<1") == (
        "inconclusive"
    )
    assert judged(make_document([few]), "layers[0].agreement.overlap>0") == "inconclusive"
    assert judged(make_document(past_only=True), "shares.shared>0.1") == "inconclusive"
    assert judged(make_document(document={"complete": False}), "shares.shared>0.1") == (
        "inconclusive"
    )


def test_a_penalty_that_no_trial_accepted_decides_nothing() -> None:
    doc = make_document(document={"search": make_search(acceptable=False)})
    assert judged(doc, "penalty.lambda>1") == "inconclusive"
    assert judged(make_document(document={"search": make_search()}), "penalty.lambda>1") == "fail"


def compared(new, old, allowed=0.1):
    verdict = evaluate([], new, baseline=old, regression=allowed)
    return [g.outcome for g in verdict.gates]


def with_shared(shared):
    return make_document([make_layer(shared=shared, protected=0.5, free=0.5 - shared)])


def test_comparison_with_a_baseline() -> None:
    assert compared(with_shared(0.2), with_shared(0.1)) == ["fail", "pass"]
    assert compared(with_shared(0.105), with_shared(0.1)) == ["pass", "pass"]
    assert compared(with_shared(0.1), with_shared(0.0)) == ["fail", "pass"]
    assert compared(with_shared(0.0), with_shared(0.0)) == ["pass", "pass"]


def test_accuracy_on_another_sample_has_an_interval() -> None:
    old = make_document()
    same = make_document(past=make_side(accuracy=0.8))
    assert compared(same, old) == ["pass", "fail"]
    other = make_document(past=make_side(accuracy=0.8, digest="c" * 64))
    assert compared(other, old) == ["pass", "inconclusive"]
    far = make_document(past=make_side(accuracy=0.6, digest="c" * 64))
    assert compared(far, old) == ["pass", "fail"]
    unknown = make_document(past=make_side(accuracy=None))
    assert compared(unknown, old) == ["pass", "inconclusive"]


def test_what_cannot_be_compared() -> None:
    other = make_document(current=make_side(digest="d" * 64))
    assert compared(other, make_document()) == ["inconclusive", "pass"]
    assert compared(make_document(past_only=True), make_document()) == ["inconclusive", "pass"]
    with pytest.raises(UsageError, match=r"clcurv\.schedule"):
        evaluate([], make_document(), baseline=kappa_report([1.0, 2.0, 3.0]), regression=0.1)


def test_paths_of_another_report_are_refused() -> None:
    with pytest.raises(UsageError, match="no 'kappa'"):
        parse_gate("kappa>2", document=RelimpDocument)
