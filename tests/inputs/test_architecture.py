from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
from hostile import tiny_state
from safetensors.torch import save_file
from torch import nn

from clcurv.errors import (
    ArchitectureError,
    MismatchError,
    NumericalError,
    UnsafeFileError,
    UsageError,
)
from clcurv.inputs.architecture import LoadedModel, load_model, wrap_module
from clcurv.inputs.checkpoint import load_weights


def save(folder: Path, content: Any) -> Path:
    path = folder / "checkpoint.pt"
    torch.save(content, path)
    return path


def assert_same_function(loaded: LoadedModel, reference: nn.Module) -> None:
    """The library's own object, holding the original weights, is the oracle."""
    images = torch.randn(2, *loaded.preprocess["input_size"])
    with torch.no_grad():
        expected = reference.eval()(images)
        torch.testing.assert_close(loaded.model(images), expected)


def assert_ready(loaded: LoadedModel) -> None:
    assert not any(module.training for module in loaded.model.modules())
    for param in loaded.model.parameters():
        assert param.requires_grad
        assert param.dtype == torch.float32
        assert param.device.type == "cpu"


def test_timm_by_fingerprint_with_other_classes_and_channels(tmp_path: Path) -> None:
    model = timm.create_model("resnet10t", num_classes=10, in_chans=1)
    loaded = load_model(save(tmp_path, model.state_dict()))
    assert (loaded.arch, loaded.arch_source) == ("timm:resnet10t", "fingerprint")
    assert (loaded.task, loaded.num_classes, loaded.modality) == ("classification", 10, "image")
    assert loaded.head_params == ("fc.weight", "fc.bias")
    assert loaded.preprocess["input_size"][0] == 1
    assert len(loaded.preprocess["mean"]) == len(loaded.preprocess["std"]) == 1
    assert (loaded.matched_fraction, loaded.missing, loaded.unexpected) == (1.0, (), ())
    assert_ready(loaded)
    assert_same_function(loaded, model)


def test_vit_of_another_image_and_patch_size(tmp_path: Path) -> None:
    arguments = {"img_size": 32, "patch_size": 4, "num_classes": 5}
    model = timm.create_model("vit_tiny_patch16_224", **arguments)
    loaded = load_model(save(tmp_path, model.state_dict()), arch="vit_tiny_patch16_224")
    assert loaded.arch_source == "option"
    assert loaded.preprocess["input_size"] == (3, 32, 32)
    assert_same_function(loaded, model)


def test_average_pooled_vit(tmp_path: Path) -> None:
    arguments = {"img_size": 32, "global_pool": "avg", "num_classes": 5}
    model = timm.create_model("vit_tiny_patch16_224", **arguments)
    loaded = load_model(save(tmp_path, model.state_dict()), arch="vit_tiny_patch16_224")
    assert_same_function(loaded, model)


def test_windowed_transformer_of_another_size(tmp_path: Path) -> None:
    name = "swin_tiny_patch4_window7_224"
    model = timm.create_model(name, num_classes=3, img_size=128, window_size=4)
    loaded = load_model(save(tmp_path, model.state_dict()), arch=name)
    assert loaded.preprocess["input_size"] == (3, 128, 128)
    assert_same_function(loaded, model)


def test_of_equal_functions_the_one_without_adapting_gives_the_name(tmp_path: Path) -> None:
    """swin_s3_tiny has these weights' names and, given their windows, their function."""
    model = timm.create_model("swin_tiny_patch4_window7_224", num_classes=3)
    loaded = load_model(save(tmp_path, model.state_dict()))
    assert loaded.arch == "timm:swin_tiny_patch4_window7_224"
    assert loaded.candidates == ("timm:swin_s3_tiny_224",)


def test_metadata_names_the_architecture_and_its_arguments(tmp_path: Path) -> None:
    model = timm.create_model("vit_tiny_patch16_224", img_size=48, depth=2, num_classes=5)
    content = {
        "arch": "vit_tiny_patch16_224",
        "state_dict": {f"module.{n}": t for n, t in model.state_dict().items()},
        "args": {"model_kwargs": {"depth": 2, "img_size": 48}, "mean": [0.1, 0.2, 0.3]},
        "classes": ["a", "b", "c", "d", "e"],
    }
    loaded = load_model(save(tmp_path, content))
    assert loaded.arch_source == "metadata"
    assert loaded.preprocess["mean"] == (0.1, 0.2, 0.3)
    assert loaded.preprocess["input_size"] == (3, 48, 48)
    assert loaded.id2label[4] == "e"
    assert any("module." in note for note in loaded.notes)
    assert_same_function(loaded, model)


