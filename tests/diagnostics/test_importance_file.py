"""Importance files: they come back as they were, and what is none is refused before it is read."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hostile import EXIT_CODE, HOSTILE
from importance_makers import importance, small
from safetensors import safe_open
from safetensors.torch import save_file

from clcurv.diagnostics.importance_file import KEY, load_importance, save_importance
from clcurv.errors import (
    ClcurvError,
    CorruptFileError,
    InputError,
    NotWeightsError,
    ResourceError,
    UsageError,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "imp.safetensors"
    save_importance(path, small())
    return path


def test_everything_comes_back(path: Path) -> None:
    before, after = small(), load_importance(path)
    for name, t in before.tensors.items():
        assert after.tensors[name].dtype == torch.float64
        assert torch.allclose(after.tensors[name], t, rtol=1e-7, atol=0)
    for field in before.__dataclass_fields__:
        if field not in ("tensors", "cost_gradients", "notes"):
            assert getattr(after, field) == getattr(before, field), field


def test_the_metadata_say_how_it_was_taken(path: Path) -> None:
    with safe_open(path, framework="pt") as file:
        held = json.loads(file.metadata()[KEY])
    assert (held["estimator"], held["mode"], held["n_samples"]) == ("mas", "per-sample", 64)
    assert held["digest"] == "a" * 64
    assert held["accumulated"] == 1


def test_values_that_single_precision_cannot_hold_stay_double(tmp_path: Path) -> None:
    values = torch.tensor([1e-60, 1.0, 0.0], dtype=torch.float64)
    save_importance(tmp_path / "a", importance({"w": values, "v": torch.ones(2)}))
    found = load_importance(tmp_path / "a").tensors
    assert torch.equal(found["w"], values)
    with safe_open(tmp_path / "a", framework="pt") as file:
        assert file.get_slice("w").get_dtype() == "F64"
        assert file.get_slice("v").get_dtype() == "F32"


@pytest.mark.parametrize("name", HOSTILE)
def test_bad_files_get_one_line_and_run_nothing(name: str, tmp_path: Path) -> None:
    bad = HOSTILE[name](tmp_path)
    with pytest.raises(ClcurvError) as caught:
        load_importance(bad)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 3
    assert EXIT_CODE[name] in (3, 4)
    assert not (tmp_path / "canary").exists()


def test_model_weights_are_no_importance(tmp_path: Path) -> None:
    save_file({"w": torch.ones(2)}, tmp_path / "model.safetensors")
    with pytest.raises(NotWeightsError, match="is it a model"):
        load_importance(tmp_path / "model.safetensors")
    torch.save({"w": torch.ones(2)}, tmp_path / "model.pt")
    with pytest.raises(NotWeightsError, match="torch file"):
        load_importance(tmp_path / "model.pt")


def rewritten(path: Path, change: Callable[[dict], object]) -> None:
    """The same file with other content under the key."""
    with safe_open(path, framework="pt") as file:
        tensors = {n: file.get_tensor(n) for n in file.keys()}  # noqa: SIM118
        held = json.loads(file.metadata()[KEY])
    change(held)
    save_file(tensors, path, metadata={KEY: json.dumps(held)})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda h: h.update(estimator="guess"), "'estimator'"),
        (lambda h: h.update(n_samples=0), "'n_samples'"),
        (lambda h: h.update(n_samples="64"), "'n_samples'"),
        (lambda h: h.update(accumulated=-1), "'accumulated'"),
        (lambda h: h.update(layer_stderr={"a\x1b[31m": -1}), r"a\\x1b"),
        (lambda h: h.update(mean_loss=float("nan")), "'mean_loss'"),
        (lambda h: h.pop("digest"), "'digest'"),
        (lambda h: h.update(fingerprint="0" * 64), "contradicts itself"),
        (lambda h: h.update(head=[]), "contradicts itself"),
    ],
)
def test_metadata_that_lie(path: Path, change: Callable[[dict], object], says: str) -> None:
    rewritten(path, change)
    with pytest.raises(CorruptFileError, match=says):
        load_importance(path)


def test_files_of_a_newer_version(path: Path) -> None:
    rewritten(path, lambda h: h.update(version=2))
    with pytest.raises(NotWeightsError, match="newer clcurv"):
        load_importance(path)


@pytest.mark.parametrize("text", ["{", "[1]", "null", "[" * 100_000])
def test_metadata_that_are_no_object(tmp_path: Path, text: str) -> None:
    save_file({"w": torch.ones(2)}, tmp_path / "a", metadata={KEY: text})
    with pytest.raises(CorruptFileError):
        load_importance(tmp_path / "a")


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_values_that_are_no_importance(path: Path, value: float) -> None:
    with safe_open(path, framework="pt") as file:
        tensors = {n: file.get_tensor(n) for n in file.keys()}  # noqa: SIM118
        metadata = file.metadata()
    tensors["body.bias"][3] = value
    save_file(tensors, path, metadata=metadata)
    with pytest.raises(CorruptFileError, match=r"'body.bias' holds values"):
        load_importance(path)


def test_other_types_and_no_tensors(path: Path, tmp_path: Path) -> None:
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    save_file({"w": torch.ones(2, dtype=torch.int8)}, path, metadata=metadata)
    with pytest.raises(CorruptFileError, match="type I8"):
        load_importance(path)
    save_file({}, path, metadata=metadata)
    with pytest.raises(CorruptFileError, match="no tensors"):
        load_importance(path)


def test_cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(CorruptFileError):
        load_importance(path)


def test_a_shape_larger_than_the_file(path: Path) -> None:
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    header["body.weight"]["shape"] = [1 << 40, 5]
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])
    with pytest.raises(CorruptFileError):
        load_importance(path)


def test_larger_than_allowed(path: Path) -> None:
    with pytest.raises(ResourceError, match="limit"):
        load_importance(path, max_bytes=100)


def test_larger_than_allowed_once_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "wide"
    save_importance(path, importance({"w": torch.ones(10_000)}))
    with pytest.raises(ResourceError, match="limit"):
        load_importance(path, max_bytes=path.stat().st_size + 100)


def test_nothing_is_half_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        save_importance(tmp_path / "none" / "imp.safetensors", small())
    with pytest.raises(ResourceError):
        save_importance("/dev/full", small())
    assert list(tmp_path.iterdir()) == []


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        load_importance(tmp_path / "imp.safetensors")
