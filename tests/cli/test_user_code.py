"""Losses, batches and data from the user's own files, through the commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from program import SAMPLES, VIT, program

CODE = """
import numpy as np
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

DATA = {data!r}

def plain(output, targets):
    return F.cross_entropy(output, targets, reduction="none")

class Smooth:
    def __call__(self, output, targets):
        return F.cross_entropy(output, targets, label_smoothing=0.1, reduction="none")

def summed(output, targets):
    return F.cross_entropy(output, targets, reduction="sum")

class Digits(Dataset):
    def __init__(self):
        held = np.load(DATA)
        self.x, self.y = held["x"], held["y"]
    def __len__(self):
        return len(self.y)
    def __getitem__(self, i):
        return dict(picture=self.x[i], digit=self.y[i])

def loader():
    return DataLoader(Digits(), batch_size=50)

def batch(b):
    x = b["picture"].float()
    return x, b["digit"].long()
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(CODE.format(data=str(SAMPLES / "digits_held_out.npz")))
    return path


def test_an_own_loss(code: Path) -> None:
    few = (*VIT, "--samples", 20, "--json", "--quiet")
    refused = program("kappa", *few, "--loss", f"{code}:plain")
    assert refused.code == 3
    assert "--trust-code" in refused.err
    own = program("kappa", *few, "--loss", f"{code}:plain", "--trust-code")
    usual = program("kappa", *few)
    assert own.report["estimator"]["loss"] == f"{code}:plain"
    assert own.report["data"]["accuracy"] is None
    assert own.report["data"]["mean_loss"] == pytest.approx(usual.report["data"]["mean_loss"])
    for a, b in zip(own.report["groups"], usual.report["groups"], strict=True):
        assert a["s"] == pytest.approx(b["s"], rel=0.02)
    smooth = program("kappa", *few, "--loss", f"{code}:Smooth", "--trust-code")
    assert smooth.report["data"]["mean_loss"] > usual.report["data"]["mean_loss"] * 1.5


@pytest.mark.parametrize(
    ("loss", "code_", "says"),
    [
        ("summed", 3, "no mean over samples"),
        ("Digits", 3, "no function of"),
        ("nothing", 3, "no function or class"),
    ],
)
def test_an_own_loss_that_cannot_be(code: Path, loss: str, code_: int, says: str) -> None:
    ran = program("kappa", *VIT, "--samples", 8, "--loss", f"{code}:{loss}", "--trust-code")
    assert ran.code == code_
    assert says in " ".join(ran.err.split())
    assert not ran.out


def test_an_unknown_loss() -> None:
    ran = program("kappa", *VIT, "--loss", "focal")
    assert ran.code == 2
    assert "unknown loss 'focal'" in ran.err


def test_own_data_and_batches(code: Path) -> None:
    shipped = SAMPLES / "digits_vit.pt"
    own = ("--data", f"{code}:loader", "--batch-fn", f"{code}:batch", "--trust-code")
    ran = program("kappa", shipped, *own, "--samples", 20, "--json", "--quiet")
    assert ran.code == 0, ran.err
    assert ran.report["data"]["source"] == "given"
    assert ran.report["data"]["n_samples"] == 20
    refused = program("kappa", shipped, *own[:-1])
    assert refused.code == 3
    assert "--trust-code" in refused.err


def test_every_command_takes_them(code: Path, tmp_path: Path) -> None:
    shipped = SAMPLES / "digits_vit.pt"
    loss = ("--loss", f"{code}:plain", "--trust-code", "--json", "--quiet")
    held_out = SAMPLES / "digits_held_out.npz"
    spectrum = program(
        *("spectrum", shipped, "--stream", "label-shuffle:1", "--data", held_out, *loss),
        *("--samples", 16, "--probes", 2, "--lanczos-steps", 4, "--lr", 0.1, "--steps", 10),
    )
    assert spectrum.code == 0, spectrum.err
    assert spectrum.report["tasks"][0]["fast_modes"] is None
    relimp = program(
        *("relimp", shipped, "--past", held_out, "--current", held_out, *loss),
        *("--samples", 24, "--epochs", 1),
    )
    assert relimp.code == 0, relimp.err
    fisher = program("relimp", shipped, "--past", held_out, *loss, "--estimator", "fisher")
    assert fisher.code in (2, 3)
