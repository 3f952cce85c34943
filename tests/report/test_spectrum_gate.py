from __future__ import annotations

import pytest
from kappa_results import make_document as make_kappa_document
from spectrum_results import (
    failed_task,
    make_document,
    make_modes,
    make_rank,
    make_result,
    make_spectrum,
    make_task,
    make_verdict,
)

from clcurv.errors import UsageError
from clcurv.report.gate import evaluate, parse_gate
from clcurv.report.spectrum_document import SpectrumDocument


def judge(expression, document=None, **options):
    gate = parse_gate(expression, document=SpectrumDocument)
    verdict = evaluate([gate], document or make_document(), **options)
    return verdict.gates[0].outcome, verdict.exit_code


@pytest.mark.parametrize(
    ("expression", "outcome"),
    [
        ("verdict==collapsed", "fail"),
        ("verdict.value==collapsed", "fail"),
        ("verdict==healthy", "pass"),
        ("verdict!=healthy", "fail"),
        ("verdict=='at risk'", "pass"),
        ("verdict==at risk", "pass"),
        # ε-rank of the last task: 1 %, interval 0.9 to 1.1 %
        ("tasks[-1].eps_rank.fast.fraction<0.02", "fail"),
        ("tasks[-1].eps_rank.fast.fraction<0.01", "inconclusive"),
        ("tasks[-1].eps_rank.fast.fraction<0.0091", "inconclusive"),
        ("tasks[-1].eps_rank.fast.fraction<0.008", "pass"),
        ("tasks[-2].eps_rank.fast.fraction<0.02", "pass"),
        ("tasks[2].eps_rank.fast.count<8", "pass"),
        ("tasks[2].eps_rank.fast.count<10", "inconclusive"),
        ("tasks[2].eps_rank.fast.count<12", "fail"),
        ('tasks["task-3"].eps_rank.fast.fraction<0.02', "fail"),
        ("tasks[*].eps_rank.fast.fraction<0.02", "fail"),
        ("tasks[*].eps_rank.fast.fraction<0.001", "pass"),
        ("tasks[-1].eps_rank.relative.fraction<0.02", "fail"),
        ("tasks[-1].eps_rank.curve[*].fraction>0.5", "pass"),
        ("tasks[-1].fast_modes.share<0.5", "fail"),
        ("tasks[-1].fast_modes<0.5", "usage"),
        ("tasks[-1].effective_rank<5", "fail"),
        ("tasks[-1].effective_rank.fraction<0.01", "pass"),
        ("tasks[-1].features['body.2'].dormant>0.04", "fail"),
        ("tasks[-1].accuracy<0.5", "pass"),
        ("tasks[0].status!=ok", "pass"),
        ("tasks[-1].spectrum.lambda_max>9", "fail"),
        ("tasks[-1].spectrum.lambda_max>10.0005", "inconclusive"),  # the residual is 0.001
        ("tasks[-1].spectrum.lambda_max>11", "pass"),
        ("tasks[-1].spectrum.trace>1000", "pass"),
        ("tasks[99].eps_rank.fast.fraction<1", "inconclusive"),
        ("verdict.signals['eps_rank.fast'].ratio<0.5", "fail"),
        ("l2er.er_lr>0", "fail"),
        ("complete==false", "pass"),
    ],
)
def test_fails_where_the_expression_is_true(expression, outcome):
    if outcome == "usage":
        with pytest.raises(UsageError, match="not one value"):
            parse_gate(expression, document=SpectrumDocument)
        return
    code = {"pass": 0, "fail": 10, "inconclusive": 11}[outcome]
    assert judge(expression) == (outcome, code)


def test_what_was_not_resolved_is_not_judged():
    open_ = make_rank(0.01, status="not-resolved", reason="m and m/2 steps differ")
    doc = make_document(
        tasks=[
            make_task(
                1,
                spectrum=make_spectrum(
                    rank_fast=open_, lambda_min_converged=False, rank_relative=make_rank(0.5)
                ),
                fast_modes=make_modes(status="not-resolved"),
            )
        ]
    )
    for expression in (
        "tasks[0].eps_rank.fast.fraction<0.5",
        "tasks[0].eps_rank.fast.count<1e9",
        "tasks[0].fast_modes.share<0.99",
        "tasks[0].spectrum.lambda_min<1",
    ):
        assert judge(expression, doc) == ("inconclusive", 11)
        assert judge(expression, doc, inconclusive="pass") == ("inconclusive", 0)
    gate = parse_gate("tasks[0].eps_rank.fast.fraction<0.5", document=SpectrumDocument)
    assert "m and m/2 steps differ" in evaluate([gate], doc).gates[0].reason
    assert judge("tasks[0].eps_rank.relative.fraction<0.1", doc)[0] == "pass"


