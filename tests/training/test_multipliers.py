from __future__ import annotations

import errno
import os

import pytest
import safetensors.torch
import torch

from clcurv.errors import (
    CorruptFileError,
    InputError,
    NotWeightsError,
    NumericalError,
    ResourceError,
    UsageError,
)
from clcurv.training.multipliers import load_multipliers, save_multipliers

HEADER = {"clcurv.multipliers": '{"version": 1}'}
ABOUT = {"estimator": "mas", "multiplier": "paper", "lambda_up": 3.0, "schedule": None}
GOOD = {"a.weight": torch.tensor([[0.0, 1.5]]), "a.bias": torch.tensor([2.0])}


def test_what_is_written_comes_back(tmp_path):
    path = tmp_path / "m.safetensors"
    wide = {n: t.double() for n, t in GOOD.items()}
    wide["a.weight"] = wide["a.weight"].T  # not contiguous
    save_multipliers(path, wide, lambda_=0.1, about=ABOUT)
    read = load_multipliers(path)
    assert read.lambda_ == 0.1
    assert read.about == ABOUT
    assert read.tensors.keys() == GOOD.keys()
    assert read.tensors["a.weight"].dtype == torch.float32
    assert torch.equal(read.tensors["a.weight"], GOOD["a.weight"].T)
    # Readable by anyone's safetensors.
    assert torch.equal(safetensors.torch.load_file(path)["a.bias"], GOOD["a.bias"])


def test_lambda_may_be_missing(tmp_path):
    save_multipliers(tmp_path / "m", GOOD)
    assert load_multipliers(tmp_path / "m").lambda_ is None


@pytest.mark.parametrize(
    ("bad", "message"), [(-1.0, "negative"), (float("nan"), "finite"), (float("inf"), "finite")]
)
def test_numbers_that_cannot_be(tmp_path, bad, message):
    wrong = {**GOOD, "a.bias": torch.tensor([bad])}
    with pytest.raises(NumericalError, match=f"multipliers of a.bias are .*{message}"):
        save_multipliers(tmp_path / "m", wrong)
    assert list(tmp_path.iterdir()) == []
    safetensors.torch.save_file(wrong, tmp_path / "m", metadata=HEADER)
    with pytest.raises(CorruptFileError, match=message):
        load_multipliers(tmp_path / "m")


def test_what_cannot_be_written(tmp_path):
    with pytest.raises(UsageError, match="no multipliers"):
        save_multipliers(tmp_path / "m", {})
    for bad in (float("nan"), -1.0):
        with pytest.raises(NumericalError, match=f"weight of the penalty is {bad}"):
            save_multipliers(tmp_path / "m", GOOD, lambda_=bad)
    with pytest.raises(NumericalError, match="lambda_ceiling is inf"):
        save_multipliers(tmp_path / "m", GOOD, about={"lambda_ceiling": float("inf")})
    with pytest.raises(NumericalError, match="finite"):  # beyond float32
        save_multipliers(tmp_path / "m", {"a": torch.tensor([1e300], dtype=torch.float64)})
    with pytest.raises(UsageError, match="folder does not exist"):
        save_multipliers(tmp_path / "no" / "m", GOOD)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("metadata", "error", "message"),
    [
        (None, NotWeightsError, "no multipliers"),
        ({"clcurv.importance": "{}"}, NotWeightsError, "no multipliers"),
        ({"clcurv.multipliers": '{"version": 2}'}, NotWeightsError, "newer clcurv"),
        ({"clcurv.multipliers": '{"version": "1"}'}, CorruptFileError, "version"),
        ({"clcurv.multipliers": '{"version": 1, "lambda": -1}'}, CorruptFileError, "lambda"),
        ({"clcurv.multipliers": '{"version": 1, "lambda": NaN}'}, CorruptFileError, "lambda"),
        ({"clcurv.multipliers": "[1]"}, CorruptFileError, "no valid multipliers file"),
        ({"clcurv.multipliers": "{"}, CorruptFileError, "no JSON"),
        ({"clcurv.multipliers": "[" * 100_000}, CorruptFileError, "no JSON"),
    ],
)
def test_metadata_that_does_not_fit(tmp_path, metadata, error, message):
    safetensors.torch.save_file(GOOD, tmp_path / "m", metadata=metadata)
    with pytest.raises(error, match=message):
        load_multipliers(tmp_path / "m")


def test_further_keys_do_no_harm(tmp_path):
    meta = {"clcurv.multipliers": '{"version": 1, "lambda": 2.0, "new": [1]}'}
    safetensors.torch.save_file(GOOD, tmp_path / "m", metadata=meta)
    assert load_multipliers(tmp_path / "m").lambda_ == 2.0


def test_other_files(tmp_path):
    with pytest.raises(InputError):
        load_multipliers(tmp_path / "no")
    with pytest.raises(InputError):
        load_multipliers(tmp_path)
    torch.save(GOOD, tmp_path / "m.pt")
    with pytest.raises(NotWeightsError, match="not a multipliers file"):
        load_multipliers(tmp_path / "m.pt")
    save_multipliers(tmp_path / "m", GOOD)
    whole = (tmp_path / "m").read_bytes()
    (tmp_path / "cut").write_bytes(whole[:-4])
    with pytest.raises(CorruptFileError):
        load_multipliers(tmp_path / "cut")
    ints = {"a": torch.ones(2, dtype=torch.int64)}
    safetensors.torch.save_file(ints, tmp_path / "ints", metadata=HEADER)
    with pytest.raises(CorruptFileError, match="not real numbers"):
        load_multipliers(tmp_path / "ints")


def test_a_file_larger_than_allowed(tmp_path):
    save_multipliers(tmp_path / "m", GOOD)
    with pytest.raises(ResourceError):
        load_multipliers(tmp_path / "m", max_bytes=10)


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "m"
    save_multipliers(path, GOOD, lambda_=1.0)
    before = path.read_bytes()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ResourceError, match="No space left"):
        save_multipliers(path, {"b": torch.ones(3)})
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["m"]
