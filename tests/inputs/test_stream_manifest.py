"""Manifests: what they may say, and one clear line for everything else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from datamakers import bert, image_folder, image_model
from torch import nn

from clcurv.errors import ClcurvError, DataError, MismatchError, UsageError
from clcurv.inputs.live import wrap_module
from clcurv.inputs.stream import Stream, open_stream

D = 4


def mlp(classes: int) -> Any:
    return wrap_module(nn.Sequential(nn.Linear(D, 3), nn.ReLU(), nn.Linear(3, classes)).eval())


def npz(path: Path, labels: list[int]) -> Path:
    x = np.random.default_rng(0).normal(size=(len(labels), D)).astype(np.float32)
    np.savez(path, x=x, y=np.array(labels))
    return path


def manifest(folder: Path, tasks: list[dict[str, Any]], **more: Any) -> Path:
    path = folder / "stream.yaml"
    path.write_text(yaml.safe_dump({"schema": "clcurv.stream", **more, "tasks": tasks}))
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with a.npz (labels 0, 1) and b.npz (labels 2, 3)."""
    npz(tmp_path / "a.npz", [0, 1] * 5)
    npz(tmp_path / "b.npz", [2, 3] * 6)
    return tmp_path


def test_paths_are_relative_to_the_manifest_wherever_one_stands(
    data: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    (data / "lists").mkdir()
    path = manifest(data / "lists", [{"train": "../a.npz"}, {"train": str(data / "b.npz")}])
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    stream = open_stream(path)
    assert [task.name for task in stream.tasks] == ["task-1", "task-2"]
    assert stream.samples(0, mlp(4)).class_counts == {0: 5, 1: 5}
    assert stream.samples(1, mlp(4)).class_counts == {2: 6, 3: 6}
    # What `..` led to is written out.
    assert stream.resolved()["tasks"][0]["train"] == str((data / "a.npz").resolve())


def test_everything_a_manifest_can_say(data: Path) -> None:
    (data / "rows.csv").write_text("what,kind\nthe cat,x\na dog,y\nthe mat,x\n")
    (data / "held.csv").write_text("what,kind\nthe cat,y\na dog,y\n")
    path = manifest(
        data,
        [
            {"name": "first", "train": "rows.csv", "test": "held.csv", "format": "csv"},
            {"name": "second", "train": "rows.csv", "classes": ["x"]},
        ],
        name="words",
        scenario="class-il",
        modality="text",
        classes=["y", "x"],
        columns={"text": "what", "label": "kind"},
        seed=3,
    )
    stream = open_stream(path)
    assert (stream.name, stream.scenario, stream.modality) == ("words", "class-il", "text")
    loaded = bert("classification", data / "bert")
    assert stream.samples(0, loaded).class_counts == {0: 1, 1: 2}
    assert stream.samples(0, loaded, split="test").class_counts == {0: 2}
    assert stream.samples(1, loaded).class_counts == {1: 2}


def test_json_and_a_folder_with_a_manifest(data: Path) -> None:
    content = {"schema": "clcurv.stream", "tasks": [{"train": "a.npz"}]}
    (data / "stream.json").write_text(json.dumps(content))
    assert len(open_stream(data)) == len(open_stream(data / "stream.json")) == 1


def test_tasks_over_one_data_set(data: Path) -> None:
    npz(data / "all.npz", [0, 1, 2, 3] * 4)
    tasks = [{"classes": [3, 0]}, {"classes": [1, 2]}]
    for stream in (
        open_stream(manifest(data, tasks, train="all.npz")),
        open_stream(manifest(data, tasks), data=data / "all.npz"),
    ):
        assert stream.samples(0, mlp(4)).class_counts == {0: 4, 3: 4}
    task_il = open_stream(manifest(data, tasks, train="all.npz", scenario="task-il"))
    sample = task_il.samples(0, mlp(2))
    assert "labels numbered within the task (3=0, 0=1)" in sample.notes


def test_transforms(data: Path) -> None:
    tasks = [{"name": "one"}, {"name": "two"}]
    stream = open_stream(manifest(data, tasks, train="a.npz", transform="permute", seed=6))
    plain, permuted = (torch.as_tensor(stream.samples(i, mlp(2)).inputs) for i in (0, 1))
    order = np.random.default_rng([6, 1]).permutation(D)
    assert torch.equal(permuted, plain[:, order])
    assert stream.samples(1, mlp(2)).digest == (
        open_stream("permuted:2", data=data / "a.npz", seed=6).samples(1, mlp(2)).digest
    )


def test_class_names_map_to_the_outputs_the_manifest_says(tmp_path: Path) -> None:
    image_folder(tmp_path / "one", {"ant": 2, "bee": 3})
    image_folder(tmp_path / "two", {"cow": 4})
    tasks = [{"train": "one"}, {"train": "two"}]
    by_name = open_stream(manifest(tmp_path, tasks))
    assert by_name.samples(1, image_model(3)).class_counts == {2: 4}
    listed = open_stream(manifest(tmp_path, tasks, classes=["cow", "bee", "ant"]))
    assert listed.samples(0, image_model(3)).class_counts == {1: 3, 2: 2}
    mapped = open_stream(manifest(tmp_path, tasks, classes={"ant": 5, "bee": 0, "cow": 9}))
    assert mapped.adapt(0, image_model(3), head="fresh").num_classes == 10
    assert mapped.samples(0, image_model(10)).class_counts == {0: 3, 5: 2}
    short = open_stream(manifest(tmp_path, tasks, classes=["ant", "bee"]))
    with pytest.raises(DataError, match=r"task 2 \(task-2\): label 'cow' is not among the classes"):
        short.samples(1, image_model(3))


def test_names_too_many_for_the_head(tmp_path: Path) -> None:
    image_folder(tmp_path / "one", {"ant": 2, "bee": 3})
    image_folder(tmp_path / "two", {"cow": 4})
    stream = open_stream(manifest(tmp_path, [{"train": "one"}, {"train": "two"}]))
    with pytest.raises(MismatchError, match="3 classes"):
        stream.samples(0, image_model(2))


# --- refused ----------------------------------------------------------------------------------


def _refused(path: Path, **more: Any) -> ClcurvError:
    with pytest.raises(ClcurvError) as caught:
        open_stream(path, **more)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("tasks", "more", "message", "hint"),
    [
        ([{"trian": "a.npz"}], {}, "tasks[0].trian: unknown key", "did you mean train?"),
        ([{"train": "a.npz"}], {"scenarios": 1}, "scenarios: unknown key", "scenario"),
        ([{"train": "a.npz", "columns": {"lable": "y"}}], {}, "lable", ""),
        ([{"train": "a.npz"}], {"scenario": "online"}, "scenario: ", ""),
        ([{"train": "a.npz"}], {"schema_version": "2.0"}, "not read by this clcurv", ""),
        ([], {}, "tasks: ", ""),
        ([{"name": "x"}, {"name": "x"}], {"train": "a.npz"}, "both named 'x'", ""),
        ([{"name": "task-2"}, {}], {"train": "a.npz"}, "both named 'task-2'", ""),
        ([{}], {}, "task 1 (task-1) has no data", "train:"),
        ([{"train": "c.npz"}], {}, "no such file", ""),
        ([{"train": "a.npz", "test": "c.npz"}], {}, "no such file", ""),
        ([{"train": ""}], {}, "an empty path", ""),
        ([{"train": "https://x.invalid/a.npz"}], {}, "nothing is downloaded", ""),
        ([{"train": "a.npz", "classes": []}], {}, "classes: ", ""),
        ([{"train": "a.npz", "classes": [1, 1]}], {}, "listed twice", ""),
        ([{"train": "a.npz", "classes": [False]}], {}, "classes", "quotes"),
        ([{"train": "a.npz"}], {"classes": ["a", "a"]}, "listed twice", ""),
        ([{"train": "a.npz"}], {"classes": {"a": 0, "b": 0}}, "one output", ""),
        ([{"train": "a.npz"}], {"classes": {"a": -1}}, "negative", ""),
        ([{"train": "a.npz"}], {"transform": "rotate"}, "transform", ""),
        ([{"train": "a.npz"}], {"seed": -1}, "seed", ""),
    ],
)
def test_what_no_manifest_says(
    data: Path, tasks: list[dict[str, Any]], more: dict[str, Any], message: str, hint: str
) -> None:
    error = _refused(manifest(data, tasks, **more))
    assert isinstance(error, DataError)
    assert message in str(error)
    assert hint in str(error.hint)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("schema: clcurv.stream\nschema: clcurv.stream\ntasks: []", "'schema' is given twice"),
        ('{"schema": "clcurv.stream", "tasks": [], "tasks": []}', "'tasks' is given twice"),
        ('{"schema": "clcurv.stream", "seed": NaN}', "NaN is no JSON number"),
        ('{"schema": "clcurv.stream"', "not valid JSON"),
        ("schema: [clcurv", "not valid YAML"),
        ("- a\n- b", "neither a stream manifest"),
        ("just words", "neither a stream manifest"),
        ("schema: clcurv.kappa\ntasks: [{train: a.npz}]", "schema: "),
        ("tasks: [{train: a.npz}]", "schema: field required"),
        ("schema: clcurv.stream\ntasks: &t [*t]", "tasks[0]"),
        ("[" * 100_000, "nested too deeply"),
        ("a: " + "[" * 20_000, "nested too deeply"),
    ],
)
def test_what_is_no_manifest(data: Path, text: str, message: str) -> None:
    path = data / "stream.yaml"
    path.write_text(text)
    error = _refused(path)
    assert isinstance(error, DataError)
    assert message in str(error)