def test_errors_over_the_data_are_the_gates_intervals():
    doc = make_document(tasks=[make_task(1, share=0.5, share_stderr=0.1, erank_stderr=2.0)])
    for expression, outcome in (
        ("tasks[0].fast_modes.share<0.69", "inconclusive"),  # 0.5 ± 0.196
        ("tasks[0].fast_modes.share<0.70", "fail"),
        ("tasks[0].fast_modes.share<0.30", "pass"),
        ("tasks[0].effective_rank<26.3", "inconclusive"),  # 22.5 ± 3.92
        ("tasks[0].effective_rank<26.5", "fail"),
        ("tasks[0].features['body.2'].erank<33.9", "inconclusive"),
        ("tasks[0].features['body.2'].erank<34", "fail"),
    ):
        assert judge(expression, doc)[0] == outcome, expression


def test_a_single_probe_shows_no_interval_and_decides_nothing():
    rank = make_rank(0.01).__class__(**{**make_rank(0.01).__dict__, "low": None, "high": None})
    spectrum = make_spectrum(probes=1, rank_fast=rank, trace_stderr=None)
    doc = make_document(tasks=[make_task(1, spectrum=spectrum)])
    assert judge("tasks[0].eps_rank.fast.fraction<0.5", doc) == ("inconclusive", 11)
    assert judge("tasks[0].spectrum.trace>1e9", doc) == ("inconclusive", 11)


def test_an_exact_count_is_judged_as_it_is():
    exact = make_spectrum(
        method="dense", probes=0, steps=0, trace_stderr=None,
        rank_fast=make_rank(0.01, low=0.01, high=0.01, half_steps=None),
    )  # fmt: skip
    doc = make_document(tasks=[make_task(1, spectrum=exact)])
    assert judge("tasks[0].eps_rank.fast.fraction<0.0100001", doc)[0] == "fail"
    assert judge("tasks[0].eps_rank.fast.fraction<0.01", doc)[0] == "pass"
    assert judge("tasks[0].spectrum.trace>1e9", doc)[0] == "pass"


def test_a_failed_task_decides_nothing():
    doc = make_document(tasks=[make_task(1), failed_task(2)])
    assert judge("tasks[-1].eps_rank.fast.fraction<0.5", doc) == ("inconclusive", 11)
    assert judge("tasks[*].eps_rank.fast.fraction<0.001", doc) == ("inconclusive", 11)
    assert judge("tasks[*].eps_rank.fast.fraction<0.5", doc) == ("fail", 10)
    assert judge("tasks[*].status==failed", doc) == ("fail", 10)


def test_an_inconclusive_verdict_decides_only_whether_it_is_one():
    doc = make_document(verdict=make_verdict("inconclusive", "too few tasks"))
    assert judge("verdict==collapsed", doc) == ("inconclusive", 11)
    assert judge("verdict!=healthy", doc) == ("inconclusive", 11)
    assert judge("verdict==inconclusive", doc) == ("fail", 10)


def test_an_interrupted_run_decides_nothing():
    doc = make_document(document={"complete": False})
    assert judge("verdict==collapsed", doc) == ("inconclusive", 11)


@pytest.mark.parametrize(
    ("expression", "hint"),
    [
        ("eps_rank.fast.fraction<1", "tasks[*].eps_rank.fast.fraction"),
        ("tasks[-1].eps_rank.fast.fracton<1", "tasks[*].eps_rank.fast.fraction"),
        ("verdict<3", None),
        ("kappa>200", ""),
    ],
)
def test_a_path_that_no_report_has(expression, hint):
    if hint is None:
        assert judge(expression) == ("inconclusive", 11)  # a word is not below 3
        return
    with pytest.raises(UsageError) as caught:
        parse_gate(expression, document=SpectrumDocument)
    assert hint in caught.value.hint


def test_the_verdict_is_kept_beside_the_networks():
    gate = parse_gate("verdict==collapsed", document=SpectrumDocument)
    doc = make_document()
    judged = doc.with_verdict(evaluate([gate], doc))
    assert judged.gates.exit_code == 10
    assert judged.judged is judged.gates
    assert judged.verdict.value == "collapsed"
    assert doc.judged is None