def test_wrong_metadata_falls_back_and_is_reported(tmp_path: Path) -> None:
    content = {"arch": "resnet18", "state_dict": tiny_state()}
    loaded = load_model(save(tmp_path, content))
    assert (loaded.arch, loaded.arch_source) == ("timm:test_resnet", "fingerprint")
    assert any("timm:resnet18" in note for note in loaded.notes)


def test_backbone_without_head_and_prefix(tmp_path: Path) -> None:
    model = timm.create_model("test_vit", num_classes=0)
    state = {f"backbone.{name}": t for name, t in model.state_dict().items()}
    loaded = load_model(save(tmp_path, state), arch="test_vit")
    assert (loaded.task, loaded.num_classes, loaded.head_params) == ("backbone", None, ())
    assert_same_function(loaded, model)


@pytest.mark.parametrize("name", ["mobilenet_v2", "squeezenet1_1"])
def test_torchvision_by_fingerprint(tmp_path: Path, name: str) -> None:
    model = torchvision.models.get_model(name, weights=None, num_classes=4)
    loaded = load_model(save(tmp_path, model.state_dict()))
    assert (loaded.arch, loaded.num_classes) == (f"torchvision:{name}", 4)
    assert all(parameter.startswith("classifier.1.") for parameter in loaded.head_params)
    assert_same_function(loaded, model)
    explicit = load_model(tmp_path / "checkpoint.pt", arch=f"torchvision:{name}")
    assert_same_function(explicit, model)


def test_torchvision_backbone_has_its_head_cut(tmp_path: Path) -> None:
    model = torchvision.models.mobilenet_v2()
    state = {n: t for n, t in model.state_dict().items() if not n.startswith("classifier")}
    loaded = load_model(save(tmp_path, state))
    assert (loaded.task, loaded.num_classes) == ("backbone", None)
    assert loaded.model(torch.zeros(1, 3, 64, 64)).shape == (1, 1280)


def test_a_smaller_sibling_does_not_swallow_a_larger_checkpoint(tmp_path: Path) -> None:
    """Every tensor of resnet18 has a partner in resnet34; half of the latter has none."""
    state = timm.create_model("resnet34", num_classes=2).state_dict()
    with pytest.raises(MismatchError, match=r"no place for: layer1\.2\.conv1\.weight"):
        load_model(save(tmp_path, state), arch="resnet18")


def test_missing_backbone_names_the_first_three(tmp_path: Path) -> None:
    state = tiny_state()
    gone = [name for name in state if name.startswith("layer4")]
    for name in gone:
        del state[name]
    with pytest.raises(MismatchError) as caught:
        load_model(save(tmp_path, state), arch="test_resnet")
    assert "backbone" in str(caught.value)
    assert "; ".join([name for name in gone if "num_batches" not in name][:3]) in str(caught.value)


def test_shape_mismatch_outside_the_head(tmp_path: Path) -> None:
    state = tiny_state()
    state["layer2.0.conv1.weight"] = torch.zeros(3, 3, 1, 1)
    with pytest.raises(MismatchError, match=r"layer2\.0\.conv1\.weight is \[3, 3, 1, 1\]"):
        load_model(save(tmp_path, state), arch="test_resnet")


def test_class_count_mismatch(tmp_path: Path) -> None:
    path = save(tmp_path, tiny_state())
    assert load_model(path, num_classes=3).num_classes == 3
    with pytest.raises(MismatchError, match="3 classes, 5 classes were asked for"):
        load_model(path, num_classes=5, arch="test_resnet")
    headless = {n: t for n, t in tiny_state().items() if not n.startswith("fc.")}
    with pytest.raises(MismatchError, match="no head, 5") as caught:
        load_model(save(tmp_path, headless), num_classes=5, arch="test_resnet")
    assert "linear-probe" in str(caught.value.hint)


