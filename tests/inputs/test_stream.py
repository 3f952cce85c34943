"""Streams of every kind -> tasks with the right rows, labels and transforms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from datamakers import bert, image_folder, image_model
from torch import nn

from clcurv.errors import ClcurvError, DataError, MismatchError, UsageError
from clcurv.inputs.live import wrap_module
from clcurv.inputs.loaded import LoadedModel
from clcurv.inputs.stream import Stream, open_stream, task_permutation

N, D = 60, 12


def mlp(classes: int, features: int = D) -> LoadedModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(features, 5), nn.ReLU(), nn.Linear(5, classes))
    return wrap_module(model.eval())


def arrays(classes: int = 6, n: int = N) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Row i is full of distinct numbers that tell i and the position; label i mod classes."""
    x = np.arange(n * D, dtype=np.float32).reshape(n, D)
    return x, np.arange(n) % classes


def npz(path: Path, classes: int = 6, **more: Any) -> Path:
    x, y = arrays(classes)
    np.savez(path, x=x, y=y, **more)
    return path


def texts(path: Path, labels: list[Any], words: str = "the cat sat") -> Path:
    rows = [json.dumps({"text": f"{words} {i % 3}", "label": k}) for i, k in enumerate(labels)]
    path.write_text("\n".join(rows))
    return path