@pytest.mark.parametrize(
    "tag", ["!!python/object/apply:os.system ['touch made']", "!!python/name:os.system"]
)
def test_nothing_in_a_manifest_is_executed(
    data: Path, tag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data)
    (data / "stream.yaml").write_text(f"schema: clcurv.stream\nname: {tag}\ntasks: [{{train: a}}]")
    assert "not valid YAML" in str(_refused(data / "stream.yaml"))
    assert not (data / "made").exists()


def test_a_table_is_no_stream(data: Path) -> None:
    (data / "rows.csv").write_text("text,label\na,0\n")
    error = _refused(data / "rows.csv")
    assert "split:K" in str(error.hint)


def test_data_beside_a_complete_manifest(data: Path) -> None:
    error = _refused(manifest(data, [{"train": "a.npz"}]), data=data / "b.npz")
    assert isinstance(error, UsageError)


def _first_task(folder: Path, **task: Any) -> Stream:
    return open_stream(manifest(folder, [{"name": "only", **task}]))


def test_a_task_with_too_few_rows_or_none(data: Path) -> None:
    npz(data / "one.npz", [0])
    npz(data / "none.npz", [])
    (data / "header.csv").write_text("features,label\n")
    for train in ("one.npz", "none.npz", "header.csv"):
        with pytest.raises(DataError, match=r"^task 1 \(only\): "):
            _first_task(data, train=train).samples(0, mlp(2))
    with pytest.raises(DataError, match=r"task 1 \(only\): .* none is of its classes \(7\)"):
        _first_task(data, train="a.npz", classes=[7]).samples(0, mlp(2))
    npz(data / "few.npz", [0, 0, 1])
    with pytest.raises(DataError, match="single sample"):
        _first_task(data, train="few.npz", classes=[1]).samples(0, mlp(2))


def test_an_empty_task_is_told_when_resolving(data: Path) -> None:
    npz(data / "none.npz", [])
    with pytest.raises(DataError, match=r"task 1 \(only\)"):
        _first_task(data, train="none.npz").resolved()


def test_a_format_that_is_not_the_one_stated(data: Path) -> None:
    with pytest.raises(DataError, match="the data are npz, the manifest says csv"):
        _first_task(data, train="a.npz", format="csv").samples(0, mlp(2))


def test_unlabelled_rows_are_in_no_class_and_that_is_said(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("text,label\nthe cat,0\na dog,\nthe mat,0\nred,1\n")
    stream = _first_task(tmp_path, train="rows.csv", classes=[0])
    sample = stream.samples(0, bert("classification", tmp_path / "bert"))
    assert sample.class_counts == {0: 2}
    assert "1 rows without a label are in no task" in sample.notes
