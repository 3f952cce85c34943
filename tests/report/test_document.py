from __future__ import annotations

import io
import json
import math
import subprocess
import sys

import pytest
import torch
from kappa_results import make_document, make_layer

from clcurv.errors import CorruptFileError, InputError, UsageError
from clcurv.inputs.dataset import Samples
from clcurv.report.document import to_json, write_json
from clcurv.report.kappa_document import KappaDocument
from clcurv.report.reader import load_document
from clcurv.report.registry import json_schema


def as_dict(**changes):
    return {**json.loads(to_json(make_document([4.0, 3.0, 2.0, 1.0, 0.5], head=9.0))), **changes}


def test_carries_the_contract_of_the_issue():
    data = as_dict()
    assert (data["schema"], data["schema_version"]) == ("clcurv.schedule", "1.0")
    assert data["created"] == "2026-01-02T03:04:05+00:00"
    assert data["penalty"]["form"] == "0.5*lambda*sum_l lambda_l*sum_i F_i*(theta_i-theta*_i)^2"
    assert data["estimator"]["reduction"] == "mean"
    assert data["defaults"] == {"lambda": 1.0, "lr_scale": 1.0}
    keys = {
        "name", "layer_id", "depth", "is_head", "param_names", "tied_names", "numel", "s",
        "s_stderr", "lambda_min", "residual", "error_bound", "steps", "converged", "status",
        "lambda", "lr_scale", "reason",
    }  # fmt: skip
    assert keys <= set(data["groups"][0])
    assert [g["layer_id"] for g in data["groups"]] == list(range(6))


def test_round_trip_through_every_kind_of_source(tmp_path, monkeypatch):
    doc = make_document([4.0, 3.0, 2.0, 1.0, 0.5])
    write_json(doc, tmp_path / "a.json")
    raw = (tmp_path / "a.json").read_bytes()
    assert load_document(tmp_path / "a.json") == doc
    assert load_document(str(tmp_path / "a.json")) == doc
    assert load_document(json.loads(raw)) == doc
    assert load_document(io.BytesIO(raw)) == doc
    assert load_document(io.StringIO(raw.decode())) == doc
    assert load_document(doc) is doc
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
    assert load_document("-") == doc
    assert list(tmp_path.iterdir()) == [tmp_path / "a.json"]


def test_non_finite_becomes_null_with_a_status_and_a_reason():
    doc = make_document(
        layers=[make_layer("a", 0, math.nan, s_stderr=math.inf), make_layer("b", 1, 2.0)],
        kappa=math.inf,
        kappa_low=3.0,
        kappa_high=math.inf,
        mean_loss=math.nan,
    )
    data = json.loads(to_json(doc), parse_constant=lambda c: pytest.fail(c))
    assert data["kappa"]["value"] is None
    assert data["kappa"]["high"] is None
    assert data["kappa"]["status"] == "refused"
    assert "finite" in data["kappa"]["reason"]
    group = data["groups"][0]
    assert (group["s"], group["s_stderr"], group["status"]) == (None, None, "non-finite")
    assert "nan" not in group["reason"]
    assert data["data"]["mean_loss"] is None


def test_hostile_names_leave_no_raw_control_character():
    name = "a\x1b[31m\x9b2J\u202eb\ud800"
    text = to_json(make_document(layers=[make_layer(name, i, 1.0) for i in range(1)]))
    assert not any(c in text for c in "\x1b\x9b\u202e\ud800")
    text.encode()
    assert json.loads(text)["groups"][0]["name"] == "a\x1b[31m\x9b2J\u202eb\\ud800"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "clcurv.spectrum"}, "clcurv.spectrum"),
        ({"schema_version": "2.0"}, "2.0"),
        ({"schema_version": None}, "None"),
        ({"groups": []}, "groups"),
        ({"groups": 3}, "groups"),
        ({"defaults": {"lambda": 0, "lr_scale": 1}}, r"defaults\.lambda"),
        ({"defaults": {"lambda": "1", "lr_scale": 1}}, r"defaults\.lambda"),
    ],
)
def test_refuses_what_is_not_this_schema(change, message):
    with pytest.raises(InputError, match=message):
        load_document(as_dict(**change))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda g: g[1].update(name=g[0]["name"]), "two groups are named"),
        (lambda g: g[1].update(param_names=g[0]["param_names"]), "is in"),
        (lambda g: g[1].update(tied_names=g[0]["param_names"]), "is in"),
        (lambda g: g[1].update(param_names=[]), "param_names"),
        (lambda g: g[1].update({"lambda": -1.0}), "lambda"),
        (lambda g: g[1].update(lr_scale=0), "lr_scale"),
        (lambda g: g[1].pop("lambda"), "lambda"),
    ],
)
def test_groups_must_be_a_partition_with_positive_weights(edit, message):
    data = as_dict()
    edit(data["groups"])
    with pytest.raises(InputError, match=message):
        load_document(data)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "empty"),
        (b"  \n", "empty"),
        (b"{", "strict JSON"),
        (b'{"schema": "clcurv.schedule", "schema": 1}', "twice"),
        (b'{"schema": NaN}', "NaN"),
        (b'loading model...\n{"schema": 1}', "strict JSON"),
        (b"[" * 100_000, "strict JSON"),
        (b"[1]", "JSON list"),
        (b"\xff\xfe", "UTF-8"),
    ],
)
def test_refuses_bad_files_in_one_line(tmp_path, raw, message):
    (tmp_path / "x.json").write_bytes(raw)
    with pytest.raises(InputError, match=message) as caught:
        load_document(tmp_path / "x.json")
    assert "\n" not in str(caught.value)
    assert not (raw and caught.type is CorruptFileError and message == "JSON list")


