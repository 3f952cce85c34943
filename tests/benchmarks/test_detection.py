"""A sample of what ``detection.py`` does over all of timm."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from clcurv.inputs import fingerprints


@pytest.fixture(scope="module")
def detection() -> ModuleType:
    path = Path(__file__).with_name("detection.py")
    spec = importlib.util.spec_from_file_location("detection_script", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


SAMPLE = {
    "alone": ("resnet26", "densenet121", "ghostnet_100", "levit_128s"),
    "identical": ("resnet18", "efficientnet_b0"),
    "sizes": (
        "vit_tiny_patch16_224",
        "swin_tiny_patch4_window7_224",
        "vit_base_patch32_clip_quickgelu_224",
    ),
}


def test_models_are_named_with_another_head_and_size(detection: ModuleType) -> None:
    names = [name for kind in SAMPLE.values() for name in kind]
    found = {o.name: o for o in detection.outcomes(names)}
    assert not [o for o in found.values() if o.kind == "missed"]
    assert found["vit_tiny_patch16_224"].changed == "classes+size"
    assert found["resnet18"].changed == "classes"
    assert "resnetblur18" in found["resnet18"].others
    assert {name: o.kind for name, o in found.items()} == {
        name: kind for kind, names in SAMPLE.items() for name in names
    }


def test_the_script_can_miss(detection: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = fingerprints.Index({}, frozenset(), {})
    monkeypatch.setattr(fingerprints, "load_index", lambda: empty)
    assert [o.kind for o in detection.outcomes(["test_resnet"])] == ["missed"]