def rows_of(stream: Stream, index: int, loaded: LoadedModel, **more: Any) -> dict[int, list[int]]:
    """Class id -> rows of the data set in the sample."""
    sample = stream.samples(index, loaded, n=1000, **more)
    assert isinstance(sample.inputs, torch.Tensor)
    found: dict[int, list[int]] = {}
    for x, y in zip(sample.inputs, sample.targets.tolist(), strict=True):
        found.setdefault(y, []).append(int(x.min()) // D)
    return {y: sorted(rows) for y, rows in sorted(found.items())}


@pytest.fixture(scope="module")
def bert_model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return bert("classification", tmp_path_factory.mktemp("bert"))


# --- permuted:K -----------------------------------------------------------------------------


def test_permuted_inputs_are_the_same_rows_in_another_order_of_features(tmp_path: Path) -> None:
    stream = open_stream("permuted:3", data=npz(tmp_path / "a.npz"), seed=5)
    assert (len(stream), stream.scenario) == (3, "domain-il")
    samples = [stream.samples(i, mlp(6), n=20) for i in range(3)]
    plain = samples[0].inputs
    assert isinstance(plain, torch.Tensor)
    for number, sample in enumerate(samples):
        order = np.arange(D) if number == 0 else np.random.default_rng([5, number]).permutation(D)
        assert torch.equal(torch.as_tensor(sample.inputs), plain[:, order])
        assert torch.equal(sample.targets, samples[0].targets)
        assert sample.source == "path"
    assert len({sample.digest for sample in samples}) == 3
    assert any("permutation 2" in note for note in samples[2].notes)


def test_another_seed_permutes_otherwise_and_the_same_one_alike(tmp_path: Path) -> None:
    path = npz(tmp_path / "a.npz")
    digests = [
        open_stream("permuted:2", data=path, seed=seed).samples(1, mlp(6), n=9).digest
        for seed in (1, 1, 2)
    ]
    assert digests[0] == digests[1] != digests[2]


def test_permutations_are_permutations_and_the_first_is_none() -> None:
    assert task_permutation(7, number=0, seed=3).tolist() == list(range(7))
    drawn = task_permutation(500, number=4, seed=3)
    assert sorted(drawn.tolist()) == list(range(500)) != drawn.tolist()


def test_images_are_permuted_by_pixel_after_preprocessing_all_channels_alike(
    tmp_path: Path,
) -> None:
    folder = image_folder(tmp_path / "images", {"0": 3, "1": 3})
    stream = open_stream("permuted:2", data=folder, seed=1)
    first, second = (torch.as_tensor(stream.samples(i, image_model(2)).inputs) for i in (0, 1))
    order = np.random.default_rng([1, 1]).permutation(256)
    assert first.shape == (6, 3, 16, 16)
    assert torch.equal(second.flatten(2), first.flatten(2)[:, :, order])


def test_texts_are_permuted_by_word_and_special_tokens_stay(
    tmp_path: Path, bert_model: LoadedModel
) -> None:
    path = texts(tmp_path / "a.jsonl", [0, 1] * 6)
    stream = open_stream("permuted:2", data=path)
    first, second = (stream.samples(i, bert_model, n=8).inputs for i in (0, 1))
    assert isinstance(first, dict)
    assert isinstance(second, dict)
    table: dict[int, int] = {}
    for old, new in zip(
        first["input_ids"].flatten().tolist(), second["input_ids"].flatten().tolist(), strict=True
    ):
        assert table.setdefault(old, new) == new
    assert len(set(table.values())) == len(table)
    special = {0, 1, 2, 3, 4}
    assert all((old in special) == (new in special) for old, new in table.items())
    assert all(table[token] == token for token in special & set(table))
    assert any(old != new for old, new in table.items())
    assert torch.equal(first["attention_mask"], second["attention_mask"])


def test_targets_of_a_language_model_are_permuted_with_its_inputs(tmp_path: Path) -> None:
    loaded = bert("masked-lm", tmp_path / "bert")
    path = texts(tmp_path / "a.jsonl", [0, 1] * 6, words="the cat sat on the red mat")
    stream = open_stream("permuted:2", data=path)
    one, two = (stream.samples(i, loaded, n=8) for i in (0, 1))
    scored = one.targets != -100
    assert scored.any()
    assert torch.equal(scored, two.targets != -100)
    assert isinstance(one.inputs, dict)
    assert isinstance(two.inputs, dict)
    table = dict(
        zip(
            one.inputs["input_ids"].flatten().tolist(),
            two.inputs["input_ids"].flatten().tolist(),
            strict=True,
        )
    )
    for old, new in zip(one.targets[scored].tolist(), two.targets[scored].tolist(), strict=True):
        assert table.get(old, new) == new


# --- split:K and label-shuffle:K ------------------------------------------------------------


def test_a_split_covers_every_class_once_and_keeps_the_labels(tmp_path: Path) -> None:
    stream = open_stream("split:4", data=npz(tmp_path / "a.npz"), seed=2)
    assert stream.scenario == "class-il"
    assert [len(task.classes or ()) for task in stream.tasks] == [2, 2, 1, 1]
    order = np.random.default_rng(2).permutation(6).tolist()
    assert [c for task in stream.tasks for c in task.classes or ()] == order
    _, y = arrays()
    for index, task in enumerate(stream.tasks):
        expected = {
            c: np.flatnonzero(y == c).tolist() for c in sorted(map(int, task.classes or ()))
        }
        assert rows_of(stream, index, mlp(6)) == expected


def test_a_sorted_split_takes_classes_in_their_order_ten_after_nine(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "images", {str(i): 2 for i in range(12)})
    stream = open_stream("split:3:sorted", data=folder)
    assert stream.tasks[2].classes == ("8", "9", "10", "11")
    assert stream.samples(2, image_model(12)).class_counts == dict.fromkeys(range(8, 12), 2)


def test_names_are_numbered_over_the_whole_stream_not_within_a_task(
    tmp_path: Path, bert_model: LoadedModel
) -> None:
    names = ["ant", "bee", "cow", "dog"]
    folder = image_folder(tmp_path / "images", dict.fromkeys(names, 3))
    stream = open_stream("split:2:sorted", data=folder)
    assert stream.samples(1, image_model(4)).class_counts == {2: 3, 3: 3}
    path = texts(tmp_path / "a.jsonl", names * 4)
    stream = open_stream("split:2", data=path, seed=1)
    four = bert("classification", tmp_path / "bert", classes=4)
    for index in (0, 1):
        expected = {names.index(str(c)): 4 for c in stream.tasks[index].classes or ()}
        assert stream.samples(index, four).class_counts == expected


def test_shuffled_labels_are_one_permutation_of_the_classes_per_task(tmp_path: Path) -> None:
    stream = open_stream("label-shuffle:3", data=npz(tmp_path / "a.npz"), seed=4)
    plain = rows_of(stream, 0, mlp(6))
    _, y = arrays()
    assert plain == {c: np.flatnonzero(y == c).tolist() for c in range(6)}
    for number in (1, 2):
        order = np.random.default_rng([4, number]).permutation(6)
        assert rows_of(stream, number, mlp(6)) == {int(order[c]): plain[c] for c in range(6)}


def test_shuffled_names(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "images", {"ant": 2, "bee": 3, "cow": 4})
    stream = open_stream("label-shuffle:2", data=folder, seed=1)
    order = np.random.default_rng([1, 1]).permutation(3)
    counts = stream.samples(1, image_model(3)).class_counts
    assert counts == {int(order[c]): 2 + c for c in range(3)}


# --- what a task's classes mean for the head ------------------------------------------------


def test_task_il_takes_its_outputs_of_a_wider_head(tmp_path: Path) -> None:
    stream = open_stream("split:3", data=npz(tmp_path / "a.npz"), scenario="task-il", seed=3)
    wide = mlp(6)
    before = {name: value.clone() for name, value in wide.model.state_dict().items()}
    x = torch.randn(7, D)
    for index, task in enumerate(stream.tasks):
        classes = [int(c) for c in task.classes or ()]
        own = stream.adapt(index, wide)
        assert own.num_classes == 2
        assert torch.allclose(own.model(x), wide.model(x)[:, classes], atol=1e-6)
        found = rows_of(stream, index, own)
        assert found == {i: list(range(c, N, 6)) for i, c in enumerate(classes)}
    assert all(torch.equal(before[name], value) for name, value in wide.model.state_dict().items())
    assert [n for n, _ in own.model.named_parameters()] == [
        n for n, _ in wide.model.named_parameters()
    ]


def test_task_il_with_a_head_per_task_numbers_within_the_task_and_says_so(tmp_path: Path) -> None:
    stream = open_stream("split:3:sorted", data=npz(tmp_path / "a.npz"), scenario="task-il")
    two = mlp(2)
    assert stream.adapt(1, two) is two
    sample = stream.samples(1, two)
    assert sample.class_counts == {0: 10, 1: 10}
    assert "labels numbered within the task (2=0, 3=1)" in sample.notes


def test_domain_il_over_a_split_shares_a_narrow_head(tmp_path: Path) -> None:
    stream = open_stream("split:3:sorted", data=npz(tmp_path / "a.npz"), scenario="domain-il")
    assert rows_of(stream, 2, mlp(2)) == {0: list(range(4, N, 6)), 1: list(range(5, N, 6))}
    assert stream.adapt(0, mlp(4), head="fresh").num_classes == 2


def test_a_label_outside_the_head_is_refused_or_gets_a_fresh_head(tmp_path: Path) -> None:
    stream = open_stream("split:3:sorted", data=npz(tmp_path / "a.npz"))
    narrow = mlp(4)
    assert stream.samples(1, narrow).class_counts == {2: 10, 3: 10}
    with pytest.raises(MismatchError, match=r"task 3 \(split-3\): label 5 lies outside") as caught:
        stream.samples(2, narrow)
    assert "--head fresh" in str(caught.value.hint)
    fresh = stream.adapt(2, narrow, head="fresh")
    assert fresh.num_classes == 6
    assert stream.samples(2, fresh).class_counts == {4: 10, 5: 10}


def test_task_il_outside_the_head(tmp_path: Path) -> None:
    stream = open_stream("split:3:sorted", data=npz(tmp_path / "a.npz"), scenario="task-il")
    with pytest.raises(MismatchError, match="outside the head with 4 classes"):
        stream.adapt(2, mlp(4))


def test_gaps_between_labels_stay(tmp_path: Path) -> None:
    x, y = arrays(3)
    np.savez(tmp_path / "a.npz", x=x, y=np.array([0, 4, 7])[y])
    stream = open_stream("permuted:1", data=tmp_path / "a.npz")
    assert stream.adapt(0, mlp(2), head="fresh").num_classes == 8
    assert stream.samples(0, mlp(8)).class_counts == {0: 20, 4: 20, 7: 20}
    np.savez(tmp_path / "b.npz", x=x, y=np.array([0, 4, 100_000])[y])
    wild = open_stream("permuted:1", data=tmp_path / "b.npz")
    with pytest.raises(DataError, match="no class numbers"):
        wild.adapt(0, mlp(2), head="fresh")


# --- PILOT, npz, folders, memory ------------------------------------------------------------


def test_pilot_orders_and_numbers_classes_as_pilot_does(tmp_path: Path) -> None:
    x = np.zeros((200, D), dtype=np.float32)
    np.savez(tmp_path / "a.npz", x=x + np.arange(200)[:, None], y=np.arange(200) % 100)
    path = tmp_path / "l2p.json"
    path.write_text(
        json.dumps({"init_cls": 20, "increment": 30, "shuffle": True, "seed": [1993], "lr": 0.1})
    )
    stream = open_stream(path, data=tmp_path / "a.npz")
    assert [len(task.classes or ()) for task in stream.tasks] == [20, 30, 30, 20]
    # The class order of iCaRL, PyCIL and PILOT for CIFAR-100 (seed 1993), as printed in papers.
    known = [68, 56, 78, 8, 23, 84, 90, 65, 74, 76]
    assert list((stream.tasks[0].classes or ())[:10]) == known
    assert stream.samples(0, mlp(100)).class_counts == dict.fromkeys(range(20), 2)
    rows = rows_of(open_stream(path, data=tmp_path / "a.npz"), 0, mlp(100))
    assert sorted(rows) == list(range(20))
    assert any("PILOT" in note for note in stream.notes)


def test_an_npz_with_tasks(tmp_path: Path) -> None:
    path = npz(tmp_path / "a.npz", t=np.arange(N) % 11)
    stream = open_stream(path)
    assert [task.name for task in stream.tasks] == [f"t={i}" for i in range(11)]
    rows = rows_of(stream, 10, mlp(6))
    assert sorted(r for found in rows.values() for r in found) == list(range(10, N, 11))


def test_a_folder_of_tasks_in_natural_order(tmp_path: Path, bert_model: LoadedModel) -> None:
    for name in ("task-10", "task-2", "task-1"):
        (tmp_path / "s" / name).mkdir(parents=True)
    image_folder(tmp_path / "s" / "task-1", {"0": 2, "1": 3})
    image_folder(tmp_path / "s" / "task-2" / "train", {"2": 2, "3": 3})
    npz(tmp_path / "s" / "task-10" / "data.npz")
    stream = open_stream(tmp_path / "s")
    assert [task.name for task in stream.tasks] == ["task-1", "task-2", "task-10"]
    assert stream.samples(1, image_model(4)).class_counts == {2: 2, 3: 3}
    (tmp_path / "t" / "a").mkdir(parents=True)
    texts(tmp_path / "t" / "a" / "train.jsonl", [0, 1, 1])
    assert open_stream(tmp_path / "t").samples(0, bert_model).class_counts == {0: 1, 1: 2}


def test_data_in_memory(tmp_path: Path) -> None:
    x, y = arrays()
    triple = open_stream((x, y, np.arange(N) // 20))
    assert len(triple) == 3
    assert sum(len(r) for r in rows_of(triple, 2, mlp(6)).values()) == 20
    several = open_stream([(x[:30], y[:30]), (x[30:], y[30:])])
    assert several.samples(1, mlp(6)).source == "given"
    named = open_stream({"a": (x, y), "b": npz(tmp_path / "a.npz")})
    assert [task.name for task in named.tasks] == ["a", "b"]
    table = datasets.Dataset.from_dict({"features": x.tolist(), "label": y.tolist()})
    assert open_stream("split:2", data=table).samples(0, mlp(6)).available == 30
    with pytest.raises(DataError, match="splits"):
        open_stream({"train": table, "test": table})


def test_numbers_of_a_class_label_column_are_kept_not_sorted_by_name(
    tmp_path: Path, bert_model: LoadedModel
) -> None:
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["zebra", "ant"])}
    )
    table = datasets.Dataset.from_dict(
        {"text": ["the cat"] * 3 + ["a dog"], "label": [0, 0, 0, 1]}, features=features
    )
    table.save_to_disk(str(tmp_path / "saved"))
    stream = open_stream("permuted:1", data=tmp_path / "saved")
    assert stream.samples(0, bert_model).class_counts == {0: 3, 1: 1}


