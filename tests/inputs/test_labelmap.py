"""Label maps from files of every kind, and what they do to a data set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from datamakers import image_folder, image_model
from timm.data import ImageNetInfo

from clcurv.errors import DataError, MismatchError
from clcurv.inputs.dataset import load_samples
from clcurv.inputs.labelmap import read_label_map

CLASSES = {"ant": 2, "bee": 0, "tree frog": 1}
FILES: dict[str, str] = {
    "map.json": json.dumps(CLASSES),
    "inverse.json": json.dumps({"0": "bee", "1": "tree frog", "2": "ant"}),
    "list.json": json.dumps(["bee", "tree frog", "ant"]),
    "config.json": json.dumps({"model_type": "vit", "label2id": CLASSES}),
    "id2label.json": json.dumps({"id2label": {"0": "bee", "1": "tree frog", "2": "ant"}}),
    "map.yaml": "ant: 2\nbee: 0\ntree frog: 1\n",
    "numbers.yml": "0: bee\n1: tree frog\n2: ant\n",
    "map.csv": "ant,2\nbee,0\ntree frog,1\n",
    "heading.csv": 'label,id\n"ant",2\nbee, 0\ntree frog,1\n',
    "inverse.csv": "id,name\n2,ant\n0,bee\n1,tree frog\n",
    "map.tsv": "ant\t2\nbee\t0\ntree frog\t1\n",
    "lines.txt": "\ufeffbee\n\ntree frog\nant\n",
    "first.txt": "0 bee\n1: tree frog\n2\tant\n",
    "last.txt": "bee 0\ntree frog 1\nant=2\n",
}


@pytest.mark.parametrize("name", FILES)
def test_every_form_says_the_same(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(FILES[name], encoding="utf-8")
    found = read_label_map(tmp_path / name)
    assert found == CLASSES
    assert read_label_map(found) == found


def test_lists_of_wordnet_ids(tmp_path: Path) -> None:
    # The form of LOC_synset_mapping.txt, from timm's own tables.
    info = ImageNetInfo()
    names = info.label_names()
    lines = [f"{synset} {info.index_to_description(i)}" for i, synset in enumerate(names)]
    (tmp_path / "synsets.txt").write_text("\n".join(lines))
    assert read_label_map(tmp_path / "synsets.txt") == {s: i for i, s in enumerate(names)}


def test_names_that_end_in_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("digit 3\ndigit 1\n")
    assert read_label_map(tmp_path / "a.txt") == {"digit 3": 0, "digit 1": 1}


BAD: dict[str, tuple[str, str]] = {
    "twice.json": ('{"a": 1, "a": 2}', "'a' is given twice"),
    "twice.csv": ("a,1\na,2\n", "'a' is given twice"),
    "bool.json": ('{"a": true}', "'a' is mapped to True"),
    "real.json": ('{"a": 1.5}', "'a' is mapped to 1.5"),
    "nested.json": ('{"a": [1]}', r"'a' is mapped to \[1\]"),
    "yes.yaml": ("yes: 1\nno: 0\n", "a key is read as True"),
    "tag.yaml": ("!!python/object/apply:os.mkdir [canary]", "not valid YAML"),
    "broken.json": ('{"a": 1', "not valid JSON"),
    "deep.json": ("[" * 100_000, "nested too deeply"),
    "number.json": ("3", "no label map|neither"),
    "empty.txt": ("", "no label map"),
    "three.csv": ("a,1,2\n", "a row of 3 cells"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_label_map(tmp_path: Path, name: str) -> None:
    content, said = BAD[name]
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=said) as caught:
        read_label_map(tmp_path / name)
    assert "\n" not in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        read_label_map(tmp_path / "nothing.json")


def mapped(data: Any, entries: dict[str, Any], **asked: Any) -> Any:
    columns = {"label_map": read_label_map(entries)}
    return load_samples(data, image_model(3), columns=columns, **asked)


def test_folders_get_the_classes_of_the_map(tmp_path: Path) -> None:
    folder = image_folder(tmp_path, {"ant": 2, "bee": 3, "tree frog": 4})
    sample = mapped(folder, CLASSES)
    assert sample.class_counts == {2: 2, 0: 3, 1: 4}
    assert any("3 labels mapped" in note for note in sample.notes)
    merged = mapped(folder, {"ant": 1, "bee": 1, "tree frog": 0})
    assert merged.class_counts == {1: 5, 0: 4}


def test_null_leaves_a_class_out(tmp_path: Path) -> None:
    folder = image_folder(tmp_path, {"ant": 2, "bee": 3, "wasp": 4})
    sample = mapped(folder, {"ant": 0, "bee": 2, "wasp": None})
    assert sample.class_counts == {0: 2, 2: 3}
    assert sample.available == 5
    assert any("4 rows left out" in note for note in sample.notes)
    with pytest.raises(DataError, match="leaves every row out"):
        mapped(folder, {"ant": None, "bee": None, "wasp": None})


def test_names_of_the_checkpoints_classes(tmp_path: Path) -> None:
    folder = image_folder(tmp_path, {"fourmi": 2, "abeille": 3})
    columns = {"label_map": read_label_map({"fourmi": "ant", "abeille": "bee"})}
    model = image_model(3, id2label={0: "bee", 1: "frog", 2: "ant"})
    assert load_samples(folder, model, columns=columns).class_counts == {2: 2, 0: 3}
    imagenet = image_model(1000)
    columns = {"label_map": read_label_map({"fourmi": "n02219486", "abeille": "n02206856"})}
    assert load_samples(folder, imagenet, columns=columns).class_counts == {310: 2, 309: 3}


def test_labels_that_are_numbers_and_stated_names() -> None:
    x, y = torch.randn(4, 3, 5, 5), torch.tensor([7, 9, 7, 9])
    model = image_model(3, modality="array")
    columns = {"label_map": read_label_map({7: 0, "9": 2})}
    assert load_samples((x, y), model, columns=columns).class_counts == {0: 2, 2: 2}
    features = datasets.Features(
        {
            "x": datasets.Array3D((3, 5, 5), "float32"),
            "label": datasets.ClassLabel(names=["a", "b"]),
        }
    )
    table = datasets.Dataset.from_dict({"x": x.numpy(), "label": [0, 1, 1, 1]}, features)
    columns = {"label_map": read_label_map({"a": 2, "b": 1})}
    assert load_samples(table, model, columns=columns).class_counts == {1: 3, 2: 1}


def test_labels_without_an_entry_and_beyond_the_head(tmp_path: Path) -> None:
    folder = image_folder(tmp_path, {"ant": 2, "bee": 3})
    with pytest.raises(DataError, match=r"no entry for 'bee' \(it has: 'ant'\)") as caught:
        mapped(folder, {"ant": 0})
    assert "null" in (caught.value.hint or "")
    with pytest.raises(MismatchError, match="'7' lies outside"):
        mapped(folder, {"ant": 0, "bee": 7})
