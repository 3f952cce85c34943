"""Arguments in the brackets of --arch are the user's word: used, or refused, never dropped."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch

from clcurv.errors import ArchitectureError
from clcurv.inputs.architecture import load_model
from clcurv.inputs.checkpoint import load_weights
from clcurv.inputs.vision import build_timm


def _weights(folder: Path) -> Path:
    path = folder / "weights.pt"
    torch.save(timm.create_model("test_resnet", num_classes=3).state_dict(), path)
    return path


def test_an_argument_that_timm_does_not_know_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArchitectureError, match="cannot build test_resnet with foo"):
        build_timm("test_resnet", load_weights(_weights(tmp_path)), asked={"foo": 1})


def test_what_the_file_says_may_not_suit_but_what_the_user_says_stays(tmp_path: Path) -> None:
    weights = load_weights(_weights(tmp_path))
    built = build_timm("test_resnet", weights, arguments={"foo": 1}, asked={"drop_rate": 0.5})
    assert built.model.drop_rate == 0.5
    assert "the checkpoint's arguments (foo) do not suit test_resnet" in built.notes


def test_a_misspelt_argument_in_arch_is_not_measured_around(tmp_path: Path) -> None:
    with pytest.raises(ArchitectureError, match="with num_head"):
        load_model(load_weights(_weights(tmp_path)), arch="test_resnet(num_head=12)")