def test_small_losses_are_tolerated_and_reported(tmp_path: Path) -> None:
    state = tiny_state()
    del state["bn1.bias"]
    state["projector.weight"] = torch.ones(4, 4)
    loaded = load_model(save(tmp_path, state), arch="test_resnet")
    assert loaded.missing == ("bn1.bias",)
    assert loaded.unexpected == ("projector.weight",)
    assert 0.99 < loaded.matched_fraction < 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_weights_name_the_first_tensor(tmp_path: Path, bad: float) -> None:
    state = tiny_state()
    state["layer1.0.bn1.weight"][0] = bad
    state["layer3.0.bn1.weight"][0] = bad
    with pytest.raises(NumericalError, match=r"layer1\.0\.bn1\.weight"):
        load_model(save(tmp_path, state), arch="test_resnet")


def test_half_precision_is_cast_and_said(tmp_path: Path) -> None:
    state = {n: t.half() if t.is_floating_point() else t for n, t in tiny_state().items()}
    loaded = load_model(save(tmp_path, state), arch="test_resnet")
    assert_ready(loaded)
    assert "float16 weights were cast to float32" in loaded.notes


def test_unknown_names_get_suggestions(tmp_path: Path) -> None:
    path = save(tmp_path, tiny_state())
    with pytest.raises(ArchitectureError) as caught:
        load_model(path, arch="test_resnett")
    assert "test_resnet" in str(caught.value.hint)
    with pytest.raises(ArchitectureError) as caught:
        load_model(path, arch="mobilenet_v2")
    assert caught.value.hint == "try --arch torchvision:mobilenet_v2"
    with pytest.raises(ArchitectureError, match="nothing is downloaded"):
        load_model(path, arch="hf-hub:timm/resnet18")
    with pytest.raises(ArchitectureError, match="2 tensors") as caught:
        load_model(save(tmp_path, {"a.weight": torch.ones(2, 2), "a.bias": torch.ones(2)}))
    assert "--arch" in str(caught.value.hint)


def test_several_candidates_are_listed_without_labels(tmp_path: Path) -> None:
    state = timm.create_model("resnet18", num_classes=2).state_dict()
    with pytest.raises(ArchitectureError, match="resnet18, resnetblur18") as caught:
        load_model(save(tmp_path, state))
    assert "--arch resnet18" in str(caught.value.hint)


def test_the_lowest_loss_decides_among_candidates(tmp_path: Path) -> None:
    truth = timm.create_model("resnetblur18", num_classes=2).eval()
    images = torch.randn(8, 3, 64, 64)
    with torch.no_grad():
        wanted = truth(images)

    def labelled(loaded: LoadedModel) -> float:
        with torch.no_grad():
            return float((loaded.model(images) - wanted).square().mean())

    loaded = load_model(save(tmp_path, truth.state_dict()), labelled=labelled)
    assert (loaded.arch, loaded.arch_source) == ("timm:resnetblur18", "loss")
    assert "timm:resnet18" in loaded.candidates
    assert any("lowest mean loss decided" in note for note in loaded.notes)


def test_one_function_under_two_names_is_no_ambiguity(tmp_path: Path) -> None:
    model = timm.create_model("resnet34", num_classes=2)
    loaded = load_model(save(tmp_path, model.state_dict()))
    assert loaded.arch == "timm:resnet34"
    assert loaded.candidates == ("torchvision:resnet34",)


def test_matching_by_order(tmp_path: Path) -> None:
    model = timm.create_model("test_resnet", num_classes=3)
    renamed = {f"tensor{i}": t for i, (n, t) in enumerate(model.state_dict().items())}
    path = save(tmp_path, renamed)
    with pytest.raises(MismatchError) as caught:
        load_model(path, arch="test_resnet")
    assert "--match-by-order" in str(caught.value.hint)
    with pytest.raises(UsageError, match="--arch"):
        load_model(path, match_by_order=True)
    counters = [n.endswith("num_batches_tracked") for n in model.state_dict()]
    kept = {
        name: tensor
        for (name, tensor), counter in zip(renamed.items(), counters, strict=True)
        if not counter
    }
    loaded = load_model(save(tmp_path, kept), arch="test_resnet", match_by_order=True)
    assert loaded.num_classes == 3
    assert any("by order" in note for note in loaded.notes)
    assert_same_function(loaded, model)
    save_file(kept, tmp_path / "x.safetensors")
    with pytest.raises(UsageError, match="do not keep the order"):
        load_model(tmp_path / "x.safetensors", arch="test_resnet", match_by_order=True)
    del kept["tensor0"]
    with pytest.raises(MismatchError, match="by order"):
        load_model(save(tmp_path, kept), arch="test_resnet", match_by_order=True)