def test_real_targets_pass_through(tmp_path: Path) -> None:
    x, _ = arrays()
    np.savez(tmp_path / "a.npz", x=x, y=x[:, :1] / 7)
    loaded = wrap_module(nn.Linear(D, 1), task="regression")
    stream = open_stream("permuted:2", data=tmp_path / "a.npz")
    sample = stream.samples(1, loaded, loss="mse")
    assert sample.targets.dtype == torch.float32
    assert "classes" not in stream.resolved()["tasks"][0]
    with pytest.raises(DataError, match="real numbers"):
        open_stream("split:2", data=tmp_path / "a.npz")


# --- the resolved stream --------------------------------------------------------------------


def test_a_resolved_stream_is_a_manifest_of_the_same_stream(tmp_path: Path) -> None:
    path = npz(tmp_path / "a.npz", t=np.arange(N) % 2)
    (tmp_path / "p.json").write_text('{"init_cls": 2, "increment": 3, "shuffle": true, "seed": 7}')
    for number, stream in enumerate(
        [
            open_stream("permuted:3", data=path, seed=9),
            open_stream("split:4", data=path, seed=9),
            open_stream("split:3", data=path, scenario="domain-il"),
            open_stream("label-shuffle:3", data=path, seed=9),
            open_stream(tmp_path / "p.json", data=path),
            open_stream(path),
        ]
    ):
        resolved = stream.resolved()
        saved = tmp_path / f"{number}.json"
        saved.write_text(json.dumps(resolved))
        again = open_stream(saved)
        assert again.resolved()["tasks"] == resolved["tasks"]
        assert (again.scenario, again.name) == (stream.scenario, stream.name)
        width = 2 if stream.scenario == "domain-il" and number == 2 else 6
        for index in range(len(stream)):
            assert (
                again.samples(index, mlp(width), n=17).digest
                == stream.samples(index, mlp(width), n=17).digest
            )


