"""Classes of a task to come: known ones keep their ids, new ones follow the head's."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from clcurv.errors import DataError, MismatchError
from clcurv.inputs.live import wrap_module
from clcurv.inputs.loaded import LoadedModel
from clcurv.inputs.new_classes import GUESSED, class_names, load_new_task

N = 24


def network(names: dict[int, str] | None = None, classes: int = 3) -> LoadedModel:
    loaded = wrap_module(nn.Sequential(nn.Flatten(), nn.Linear(4, classes)))
    return dataclasses.replace(loaded, id2label=names or {})


def data(labels: list) -> tuple[torch.Tensor, list]:
    return torch.randn(N, 4, generator=torch.Generator().manual_seed(0)), labels * (
        N // len(labels)
    )


def ids(labels: list, loaded: LoadedModel, **more) -> set[int]:
    return set(load_new_task(data(labels), loaded, n=N, **more).targets.tolist())


def test_numbers_are_taken_as_they_are() -> None:
    assert ids([0, 2], network()) == {0, 2}
    assert ids([1, 4, 6], network()) == {1, 4, 6}
    assert ids(["1", "4"], network()) == {1, 4}


def test_numbers_beyond_a_head_with_names() -> None:
    assert ids([0, 5], network({0: "cat", 1: "dog", 2: "fox"})) == {0, 5}


def test_new_names_follow_the_checkpoint_s_own() -> None:
    loaded = network({0: "cat", 1: "dog", 2: "fox"})
    samples = load_new_task(data(["dog", "owl", "bee"]), loaded, n=N)
    x, y = data(["dog", "owl", "bee"])
    named = {"dog": 1, "bee": 3, "owl": 4}
    place = {tuple(row.tolist()): named[label] for row, label in zip(x, y, strict=True)}
    assert all(
        place[tuple(row.tolist())] == i
        for row, i in zip(samples.inputs, samples.targets.tolist(), strict=True)
    )
    assert "2 classes are new to the head (bee=3, owl=4), 1 are known to it" in samples.notes


def test_new_names_follow_those_of_the_past_s_data() -> None:
    loaded = network({0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"})
    known = class_names(data(["cat", "dog", "fox"]), loaded, n=N)
    assert known == {"cat": 0, "dog": 1, "fox": 2}
    # Without them, three names for a head with three classes would be taken for these.
    assert ids(["fox", "owl", "bee"], loaded, known=known) == {2, 3, 4}
    assert ids(["dog", "cat"], loaded, known=known) == {0, 1}


def test_no_names_are_asked_for_where_they_decide_nothing() -> None:
    assert class_names(data([0, 1]), network(), n=N) == {}
    assert class_names(data(["a", "b", "c"]), network({0: "x", 1: "y", 2: "z"}), n=N) == {}
    assert class_names(iter([data([0, 1])]), network(), n=N) == {}


def test_names_that_cannot_be_numbered_are_refused() -> None:
    with pytest.raises(DataError, match="the current task: 2 class names") as caught:
        ids(["a", "b"], network())
    assert caught.value.hint == "write new classes as numbers: 3, 4, ..."
    with pytest.raises(MismatchError, match="4 classes"):
        ids(["a", "b", "c", "d"], network())


@pytest.mark.parametrize(("labels", "said"), [([-1, 0], "'-1'"), ([0, 900], "no class numbers")])
def test_numbers_that_are_no_classes(labels: list, said: str) -> None:
    with pytest.raises(MismatchError, match=said):
        ids(labels, network())


def test_folders_of_images_by_name(tmp_path: Path) -> None:
    for name in ("owl", "cat"):
        (tmp_path / name).mkdir()
        for i in range(3):
            Image.fromarray(np.full((8, 8), 40 * i, np.uint8)).save(tmp_path / name / f"{i}.png")
    loaded = dataclasses.replace(
        network({0: "cat", 1: "dog", 2: "fox"}),
        modality="image",
        preprocess={"input_size": (1, 8, 8), "mean": (0.5,), "std": (0.5,)},
    )
    samples = load_new_task(tmp_path, loaded, n=6)
    assert samples.class_counts == {0: 3, 3: 3}
    assert samples.source == "path"


def test_a_regression_has_no_classes() -> None:
    loaded = dataclasses.replace(network(classes=1), task="regression")
    y = torch.randn(N, 1).tolist()
    samples = load_new_task((torch.randn(N, 4), y), loaded, n=N, loss="mse")
    assert samples.targets.shape == (N, 1)
    assert samples.class_counts == {}


def test_names_taken_for_the_head_s_own_are_told() -> None:
    generic = network({0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"})
    told = load_new_task(data(["owl", "bee", "fox"]), generic, n=N).notes
    assert any(note.startswith(GUESSED) and "bee, fox, owl" in note for note in told)
    named = network({0: "owl", 1: "bee", 2: "fox"})
    for loaded, labels, more in (
        (named, ["owl", "bee", "fox"], {}),
        (generic, [0, 1, 2], {}),
        (generic, ["owl", "bee", "fox"], {"known": {"owl": 0, "bee": 1, "fox": 2}}),
    ):
        notes = load_new_task(data(labels), loaded, n=N, **more).notes
        assert not any(note.startswith(GUESSED) for note in notes)