def test_timm_folder(tmp_path: Path) -> None:
    model = timm.create_model("test_resnet", num_classes=3, in_chans=1)
    config = {
        "architecture": "test_resnet",
        "num_classes": 3,
        "model_args": {"in_chans": 1},
        "pretrained_cfg": {"mean": [0.4], "std": [0.3], "input_size": [1, 32, 32], "tag": "x"},
        "label_names": ["zero", "one", "two"],
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    loaded = load_model(tmp_path)
    assert (loaded.arch, loaded.arch_source) == ("timm:test_resnet", "config")
    assert loaded.preprocess["input_size"] == (1, 32, 32)
    assert (loaded.preprocess["mean"], loaded.preprocess["std"]) == ((0.4,), (0.3,))
    assert loaded.id2label == {0: "zero", 1: "one", 2: "two"}
    assert_same_function(loaded, model)


FACTORY = """
from torch import nn
from pathlib import Path

def plain():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))

def sized(num_classes=10):
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, num_classes))

def broken():
    raise RuntimeError("no luck")

def number():
    return 7
"""


@pytest.mark.parametrize("function", ["plain", "sized"])
def test_factory_in_a_file(tmp_path: Path, function: str) -> None:
    code = tmp_path / "nets.py"
    code.write_text(FACTORY)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    path = save(tmp_path, {f"module.{n}": t for n, t in model.state_dict().items()})
    with pytest.raises(UnsafeFileError) as caught:
        load_model(path, arch=f"{code}:{function}")
    assert "--trust-code" in str(caught.value.hint)
    loaded = load_model(path, arch=f"{code}:{function}", trust_code=True)
    assert (loaded.modality, loaded.task, loaded.num_classes) == ("array", "classification", 3)
    assert loaded.head_params == ("2.weight", "2.bias")
    x = torch.randn(5, 4)
    torch.testing.assert_close(loaded.model(x), model(x))


@pytest.mark.parametrize(
    ("function", "says"), [("broken", "no luck"), ("number", "int"), ("absent", "absent")]
)
def test_bad_factories(tmp_path: Path, function: str, says: str) -> None:
    code = tmp_path / "nets.py"
    code.write_text(FACTORY)
    path = save(tmp_path, nn.Linear(2, 2).state_dict())
    with pytest.raises(ArchitectureError, match=says):
        load_model(path, arch=f"{code}:{function}", trust_code=True)


def test_factory_of_an_installed_package_needs_no_trust(tmp_path: Path) -> None:
    model = torchvision.models.squeezenet1_1(num_classes=4)
    path = save(tmp_path, model.state_dict())
    arch = "torchvision.models:squeezenet1_1"
    before = list(sys.path)
    with pytest.raises(MismatchError, match=r"classifier\.1"):
        load_model(path, arch=arch)  # builds 1000 classes: it only takes **kwargs
    assert sys.path == before


def test_live_modules_are_unwrapped_and_untouched() -> None:
    model = timm.create_model("test_resnet", num_classes=3).train()
    wrapped = nn.DataParallel(torch.compile(model))  # type: ignore[arg-type]
    loaded = wrap_module(wrapped)
    assert loaded.model is model
    assert model.training
    assert (loaded.arch_source, loaded.modality) == ("given", "image")
    assert (loaded.task, loaded.num_classes) == ("classification", 3)
    assert any("wrapper" in note for note in loaded.notes)
    plain = wrap_module(nn.Sequential(nn.Linear(2, 3)), arch="mine", modality="array")
    assert (plain.arch, plain.num_classes, plain.modality) == ("mine", 3, "array")
    with pytest.raises(ArchitectureError, match="no parameters"):
        wrap_module(nn.ReLU())


def test_weights_can_be_given_instead_of_a_path(tmp_path: Path) -> None:
    weights = load_weights(save(tmp_path, {"a": tiny_state(), "b": {"c": 1}}), key="a")
    loaded = load_model(weights)
    assert loaded.arch == "timm:test_resnet"
    assert any("'a'" in note for note in loaded.notes)