def test_the_resolved_stream_counts_labels_and_notices_a_change(tmp_path: Path) -> None:
    path = npz(tmp_path / "a.npz")
    stream = open_stream("split:2:sorted", data=path)
    resolved = stream.resolved()
    assert resolved["tasks"][1]["label_histogram"] == {"3": 10, "4": 10, "5": 10}
    assert resolved["tasks"][1]["n"] == 30
    assert resolved["tasks"][0]["digest"] != resolved["tasks"][1]["digest"]
    saved = tmp_path / "s.json"
    saved.write_text(json.dumps(resolved))
    x, y = arrays()
    x[0, 0] += 1
    np.savez(path, x=x, y=y)
    with pytest.raises(DataError, match=r"task 1 \(split-1\): the data have changed"):
        open_stream(saved).resolved()
    np.savez(path, x=x[:-1], y=y[:-1])
    with pytest.raises(DataError, match="29 samples, but the manifest says 30"):
        open_stream(saved).samples(1, mlp(6))


def test_classes_in_a_report_are_class_ids(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "images", {"ant": 2, "bee": 3, "cow": 4})
    stream = open_stream("split:3:sorted", data=folder)
    tasks = stream.resolved(image_model(3), digests=False)["tasks"]
    assert [task["classes"] for task in tasks] == [[0], [1], [2]]
    assert tasks[2]["label_histogram"] == {"2": 4}
    assert [task["classes"] for task in stream.resolved()["tasks"]] == [["ant"], ["bee"], ["cow"]]