def test_unreadable_paths(tmp_path):
    for path in (tmp_path / "none.json", tmp_path, "a\x00b"):
        with pytest.raises(InputError, match="cannot read"):
            load_document(path)


def test_a_minor_version_may_add_keys():
    data = as_dict(schema_version="1.7", novelty={"x": 1})
    data["groups"][0]["novelty"] = 2
    assert load_document(data).groups[0].name == "blocks.0"


def test_json_schema_names_the_keys_as_written():
    schema = json_schema("clcurv.schedule")
    assert json_schema("schedule") == schema
    assert "schema" in schema["properties"]
    assert "lambda" in schema["$defs"]["Group"]["properties"]
    with pytest.raises(UsageError, match="nope"):
        json_schema("nope")


def test_warns_near_chance_and_where_pyhessian_disagrees():
    from clcurv.diagnostics.kappa import CrossCheck

    doc = make_document(
        [3.0, 2.0, 1.0],
        accuracy=0.12,
        cross_check=(CrossCheck("a", 1.0, 1.05, 0.05), CrossCheck("b", 1.0, 1.001, 0.001)),
    )
    assert any("near chance" in w for w in doc.warnings)
    assert [w for w in doc.warnings if "cross-check" in w] == [
        "cross-check: a: s 1, PyHessian 1.05, 5.0% apart"
    ]
    assert not any("chance" in w for w in make_document([3.0, 2.0, 1.0]).warnings)


def test_unused_layers_are_named():
    layers = [
        make_layer("a", 0, 2.0),
        make_layer("b", 1, 1.0),
        make_layer("c", 2, None, status="unused"),
    ]
    (said,) = [w for w in make_document(layers=layers).warnings if "does not depend on" in w]
    assert "does not depend on c: not measured" in said
    assert "use_reentrant" in said
    assert not any("depend" in w for w in make_document([3.0, 2.0, 1.0]).warnings)


@pytest.mark.parametrize(("batches", "factor"), [(2, 12.706), (16, 2.131), (None, 1.96)])
def test_few_micro_batches_give_a_wider_interval(batches, factor):
    layers = [make_layer("a", 0, 50.0, s_stderr=1.0, error_bound=0.0, n_batches=batches)]
    (group,) = make_document(layers=[*layers, make_layer("b", 1, 1.0)]).groups[:1]
    assert group.interval == pytest.approx((50 - factor, 50 + factor), abs=1e-3)
    assert (group.s_low, group.s_high) == group.interval


def test_labels_drawn_from_the_model_say_nothing_about_chance():
    drawn = Samples(
        inputs=torch.zeros(4, 2), targets=torch.zeros(4), source="generated", label_source="model"
    )
    doc = make_document([3.0, 2.0, 1.0], accuracy=0.12, document={"samples": drawn})
    assert not any("near chance" in w for w in doc.warnings)


def test_takes_the_loaded_model_weights_and_samples(tmp_path):
    import torch

    from clcurv.inputs.architecture import LoadedModel
    from clcurv.inputs.checkpoint import Weights
    from clcurv.inputs.dataset import Samples

    model = torch.nn.Linear(3, 2)
    doc = make_document(
        [3.0, 2.0, 1.0],
        document={
            "model": LoadedModel(
                model, arch="m:f", arch_source="option", modality="array",
                task="classification", num_classes=2, notes=("n1",),
            ),
            "weights": Weights(
                {}, tmp_path / "w.pt", "torch", key="ema", prefix="module.", digest="ab",
                notes=("n1", "n2"),
            ),
            "samples": Samples(
                torch.zeros(4, 3), torch.zeros(4), source="path", format="npz",
                class_counts={1: 3, 0: 1}, available=9, digest="cd",
            ),
            "data_path": "set.npz",
            "command": ["clcurv", "kappa", "a b.pt"],
            "settings": {"head": "linear-probe", "x": math.nan},
            "warnings": ("w", "w"),
        },
    )  # fmt: skip
    assert (doc.model.num_params, doc.model.key, doc.model.prefix) == (8, "ema", "module.")
    assert doc.model.notes == ("n1", "n2")
    assert doc.data.class_counts == {"0": 1, "1": 3}
    assert (doc.data.path, doc.data.digest, doc.data.available) == ("set.npz", "cd", 9)
    assert doc.command == "clcurv kappa 'a b.pt'"
    assert doc.estimator.settings == {"head": "linear-probe", "x": None}
    assert doc.warnings.count("w") == 1


def test_reports_need_no_torch():
    code = (
        "import sys, clcurv.report.gate, clcurv.report.table, clcurv.report.markdown,"
        "clcurv.report.build, clcurv.report.plots, clcurv.training.schedule;"
        "print(sorted({'torch', 'matplotlib', 'timm'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_document_is_frozen():
    doc = make_document([3.0, 2.0, 1.0])
    with pytest.raises(ValueError, match="frozen"):
        doc.created = "x"
    assert isinstance(doc, KappaDocument)
