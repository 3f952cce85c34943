"""A model without memory tells the same as a real one."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch

import clcurv
from clcurv.pipeline import inspect_run
from clcurv.pipeline.hollow import hollow
from clcurv.report.inspect_document import InspectDocument


@pytest.mark.parametrize("device", ["cpu", None])
def test_nothing_is_allocated(device: str | None) -> None:
    with hollow():
        if device is None:
            model = timm.create_model("test_vit")
        else:
            with torch.device(device):
                model = timm.create_model("test_vit")
    assert {p.device.type for p in model.parameters()} == {"meta"}
    assert next(timm.create_model("test_resnet").parameters()).device.type == "cpu"


def test_looking_at_a_value_fails() -> None:
    with hollow(), pytest.raises((RuntimeError, NotImplementedError)):
        float(torch.zeros(3).sum())


def parts(document: InspectDocument) -> dict[str, object]:
    return document.model_dump(exclude={"created", "file"})


@pytest.mark.parametrize("name", timm.list_models("test_*"))
def test_the_report_is_that_of_the_real_model(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = timm.create_model(name, num_classes=3).state_dict()
    torch.save({"arch": name, "state_dict": state}, tmp_path / "model.pt")
    made: list[bool] = []
    quick = inspect_run._without_memory
    monkeypatch.setattr(
        inspect_run, "_without_memory", lambda *a: made.append(quick(*a)) or made[-1]
    )
    found = clcurv.inspect(tmp_path / "model.pt").document
    monkeypatch.setattr(inspect_run, "_without_memory", lambda asked, found: False)
    real = clcurv.inspect(tmp_path / "model.pt").document
    assert parts(found) == parts(real)
    assert found.architecture is not None
    assert len(found.layers) > 1
    assert made == [True]  # it was the quick way