def test_content_decides_the_digest_not_the_place(tmp_path: Path) -> None:
    one = image_folder(tmp_path / "one", {"0": 2, "1": 2})
    two = image_folder(tmp_path / "two", {"0": 2, "1": 2})
    digests = [open_stream("permuted:2", data=p).resolved()["tasks"] for p in (one, two)]
    assert [t["digest"] for t in digests[0]] == [t["digest"] for t in digests[1]]
    assert digests[0][0]["digest"] != digests[0][1]["digest"]


# --- bad input ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ("permuted:0", UsageError, "K is not a number"),
        ("permuted:-1", UsageError, "K is not a number"),
        ("permuted:", UsageError, "K is not a number"),
        ("permuted:ten", UsageError, "K is not a number"),
        ("permuted:999999999", UsageError, "K is not a number"),
        ("permuted:3:sorted", UsageError, "K is not a number"),
        ("split:7", UsageError, "6 classes, too few for 7 tasks"),
        ("rotated:3", DataError, "no such file, folder or generated stream"),
    ],
)
def test_what_is_no_generated_stream(
    tmp_path: Path, spec: str, error: type[ClcurvError], message: str
) -> None:
    path = npz(tmp_path / "a.npz")
    with pytest.raises(error, match=message) as caught:
        open_stream(spec, data=path)
    assert caught.value.hint
    assert "\n" not in str(caught.value)


