from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest
from schemacheck import violations
from spectrum_results import (
    failed_task,
    make_advice,
    make_document,
    make_l2er_document,
    make_modes,
    make_rank,
    make_spectrum,
    make_task,
    make_verdict,
)

from clcurv.errors import InputError, UsageError
from clcurv.report.document import to_json, write_json
from clcurv.report.kappa_document import KappaDocument
from clcurv.report.l2er_document import L2erDocument
from clcurv.report.reader import load_document, load_report
from clcurv.report.registry import document_class, json_schema
from clcurv.report.spectrum_document import SpectrumDocument

EVIL = "a[/red]\x1b]0;pwned\x07|`x`<img\ud800"


def as_dict(document=None, **changes):
    return {**json.loads(to_json(document or make_document())), **changes}


def test_carries_the_contract_of_the_issue():
    data = as_dict()
    assert list(data)[:2] == ["schema", "schema_version"]
    assert (data["schema"], data["schema_version"]) == ("clcurv.spectrum", "1.0")
    assert data["complete"] is True
    assert data["created"] == "2026-01-02T03:04:05+00:00"
    assert data["verdict"]["value"] == "collapsed"
    assert data["reference"] == {"kind": "first-task", "task": None}
    assert data["estimator"]["eps_fast"] == {"lower": 0.1, "upper": 200.0}
    assert data["estimator"]["cost_gradients"] == 300.0
    assert [t["digest"] for t in data["stream"]["tasks"]] == ["d1", "d2", "d3"]
    assert data["stream"]["tasks"][1]["transform"] == {"kind": "permute", "number": 1, "seed": 0}
    assert data["stream"]["tasks"][1]["classes"] == [0, "b"]
    task = data["tasks"][2]
    assert task["eps_rank"]["fast"]["fraction"] == 0.01
    fast = task["eps_rank"]["fast"]
    assert (fast["low"], fast["high"]) == pytest.approx((0.009, 0.011))
    assert (fast["count_low"], fast["count_high"]) == pytest.approx((9.0, 11.0))
    assert [x["eps"] for x in task["eps_rank"]["curve"]] == [1e-3, 1e-2, 0.1, 1.0]
    assert task["effective_rank"]["value"] == pytest.approx((6 + 3) / 2)
    assert task["effective_rank"]["fraction"] == pytest.approx((0.06 + 0.03) / 2)
    assert task["label_histogram"] == {"0": 256, "1": 256}
    assert len(task["spectrum"]["quadrature"]) == 2
    assert len(task["spectrum"]["quadrature"][0]["nodes"]) == 12
    assert data["l2er"]["objective"]["lambda"] == 5e-4


def test_follows_its_json_schema():
    docs = {
        "spectrum": make_document(tasks=[make_task(1), failed_task(2)]),
        "l2er": make_l2er_document(),
    }
    for name, document in docs.items():
        assert violations(json.loads(to_json(document)), json_schema(name)) == []
    broken = as_dict()
    broken["tasks"][0]["eps_rank"]["fast"]["fraction"] = 1.5
    assert violations(broken, json_schema("spectrum")) != []


def test_round_trip(tmp_path):
    doc = make_document(tasks=[make_task(1), failed_task(2)], document={"complete": False})
    write_json(doc, tmp_path / "a.json")
    assert load_document(tmp_path / "a.json", SpectrumDocument) == doc
    assert load_report(str(tmp_path / "a.json")) == doc
    assert load_document(doc, SpectrumDocument) is doc
    l2er = make_l2er_document()
    write_json(l2er, tmp_path / "l.json")
    assert load_document(tmp_path / "l.json", L2erDocument) == l2er


def test_the_recommendation_stands_alone():
    data = json.loads(to_json(make_l2er_document()))
    assert list(data)[:2] == ["schema", "schema_version"]
    wanted = {
        "schema": "clcurv.l2er", "weight_decay": 1e-3, "er_lr": 1e-2, "er_every": 10,
        "er_layers": ["body.2", "body.4"], "window": 100, "lr": 0.01,
        "order": ["optimizer", "effective-rank"], "verdict": "collapsed", "stream": "permuted:3",
    }  # fmt: skip
    assert {k: data[k] for k in wanted} == wanted
    assert (data["objective"]["lambda"], data["objective"]["beta"]) == (5e-4, 0.05)
    nothing = make_l2er_document(weight_decay=0.0, er_lr=0.0, er_every=0, lam=0.0, beta=0.0)
    assert (nothing.weight_decay, nothing.er_lr, nothing.er_every) == (0.0, 0.0, 0)


def test_one_kind_is_not_taken_for_another(tmp_path):
    write_json(make_document(), tmp_path / "s.json")
    write_json(make_l2er_document(), tmp_path / "l.json")
    with pytest.raises(InputError, match=r"'clcurv\.spectrum', not clcurv\.schedule"):
        load_document(tmp_path / "s.json")
    with pytest.raises(InputError, match=r"'clcurv\.l2er', not clcurv\.spectrum"):
        load_document(tmp_path / "l.json", SpectrumDocument)
    with pytest.raises(InputError, match=r"clcurv\.l2er"):
        load_report(str(tmp_path / "l.json"))
    with pytest.raises(InputError, match=r"clcurv\.spectrum"):
        load_document(make_document(), KappaDocument)


def test_numbers_stand_on_one_line_and_texts_are_left_alone():
    text = to_json(make_document(document={"warnings": ["a [\n1,\n2] b"]}))
    assert '"nodes": [-0.5, -0.001, 0.0, ' in text
    assert json.loads(text)["warnings"][0] == "a [\n1,\n2] b"
    assert json.loads(text)["tasks"][0]["classes"] == [0, 1]
    assert '"classes": [0, 1]' in text


