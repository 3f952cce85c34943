from __future__ import annotations

import pytest
from kappa_results import make_document
from kappa_results import make_layer as made_layer

from clcurv.errors import UsageError
from clcurv.report.gate import evaluate, parse_gate, parse_regression


def make_layer(name, depth, s, **changes):
    return made_layer(name, depth, s, **{"s_stderr": 0.0, **changes})


S = [40.0, 30.0, 20.0, 10.0, 5.0]


def doc(s=S, **changes):
    return make_document(
        layers=[
            *(make_layer(f"blocks.{i}", i, x, s_stderr=0.01 * x) for i, x in enumerate(s)),
            make_layer("head", len(s), 100.0, is_head=True),
        ],
        **changes,
    )


def judge(expression, document=None, **options):
    verdict = evaluate([parse_gate(expression)], document or doc(), **options)
    return verdict.gates[0].outcome, verdict.exit_code


@pytest.mark.parametrize(
    ("expression", "outcome"),
    [
        ("kappa>7.9", "fail"),
        ("kappa>8", "pass"),
        ("kappa>=8", "fail"),
        ("kappa.value<8.1", "fail"),
        (" kappa  <= 1e3 ", "fail"),
        ("groups[-1].s>90", "fail"),
        ("groups[0].s>90", "pass"),
        ("groups[1].s<31", "fail"),
        ('groups["blocks.1"].s>29', "fail"),
        ("groups['blocks.1'].s>31", "pass"),
        ("groups[*].s>99999", "pass"),
        ("groups[*].s>35", "fail"),
        ("groups[*].lambda<0", "pass"),
        ("model.num_params==1000", "fail"),
        ("model.num_params!=1000", "pass"),
        ("schedule.direction==early", "fail"),
        ("schedule.direction=='late'", "pass"),
        ('schedule.direction != "early"', "pass"),
        ("groups[*].status!=ok", "pass"),
        ("groups[0].converged==false", "pass"),
        ("groups[0].converged==true", "fail"),
        ("kappa==null", "pass"),
        ("kappa!=null", "fail"),
        ("warnings[*]==x", "pass"),
        ("groups[*].param_names[*]==blocks.3.weight", "fail"),
        ("kappa.p90_p10>3", "inconclusive"),  # null in this report
        ("groups[99].s>1", "inconclusive"),
        ("groups['none'].s>1", "inconclusive"),
        ("cross_check[*].relative_difference>0.02", "inconclusive"),  # never made
        ("estimator.versions.torch>1", "inconclusive"),  # a word
    ],
)
def test_fails_where_the_expression_is_true(expression, outcome):
    code = {"pass": 0, "fail": 10, "inconclusive": 11}[outcome]
    assert judge(expression) == (outcome, code)


@pytest.mark.parametrize(
    ("expression", "outcome"),
    [
        ("kappa>200", "inconclusive"),
        ("kappa>100", "fail"),
        ("kappa>300", "pass"),
        ("kappa<200", "inconclusive"),
        ("kappa<100", "pass"),
        ("kappa<300", "fail"),
        ("schedule.regret_bound>0.99", "pass"),
        # κ from 120 to 250 bounds the regret by 0.8189 to 0.8740
        ("schedule.regret_bound>0.85", "inconclusive"),
        ("schedule.regret_bound>0.8", "fail"),
    ],
)
def test_interval_of_kappa(expression, outcome):
    report = doc(kappa=180.0, kappa_low=120.0, kappa_high=250.0)
    assert judge(expression, report)[0] == outcome


def test_no_upper_end_means_infinity():
    report = doc(kappa=180.0, kappa_low=120.0, kappa_high=None)
    assert judge("kappa>1e9", report)[0] == "inconclusive"
    assert judge("kappa>100", report)[0] == "fail"


def test_interval_of_a_layer_is_two_standard_errors_and_the_solver_bound():
    # 10 ± 1.96, and 0.1 by the error bound: 7.94 to 12.06
    report = make_document(
        layers=[make_layer("a", 0, 10.0, s_stderr=1.0, error_bound=0.01), make_layer("b", 1, 1.0)]
    )
    assert judge("groups[0].s>7.9", report)[0] == "fail"
    assert judge("groups[0].s>7.99", report)[0] == "inconclusive"
    assert judge("groups[0].s>12.01", report)[0] == "inconclusive"
    assert judge("groups[0].s>12.1", report)[0] == "pass"


def test_unconverged_and_refused_are_inconclusive():
    layers = [
        make_layer("a", 0, 10.0),
        make_layer("b", 1, 1.0, status="unconverged", converged=False),
        make_layer("c", 2, None, status="unused"),
    ]
    report = make_document(layers=layers, kappa=None, status="refused", reason="b")
    assert judge("kappa>1", report) == ("inconclusive", 11)
    assert judge("groups[1].s>1e6", report)[0] == "inconclusive"
    assert judge("groups[1].lambda_min<-1", report)[0] == "inconclusive"
    assert judge("groups[*].s>1e6", report)[0] == "inconclusive"
    assert judge("groups[*].s>5", report)[0] == "fail"
    assert judge("groups[2].s>5", report)[0] == "inconclusive"
    assert judge("kappa==null", report)[0] == "fail"
    unused = make_document(layers=[layers[0], layers[2]])
    assert judge("groups[*].s>1e6", unused)[0] == "pass"


