"""The flags about data, in every command; and names from files wherever they are shown."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hostile import TINY, tiny_state
from PIL import Image
from program import BERT, program, quiet_surroundings

CHEAP = ("--layers", "fc|layer4", "--no-lambda-min", "--max-steps", 2)
EVIL = "\x1b[31m[red]$x$|`b`\n::error::e%@u<b>"  # no slash: it must be a file name


@pytest.fixture(scope="module", autouse=True)
def surroundings() -> Iterator[None]:
    with quiet_surroundings():
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network of three classes, and photographs in folders called a, b, c."""
    root = tmp_path_factory.mktemp("flags")
    torch.save({"arch": TINY, "state_dict": tiny_state()}, root / "net.pt")
    rng = np.random.default_rng(0)
    for label in "abc":
        (root / "photos" / label).mkdir(parents=True)
        for number in range(3):
            image = Image.fromarray(rng.integers(0, 256, (40, 40, 3), dtype=np.uint8))
            image.save(root / "photos" / label / f"{number}.png")
    (root / "map.json").write_text(json.dumps({"a": 2, "b": 0, "c": None}))
    (root / "all.json").write_text(json.dumps({"a": 2, "b": 0, "c": 1}))
    return root


def test_a_label_map_in_kappa(folder: Path) -> None:
    words = ("kappa", folder / "net.pt", "--data", folder / "photos", "-q", *CHEAP)
    ran = program(*words, "--label-map", folder / "map.json")
    assert ran.code == 0, ran.err
    assert ran.report["data"]["class_counts"] == {"0": 3, "2": 3}
    assert any("3 rows left out" in note for note in ran.report["data"]["notes"])
    ran = program(*words, "--label-map", folder / "nothing.json")
    assert ran.code == 3
    assert "nothing.json: no such file" in ran.err
    assert program(*words).report["data"]["class_counts"] == {"0": 3, "1": 3, "2": 3}


def test_a_label_map_in_the_other_commands(folder: Path) -> None:
    photos, mapped = folder / "photos", ("--label-map", folder / "all.json", "-q")
    ran = program(
        *("relimp", folder / "net.pt", "--past", photos, "--current", photos, "--epochs", 1),
        *("--samples", 9, "--layers", "fc", *mapped),
    )
    assert ran.code == 0, ran.err
    assert "labels mapped" in ran.out
    ran = program("stream", "resolve", "split:3", "--data", photos, "--json", *mapped)
    assert ran.code == 0, ran.err
    classes = [task["classes"] for task in ran.report["tasks"]]
    assert sorted(c for (c,) in classes) == [0, 1, 2]
    ran = program(
        *("spectrum", folder / "net.pt", "--stream", "permuted:2", "--data", photos),
        *("--samples", 6, "--layers", "^fc", "--probes", 2, "--lanczos-steps", 4, *mapped),
    )
    assert ran.code == 0, ran.err


def test_a_length_for_texts(folder: Path) -> None:
    lengths = {}
    for words in ((), ("--max-length", 5)):
        ran = program("kappa", *BERT, "--samples", 8, "--dry-run", "--json", "-q", *words)
        assert ran.code == 0, ran.err
        ran = program(
            *("kappa", *BERT, "--samples", 8, "--layers", "classifier", "--max-steps", 2),
            *("-q", *words),
        )
        assert ran.code == 0, ran.err
        lengths[words] = ran.report["data"]["digest"]
    assert len(set(lengths.values())) == 2


def test_what_is_left_out_is_told(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "photos", tmp_path / "photos")
    (tmp_path / "photos" / "b" / "1.png").write_bytes(b"no image")
    words = ("kappa", folder / "net.pt", "--data", tmp_path / "photos", *CHEAP)
    ran = program(*words, "--skip-bad")
    assert ran.code == 0, ran.err
    (line,) = [x for x in ran.err.splitlines() if "left out: " in x]
    assert line.startswith("clcurv: warning: 1 samples could not be used")
    assert "b/1.png: the image does not decode" in line
    assert ran.report["warnings"][0] in line


def test_names_of_files_and_folders_do_nothing(folder: Path, tmp_path: Path) -> None:
    """In the error, the warnings, and every form of the report."""
    data = tmp_path / f"data{EVIL}"
    shutil.copytree(folder / "photos", data)
    (data / "b").rename(data / f"b{EVIL}")
    bad = data / "a" / os.fsdecode(b"\xff" + EVIL.encode() + b".png")
    bad.write_bytes(b"no image")
    words = ("kappa", folder / "net.pt", "--data", data, *CHEAP)
    ran = program(*words)
    assert ran.code == 3
    harmless(ran.err)
    assert len(ran.err.splitlines()) <= 5
    report = tmp_path / "out.json"
    for form in ("json", "markdown", "table", "github"):
        figure = tmp_path / "out.svg"
        ran = program(*words, "--skip-bad", "--format", form, "-o", report, "--plot", figure)
        assert ran.code == 0, ran.err
        harmless(ran.err)
        harmless(ran.out)
        harmless(report.read_text("utf-8"))
        assert "\x1b" not in figure.read_text("utf-8")
    for form in ("json", "markdown", "table", "github"):
        ran = program("show", report, "--format", form)
        assert ran.code == 0, ran.err
        harmless(ran.out)
    ran = program("kappa", folder / "net.pt", "--data", data, "--dry-run", "--skip-bad")
    assert ran.code == 0, ran.err
    harmless(ran.out)


def test_names_of_classes_do_nothing(folder: Path, tmp_path: Path) -> None:
    data = tmp_path / "photos"
    shutil.copytree(folder / "photos", data)
    (data / "b").rename(data / f"b{EVIL}")
    for form in ("table", "json"):
        ran = program("stream", "resolve", "split:3", "--data", data, "--format", form)
        assert ran.code == 0, ran.err
        harmless(ran.err)
        harmless(ran.out)
    (tmp_path / "map.json").write_text(json.dumps({"a": 0, "c": 1}))
    ran = program(
        *("kappa", folder / "net.pt", "--data", data, "--label-map", tmp_path / "map.json", *CHEAP)
    )
    assert ran.code == 3
    assert "no entry for " in ran.err
    harmless(ran.err)


def harmless(text: str) -> None:
    assert "\x1b" not in text
    assert not any("\ud800" <= c <= "\udfff" for c in text)
    assert not any(line.startswith("::error") for line in text.splitlines())