def test_non_finite_becomes_null():
    task = make_task(
        1,
        spectrum=make_spectrum(lambda_max=math.inf, trace_stderr=math.nan),
        mean_loss=math.nan,
        fast_modes=make_modes(math.nan),
    )
    data = json.loads(to_json(make_document(tasks=[task])), parse_constant=pytest.fail)
    found = data["tasks"][0]
    assert found["spectrum"]["lambda_max"] is None
    assert found["spectrum"]["trace_stderr"] is None
    assert found["mean_loss"] is None
    assert found["fast_modes"]["share"] is None


def test_a_failed_task_keeps_its_place_and_reason():
    doc = make_document(tasks=[make_task(1), failed_task(2), make_task(3)])
    assert [t.status for t in doc.tasks] == ["ok", "failed", "ok"]
    assert doc.tasks[1].spectrum is None
    assert doc.tasks[1].eps_rank is None
    assert "task 2 (task-2) failed: NaN in batch 3" in doc.warnings


def test_the_reference_is_given_where_it_is_no_task():
    fresh = make_task(1, 0.09, checkpoint="fresh weights")
    doc = make_document(reference=fresh, reference_kind="fresh")
    assert doc.reference.task.eps_rank.fast.fraction == 0.09
    assert doc.reference.kind == "fresh"


def test_warns_of_what_is_not_resolved_and_of_few_rows():
    open_ = make_spectrum(rank_fast=make_rank(status="not-resolved"))
    few = (
        make_task(2).features[0].__class__("body.2", 50, 100, 50, 30.0, 8.0, 20, None, None, False)
    )
    doc = make_document(
        tasks=[make_task(1, spectrum=open_), make_task(2, features=(few,)), make_task(3)]
    )
    assert any("ε_fast is not resolved in task 1" in w for w in doc.warnings)
    assert any("50 rows for the 100 features of layer body.2 (task 2)" in w for w in doc.warnings)
    assert make_document().warnings == ()


def test_paper_smoothing_says_where_it_is_the_kernels_figure():
    wide = make_spectrum(top=1e4, rank_relative=make_rank(eps=100.0))
    tasks = [make_task(1), make_task(2, spectrum=wide)]
    assert make_document(tasks=tasks).tasks[1].eps_rank.paper == ()
    doc = make_document(tasks=tasks, document={"paper_smoothing": True})
    narrow = doc.tasks[0].eps_rank.paper
    assert [x.status for x in narrow] == ["ok", "ok"]
    # variance 1e-5 of the range, which is 10.5 and 10000.5 and a margin of 0.01 on either side
    assert narrow[0].kernel_width == pytest.approx(math.sqrt(1e-5 * 10.52))
    fast, relative = doc.tasks[1].eps_rank.paper
    assert fast.kernel_width == pytest.approx(math.sqrt(1e-5 * 10000.52))
    assert (fast.status, relative.status) == ("kernel-limited", "ok")
    assert (fast.eps, relative.eps) == (0.1, 100.0)
    assert any("kernel-limited in task 2" in w for w in doc.warnings)


def test_hostile_names_leave_no_raw_control_character():
    doc = make_document(
        tasks=[make_task(1, name=EVIL, checkpoint=EVIL)],
        verdict=make_verdict(evidence=EVIL),
        document={"advice": make_advice(er_layers=(EVIL,), derivation=EVIL)},
    )
    text = to_json(doc)
    assert not any(c in text for c in "\x1b\x07\ud800")
    text.encode()


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda d: d["tasks"][0]["spectrum"]["quadrature"][0]["weights"].append(0.0), "weights"),
        (lambda d: d["tasks"][0]["spectrum"]["quadrature"][0].update(nodes=[1.0], weights=[0.5]),
         "sum to 1"),
        (lambda d: d["tasks"][0]["spectrum"]["quadrature"][0].update(nodes=[1, 2], weights=[2, -1]),
         "weights"),
        (lambda d: d["tasks"][1].update(index=1), "numbered"),
        (lambda d: d.update(tasks=[]), "tasks"),
        (lambda d: d["tasks"][0]["eps_rank"]["fast"].update(fraction="0.1"), "fraction"),
        (lambda d: d["tasks"][0]["eps_rank"]["fast"].update(status="fine"), "status"),
        (lambda d: d["verdict"].pop("value"), "verdict"),
        (lambda d: d.update(schema_version="2.0"), "2.0"),
    ],
)  # fmt: skip
def test_refuses_what_is_not_this_schema(edit, message):
    data = as_dict()
    edit(data)
    with pytest.raises(InputError, match=message):
        load_document(data, SpectrumDocument)


def test_a_minor_version_may_add_keys():
    data = as_dict(schema_version="1.3", novelty={"x": 1})
    data["tasks"][0]["novelty"] = 2
    assert load_document(data, SpectrumDocument).tasks[0].name == "task-1"


def test_every_schema_has_its_class():
    assert document_class("spectrum") is SpectrumDocument
    assert document_class("clcurv.l2er") is L2erDocument
    assert document_class("schedule") is KappaDocument
    with pytest.raises(UsageError, match="nope") as caught:
        document_class("nope")
    assert "clcurv.l2er" in caught.value.hint


def test_reports_need_no_torch():
    code = (
        "import sys, clcurv.report.gate, clcurv.report.spectrum_build, "
        "clcurv.report.spectrum_table, clcurv.report.spectrum_markdown, "
        "clcurv.report.spectrum_plots, "
        "clcurv.report.render, "
        "clcurv.report.spectrum_regression, clcurv.report.registry;"
        "print(sorted({'torch', 'matplotlib', 'timm'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