def compared(new, old, allowed=0.1):
    verdict = evaluate([], new, baseline=old, regression=allowed)
    return {g.expression.split(" fall")[0]: g.outcome for g in verdict.gates}, verdict


def test_equal_data_leave_no_error_over_the_data():
    errors = {"share_stderr": 0.05, "erank_stderr": 2.0}
    old = make_document(tasks=[make_task(1, share=0.5, **errors)])
    new = make_document(tasks=[make_task(1, share=0.4, erank=25.0, **errors)])
    found, _ = compared(new, old)
    assert (found["fast share"], found["effective rank"]) == ("fail", "fail")


def one(fraction=0.05, *, width=0.0, erank=30.0, share=0.9, **changes):
    rank = make_rank(fraction, low=fraction * (1 - width), high=fraction * (1 + width), upper=200.0)
    spectrum = make_spectrum(fraction, rank_fast=rank, **changes)
    return make_document(tasks=[make_task(1, erank=erank, share=share, spectrum=spectrum)])


def test_a_network_that_learns_less_well_than_the_baseline():
    same, _ = compared(one(), one())
    assert same == {"ε-rank": "pass", "fast share": "pass", "effective rank": "pass"}
    worse, verdict = compared(one(0.03, share=0.7, erank=20.0), one())
    assert set(worse.values()) == {"fail"}
    assert verdict.exit_code == 10
    rank = verdict.gates[0]
    assert rank.value == pytest.approx(0.4)
    assert "-40.0 %" in rank.reason
    better, _ = compared(one(0.08, share=0.95, erank=60.0), one())
    assert set(better.values()) == {"pass"}


def test_intervals_of_the_rank_are_compared():
    # 5 % and 4 % of ± 20 % each: the fall lies between about 0 and 40 %
    found, _ = compared(one(0.04, width=0.2), one(0.05, width=0.2))
    assert found["ε-rank"] == "inconclusive"
    assert compared(one(0.04, width=0.2), one(0.05, width=0.2), 0.6)[0]["ε-rank"] == "pass"
    assert compared(one(0.01, width=0.2), one(0.05, width=0.2))[0]["ε-rank"] == "fail"
    assert compared(one(0.0), one(0.05))[0]["ε-rank"] == "fail"
    assert compared(one(0.05), one(0.0))[0]["ε-rank"] == "inconclusive"


def test_the_last_task_that_both_measured_is_compared():
    old = make_document((0.05, 0.04, 0.03))
    new = make_document(tasks=[make_task(1, 0.05), make_task(2, 0.04), failed_task(3)])
    _, verdict = compared(new, old)
    assert "task 2:" in verdict.gates[0].reason
    other = make_document(tasks=[make_task(i, 0.05, digest=f"other{i}") for i in (1, 2)])
    found, verdict = compared(other, old)
    assert set(found.values()) == {"inconclusive"}
    assert "equal data" in verdict.gates[0].reason


def test_what_cannot_be_compared():
    found, verdict = compared(one(n_parameters=999), one())
    assert set(found.values()) == {"inconclusive"}
    assert "parameters [999] now, [1000] before" in verdict.gates[0].reason
    ggn = make_document(operator="ggn")
    assert set(compared(ggn, make_document())[0].values()) == {"inconclusive"}
    open_ = make_document(
        tasks=[make_task(1, spectrum=make_spectrum(rank_fast=make_rank(status="not-resolved",
                                                                       upper=200.0)))]
    )  # fmt: skip
    assert compared(open_, one())[0]["ε-rank"] == "inconclusive"
    with pytest.raises(UsageError, match=r"clcurv\.schedule"):
        evaluate([], one(), baseline=make_kappa_document([3.0, 2.0]), regression=0.1)


def test_without_a_learning_rate_the_relative_rank_is_compared():
    tasks = [make_task(1, spectrum=make_spectrum(fast=False), fast_modes=None)]
    doc = make_document(tasks=tasks, lr=None, steps=None)
    found, _ = compared(doc, doc, 0.5)
    assert found == {"ε-rank": "pass", "effective rank": "pass"}
    assert make_result().reference_kind == "first-task"


def test_interval_of_the_trace_knows_how_few_probes_there_were():
    spectrum = make_spectrum(probes=2, trace=100.0, trace_stderr=1.0)
    doc = make_document(tasks=[make_task(1, spectrum=spectrum), make_task(2)])
    assert judge("tasks[0].spectrum.trace>90", doc) == ("inconclusive", 11)  # t(1): ±12.7
    assert judge("tasks[0].spectrum.trace>87", doc) == ("fail", 10)