def test_kappa_of_an_unconverged_layer_is_not_judged():
    layers = [make_layer(f"b{i}", i, s) for i, s in enumerate(S)]
    layers[2] = make_layer("b2", 2, S[2], status="unconverged", converged=False)
    document = make_document(layers=layers)
    assert judge("kappa>1", document) == ("inconclusive", 11)
    assert judge("kappa.p90_p10>1", document) == ("inconclusive", 11)
    assert judge("groups[0].s>1", document) == ("fail", 10)


def test_a_single_micro_batch_shows_no_spread_and_decides_nothing():
    report = doc(kappa=180.0, kappa_low=None, kappa_high=None)
    assert judge("kappa>1", report) == ("inconclusive", 11)
    alone = make_document(layers=[make_layer("a", 0, 10.0, s_stderr=None), make_layer("b", 1, 1.0)])
    assert judge("groups[0].s>1e6", alone) == ("inconclusive", 11)


def test_policy_and_precedence():
    gates = [parse_gate("kappa>300"), parse_gate("kappa>200"), parse_gate("kappa>100")]
    report = doc(kappa=180.0, kappa_low=120.0, kappa_high=250.0)
    assert evaluate(gates, report).exit_code == 10
    assert evaluate(gates[:2], report).exit_code == 11
    assert evaluate(gates[:2], report, inconclusive="pass").exit_code == 0
    assert evaluate(gates, report, inconclusive="pass").exit_code == 10
    assert evaluate([], report).exit_code == 0
    verdict = evaluate(gates, report)
    assert [g.outcome for g in verdict.gates] == ["pass", "inconclusive", "fail"]
    assert report.with_verdict(verdict).verdict == verdict


def generated():
    report = doc()
    return report.model_copy(
        update={"data": report.data.model_copy(update={"source": "generated"})}
    )


def test_an_interrupted_run_decides_nothing():
    partial = doc(document={"complete": False})
    assert judge("kappa>1", partial, allow_generated=True) == ("inconclusive", 11)
    assert judge("kappa>1000", partial) == ("inconclusive", 11)
    assert compare(doc(), partial)[0] == ["inconclusive"] * 2


def test_generated_data_decide_nothing_unless_allowed():
    assert judge("kappa>1", generated()) == ("inconclusive", 11)
    assert judge("kappa>1000", generated()) == ("inconclusive", 11)
    assert judge("kappa>1", generated(), allow_generated=True) == ("fail", 10)
    assert judge("kappa>1000", generated(), allow_generated=True) == ("pass", 0)


@pytest.mark.parametrize(
    ("expression", "message", "hint"),
    [
        ("kapa>3", "kapa", "kappa.value"),
        ("groups.s>1", "groups.s", r"groups\[\*\].s"),
        ("groups[*].sigma>1", "sigma", r"groups\[\*\]"),
        ("schedule.gama<1", "gama", "schedule.gamma"),
        ("groups>3", "not one value", r"groups\[\*\].s"),
        ("model==3", "not one value", "model.num_params"),
        ("kappa", "cannot read", "kappa>200"),
        ("kappa>", "cannot read", "kappa>200"),
        (">3", "cannot read", "kappa>200"),
        ("", "cannot read", "kappa>200"),
        ("kappa>>3", "two operators", ""),
        ("1<kappa<3", "two operators|needs a number|cannot read", ""),
        ("kappa>nan", "nan", ""),
        ("kappa>inf", "inf", ""),
        ("kappa>many", "number", ""),
        ("schedule.direction>early", "number", ""),
        ("groups[*.s>3", "cannot read", ""),
        ("kappa.>3", "cannot read", ""),
        (".kappa>3", "cannot read", ""),
        ("kappa.__class__==x", "__class__", ""),
        ("groups[0].__dict__.x==x", "__dict__", ""),
        ("groups[*].lambda_>1", "lambda_", "groups"),
    ],
)
def test_bad_expressions(expression, message, hint):
    import re

    with pytest.raises(UsageError, match=message) as caught:
        parse_gate(expression)
    assert re.search(hint, caught.value.hint or "")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("text", "value"), [("10%", 0.1), ("0.1", 0.1), (" 250 % ", 2.5)])
def test_parse_regression(text, value):
    assert parse_regression(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["10", "-5%", "x", "%", "nan", "inf%", ""])
def test_parse_regression_refuses(text):
    with pytest.raises(UsageError, match="percentage"):
        parse_regression(text)


def with_digest(report, digest):
    return report.model_copy(update={"data": report.data.model_copy(update={"digest": digest})})


