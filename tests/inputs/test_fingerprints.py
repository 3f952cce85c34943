from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import timm
import torch
import torchvision

from clcurv.inputs.fingerprints import INDEX, build, is_head, load_index, lookup, signature


def shapes_of(model: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(t.shape) for name, t in model.state_dict().items()}


def timm_shapes(name: str, **kwargs: object) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        return shapes_of(timm.create_model(name, **kwargs))


CHANGED = [
    ("resnet18", {"num_classes": 7, "in_chans": 1}),
    ("resnet50", {"num_classes": 7}),
    ("resnet10t", {"num_classes": 10, "in_chans": 1}),
    ("convnext_tiny", {"num_classes": 3}),
    ("mobilenetv3_small_100", {"num_classes": 3, "in_chans": 4}),
    ("efficientnet_b0", {"num_classes": 0}),
    ("tf_efficientnet_lite0", {"num_classes": 11}),
    ("densenet121", {"num_classes": 11}),
    ("regnety_002", {"num_classes": 11}),
    ("vit_tiny_patch16_224", {"num_classes": 5, "img_size": 96}),
    ("vit_base_patch32_clip_224", {"num_classes": 0, "img_size": 160}),
    ("deit_tiny_distilled_patch16_224", {"num_classes": 5}),
    ("beit_base_patch16_224", {"num_classes": 5, "img_size": 112}),
    ("swin_tiny_patch4_window7_224", {"num_classes": 5, "img_size": 256, "window_size": 8}),
    ("mixer_s32_224", {"num_classes": 5}),
    ("levit_128s", {"num_classes": 5}),
    ("test_vit", {"num_classes": 2, "img_size": 64}),
]


@pytest.mark.parametrize(("name", "kwargs"), CHANGED, ids=[name for name, _ in CHANGED])
def test_timm_models_are_found_with_another_head_and_size(
    name: str, kwargs: dict[str, object]
) -> None:
    assert f"timm:{name}" in lookup(timm_shapes(name, **kwargs))


@pytest.mark.parametrize(
    "name", ["resnet18", "vgg11", "mobilenet_v2", "squeezenet1_0", "efficientnet_b0", "swin_t"]
)
def test_torchvision_models_are_found(name: str) -> None:
    with torch.device("meta"):
        model = torchvision.models.get_model(name, weights=None, num_classes=4)
    assert f"torchvision:{name}" in lookup(shapes_of(model))


def test_siblings_share_a_signature() -> None:
    found = lookup(timm_shapes("resnet50"))
    assert {"timm:resnet50", "timm:resnetblur50", "torchvision:resnet50"} <= set(found)


def test_counters_and_index_buffers_may_be_missing_or_left_over() -> None:
    shapes = timm_shapes("resnet18")
    bare = {n: s for n, s in shapes.items() if not n.endswith("num_batches_tracked")}
    assert lookup(bare) == lookup(shapes)
    shapes = timm_shapes("swin_tiny_patch4_window7_224")
    extra = {
        **shapes,
        "layers.0.blocks.0.attn.relative_position_index": (49, 49),
        "layers.0.blocks.1.attn_mask": (64, 49, 49),
    }
    assert lookup(extra) == lookup(shapes)


def test_leftovers_of_pretraining_are_ignored() -> None:
    shapes = timm_shapes("vit_tiny_patch16_224", num_classes=0)
    extra = {**shapes, "decoder_embed.weight": (9, 9), "mask_token": (1, 1, 9)}
    assert lookup(extra) == lookup(shapes) != ()


def test_average_pooled_vit_is_found() -> None:
    shapes = timm_shapes("vit_tiny_patch16_224", global_pool="avg")
    assert any(name.startswith("fc_norm") for name in shapes)
    assert "timm:vit_tiny_patch16_224" in lookup(shapes)


def test_a_near_match_is_none() -> None:
    shapes = timm_shapes("resnet18")
    missing = dict(shapes)
    del missing["layer4.1.conv2.weight"]
    assert lookup(missing) == ()
    other = {**shapes, "layer4.1.conv2.weight": (512, 512, 5, 5)}
    assert lookup(other) == ()
    assert lookup({**shapes, "layer5.0.weight": (3, 3)}) == ()
    assert lookup(timm_shapes("vit_tiny_patch16_224", depth=11)) == ()
    assert lookup({"fc.weight": (3, 4), "fc.bias": (3,)}) == ()


def test_heads_are_recognised_by_their_first_component_only() -> None:
    assert is_head("head.fc.weight")
    assert is_head("classifier.bias")
    assert not is_head("layer1.0.se.fc.weight")
    assert not is_head("header.weight")


def test_the_index_is_small_and_complete() -> None:
    assert INDEX.stat().st_size < 300_000
    index = load_index()
    names = {name for group in index.signatures.values() for name in group}
    listed = torchvision.models.list_models(module=torchvision.models)
    assert {f"torchvision:{name}" for name in listed} <= names
    assert index.versions.keys() == {"timm", "torchvision"}
    assert sum(name.startswith("timm:") for name in names) > 1300
    if index.versions["timm"] == timm.__version__:
        assert {f"timm:{name}" for name in timm.list_models()} <= names


def test_the_index_is_what_the_script_makes(tmp_path: Path) -> None:
    """A sample of models: same signatures as shipped."""
    content = json.loads(gzip.decompress(INDEX.read_bytes()))
    made = build(limit=2)
    for name in timm.list_models()[:2]:
        key = signature(timm_shapes(name), content["first_convs"])
        assert f"timm:{name}" in content["signatures"][key]
    signatures = made["signatures"]
    assert isinstance(signatures, dict)
    assert sum(len(names) for names in signatures.values()) == 4