def test_data_missing_or_of_no_use(tmp_path: Path) -> None:
    for spec in ("permuted:2", "split:2", "label-shuffle:2"):
        with pytest.raises(UsageError, match="data set, and none is given"):
            open_stream(spec)
    with pytest.raises(DataError, match="no such file or folder"):
        open_stream("permuted:2", data=tmp_path / "nowhere")
    path = npz(tmp_path / "a.npz", t=np.arange(N) % 2)
    with pytest.raises(UsageError, match="of no use"):
        open_stream(path, data=path)
    with pytest.raises(UsageError, match="unknown scenario"):
        open_stream(path, scenario="online")
    with pytest.raises(UsageError, match="seed"):
        open_stream(path, seed=-1)
    with pytest.raises(UsageError, match="unknown head"):
        open_stream(path).adapt(0, mlp(6), head="new")


def test_bad_npz(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no array t") as caught:
        open_stream(npz(tmp_path / "a.npz"))
    assert "split:K" in str(caught.value.hint)
    with pytest.raises(DataError, match="names no tasks"):
        open_stream(npz(tmp_path / "b.npz", t=np.zeros((N, 2))))
    with pytest.raises(DataError, match="names no tasks"):
        open_stream(npz(tmp_path / "c.npz", t=np.full(N, np.nan)))
    with pytest.raises(DataError, match="60 samples, but 59 task numbers"):
        open_stream(npz(tmp_path / "d.npz", t=np.arange(59))).samples(0, mlp(6))
    np.savez(tmp_path / "e.npz", x=arrays()[0], t=np.array([{}] * N, dtype=object))
    with pytest.raises(ClcurvError, match="pickled"):
        open_stream(tmp_path / "e.npz")
    one = npz(tmp_path / "f.npz", t=np.minimum(np.arange(N), 1))
    with pytest.raises(DataError, match=r"task 1 \(t=0\).*single sample"):
        open_stream(one).samples(0, mlp(6))


def test_bad_folders(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no sub-folder"):
        open_stream(tmp_path / "empty")
    classes = image_folder(tmp_path / "classes", {"ant": 2, "bee": 2})
    with pytest.raises(DataError, match="looks like one image folder") as caught:
        open_stream(classes)
    assert "split:K" in str(caught.value.hint)
    image_folder(tmp_path / "splits" / "train", {"a": 2})
    image_folder(tmp_path / "splits" / "test", {"a": 2})
    with pytest.raises(DataError, match="one data set with its splits"):
        open_stream(tmp_path / "splits")
    image_folder(tmp_path / "s" / "one", {"a": 2})
    (tmp_path / "s" / "two").mkdir()
    with pytest.raises(DataError, match="no data in the folder of a task"):
        open_stream(tmp_path / "s")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"init_cls": 0, "increment": 2}, "init_cls: not a number above 0"),
        ({"init_cls": 2}, "increment: missing"),
        ({"init_cls": 7, "increment": 1}, "init_cls is 7, the data have 6 classes"),
        ({"init_cls": 2, "increment": 1, "shuffle": "yes"}, "shuffle"),
        ({"init_cls": 2, "increment": 1, "seed": -3}, "seed"),
        ({"init_cls": 2, "increment": 1, "seed": []}, "seed"),
    ],
)
def test_bad_pilot(tmp_path: Path, content: dict[str, Any], message: str) -> None:
    (tmp_path / "p.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=message):
        open_stream(tmp_path / "p.json", data=npz(tmp_path / "a.npz"))


def test_pilot_needs_data_without_gaps(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text('{"init_cls": 1, "increment": 1}')
    with pytest.raises(UsageError, match="not where the data are"):
        open_stream(tmp_path / "p.json")
    x, y = arrays(3)
    np.savez(tmp_path / "a.npz", x=x, y=y * 2)
    with pytest.raises(DataError, match="without gaps"):
        open_stream(tmp_path / "p.json", data=tmp_path / "a.npz")


def test_a_language_model_gets_no_fresh_head(tmp_path: Path) -> None:
    loaded = bert("masked-lm", tmp_path / "bert")
    stream = open_stream("permuted:1", data=texts(tmp_path / "a.jsonl", [0, 1]))
    with pytest.raises(UsageError, match="language model"):
        stream.adapt(0, loaded, head="fresh")