def compare(new, old, allowed=0.1, **options):
    verdict = evaluate([], new, baseline=old, regression=allowed, **options)
    return [g.outcome for g in verdict.gates], verdict


def test_same_data_compare_values_up_to_the_solver():
    # error bound 1e-4 in the factory; wide standard errors must not matter
    old = with_digest(make_document(S, stderr=S), "d")
    assert compare(old, old) == (["pass", "pass"], compare(old, old)[1])
    more = [40.0 * 1.09, *S[1:]]
    assert compare(with_digest(make_document(more, stderr=S), "d"), old)[0] == ["pass"] * 2
    worse = [40.0 * 1.12, *S[1:]]
    outcomes, verdict = compare(with_digest(make_document(worse, stderr=S), "d"), old)
    assert outcomes == ["fail", "fail"]
    assert verdict.exit_code == 10
    assert verdict.gates[0].value == pytest.approx(0.12)
    edge = with_digest(make_document([40.0 * 1.10001, *S[1:]], stderr=S), "d")
    assert compare(edge, old)[0] == ["inconclusive", "inconclusive"]
    better = with_digest(make_document([36.0, *S[1:]], stderr=S), "d")
    assert compare(better, old, allowed=0.0)[0] == ["pass", "pass"]


def test_other_data_compare_intervals():
    # s_max 40 -> 48 with 1 % errors: +20 %, recovered-variance interval by hand:
    # log half widths log(1+.0196+1e-4) = .01951 up, −log(1−.0197) = .01990 down, √2 of each
    old = with_digest(doc(), "a")
    new = with_digest(doc([48.0, *S[1:]]), "b")
    verdict = evaluate([], new, baseline=old, regression=0.1)
    top = verdict.gates[1]
    assert top.outcome == "fail"
    assert "other data" in top.reason
    assert (top.low, top.high) == pytest.approx((0.16714, 0.23377), abs=2e-4)
    assert evaluate([], new, baseline=old, regression=0.2).gates[1].outcome == "inconclusive"
    assert evaluate([], new, baseline=old, regression=0.3).gates[1].outcome == "pass"


def test_head_stays_out_of_the_largest_s():
    old = with_digest(make_document(S, head=100.0), "d")
    new = with_digest(make_document(S, head=1000.0), "d")
    assert compare(new, old)[0] == ["pass", "pass"]


@pytest.mark.parametrize("change", ["operator", "loss", "granularity"])
def test_incomparable_reports_are_inconclusive(change):
    old = doc()
    other = old.model_copy(update={"estimator": old.estimator.model_copy(update={change: "other"})})
    outcomes, verdict = compare(old, other)
    assert outcomes == ["inconclusive"] * 2
    assert "not comparable" in verdict.gates[0].reason
    assert verdict.exit_code == 11


def test_refused_kappa_and_generated_baseline():
    refused = doc(kappa=None, status="refused", reason="x")
    assert compare(refused, doc())[0][0] == "inconclusive"
    assert compare(doc(), refused)[0][0] == "inconclusive"
    assert compare(doc(), generated())[0] == ["inconclusive"] * 2


def test_baseline_and_regression_go_together():
    with pytest.raises(UsageError, match="go together"):
        evaluate([], doc(), baseline=doc())
    with pytest.raises(UsageError, match="go together"):
        evaluate([], doc(), regression=0.1)


def test_layers_that_did_not_converge_widen_the_comparison_on_the_same_data():
    def report(error, status):
        layers = [
            made_layer("blocks.0", 0, 1.0, error_bound=error, status=status),
            made_layer("blocks.1", 1, 2.0),
            made_layer("blocks.2", 2, 4.0),
        ]
        made = make_document(layers=layers, kappa=4.0 + error, kappa_low=3.0, kappa_high=5.0)
        return with_digest(made, "same")

    loose, tight = report(0.5, "unconverged"), report(1e-4, "ok")
    assert compare(loose, tight, 0.05)[0][0] == "inconclusive"
    assert compare(tight, loose, 0.05)[0][0] == "inconclusive"


def test_another_network_than_the_baselines_is_not_compared():
    def network(arch, names):
        layers = [made_layer(name, i, 4.0 / (i + 1)) for i, name in enumerate(names)]
        made = make_document(layers=layers, kappa=4.0, kappa_low=3.0, kappa_high=5.0)
        return made.model_copy(update={"model": made.model.model_copy(update={"arch": arch})})

    vit = network("timm:vit", ["stem", "blocks.0", "norm"])
    resnet = network("timm:resnet18", ["stem", "layer1.0", "layer2.0"])
    outcomes, verdict = compare(resnet, vit)
    assert outcomes == ["inconclusive"] * 2
    assert "network timm:resnet18 now, timm:vit in the baseline" in verdict.gates[0].reason
    # The same network from another path.
    moved = [with_digest(network(arch, ["stem", "a"]), "d") for arch in ("m.py:vit", "vit.py:m")]
    assert compare(*moved)[0] == ["pass"] * 2
