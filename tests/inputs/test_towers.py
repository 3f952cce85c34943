"""Files of self-supervised and image-text pretraining, made with the methods' own layouts."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from clcurv.errors import ArchitectureError
from clcurv.inputs.architecture import LoadedModel, load_model
from clcurv.inputs.checkpoint import Weights
from clcurv.inputs.fingerprints import lookup
from clcurv.inputs.towers import recognise

SMALL = "vit_small_patch16_224"
TINY = "vit_tiny_patch16_224"


def save(folder: Path, content: Any) -> Path:
    path = folder / "pretrained.pth"
    torch.save(content, path)
    return path


def encoder(name: str, **arguments: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=0, **arguments).eval()
    return model, dict(model.state_dict())


def under(prefix: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}{name}": tensor for name, tensor in state.items()}


def mlp(prefix: str, width: int = 8) -> dict[str, Tensor]:
    return {f"{prefix}.{i}.weight": torch.randn(width, width) for i in (0, 2)}


def assert_features(loaded: LoadedModel, reference: nn.Module) -> None:
    assert (loaded.task, loaded.num_classes, loaded.head_params) == ("backbone", None, ())
    assert loaded.matched_fraction == 1.0
    assert loaded.missing == ()
    x = torch.randn(2, *loaded.preprocess["input_size"])
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(x), reference(x))


def assert_imagenet(loaded: LoadedModel) -> None:
    assert loaded.preprocess["mean"] == (0.485, 0.456, 0.406)
    assert loaded.preprocess["crop_pct"] == 0.875


def test_dino_full_checkpoint_gives_the_teacher_without_projector(tmp_path: Path) -> None:
    reference, state = encoder(TINY)
    student = state
    head = {f"head.mlp.{i}.weight": torch.randn(8, 8) for i in (0, 2)}
    head |= {
        "head.last_layer.weight_g": torch.ones(9, 1),
        "head.last_layer.weight_v": torch.ones(9, 8),
    }
    content = {
        "student": under("module.backbone.", {n: t + 1 for n, t in student.items()}),
        "teacher": {**under("backbone.", state), **head},
        "epoch": 300,
        "args": argparse.Namespace(arch="vit_small", patch_size=16),
        "dino_loss": {"center": torch.zeros(1, 9)},
    }
    loaded = load_model(save(tmp_path, content))
    assert loaded.arch == f"timm:{TINY}"
    assert any("DINO" in note and "projector" in note for note in loaded.notes)
    assert_features(loaded, reference)
    assert_imagenet(loaded)


def test_moco_v3_small_has_twelve_heads(tmp_path: Path) -> None:
    """The published ViT-S differs from timm's in what no shape tells."""
    reference, state = encoder(SMALL, num_heads=12, depth=1)
    content = {
        "epoch": 300,
        "arch": "vit_small",
        "state_dict": {
            **under("module.base_encoder.", {**state, **mlp("head")}),
            **under("module.momentum_encoder.", {**state, **mlp("head")}),
            **under("module.predictor.", mlp("x")),
        },
        "optimizer": {},
    }
    loaded = load_model(save(tmp_path, content), arch=f"{SMALL}(depth=1)")
    assert loaded.arch == f"timm:{SMALL}(depth=1, num_heads=12)"
    assert_features(loaded, reference)
    assert_imagenet(loaded)
    again = load_model(tmp_path / "pretrained.pth", arch=loaded.arch)
    assert_features(again, reference)
    asked = load_model(tmp_path / "pretrained.pth", arch=f"{SMALL}(depth=1, num_heads=6)")
    assert asked.arch.endswith("num_heads=6)")
    with pytest.raises(ArchitectureError, match="arguments cannot be read"):
        load_model(tmp_path / "pretrained.pth", arch=f"{SMALL}(print(1))")


def test_moco_v3_linear_classifier_keeps_its_head(tmp_path: Path) -> None:
    torch.manual_seed(0)
    reference = timm.create_model(SMALL, num_classes=5, num_heads=12, depth=1).eval()
    state = dict(reference.state_dict())
    state["pos_embed"][:, 0] = 0  # fixed sine and cosine positions
    reference.load_state_dict(state)
    path = save(tmp_path, {"arch": "vit_small", "state_dict": under("module.", state)})
    loaded = load_model(path, arch=f"{SMALL}(depth=1)")
    assert (loaded.task, loaded.num_classes) == ("classification", 5)
    x = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(x), reference(x))


def test_moco_v2_projector_is_no_head(tmp_path: Path) -> None:
    reference, state = encoder("resnet18")
    linear = {"fc.weight": torch.randn(128, 512), "fc.bias": torch.zeros(128)}
    content = {
        "arch": "resnet18",
        "state_dict": {
            **under("module.encoder_q.", {**state, **linear}),
            **under("module.encoder_k.", {**state, **linear}),
            "module.queue": torch.randn(128, 64),
            "module.queue_ptr": torch.zeros(1).long(),
        },
    }
    loaded = load_model(save(tmp_path, content))
    assert loaded.arch in ("timm:resnet18", "torchvision:resnet18")
    assert_features(loaded, reference)


def test_mae_decoder_is_left_out(tmp_path: Path) -> None:
    reference, state = encoder(TINY, img_size=64)
    decoder = {
        "mask_token": torch.zeros(1, 1, 16),
        "decoder_pos_embed": torch.zeros(1, 17, 16),
        "decoder_embed.weight": torch.zeros(16, 192),
        "decoder_blocks.0.attn.qkv.weight": torch.zeros(48, 16),
        "decoder_norm.weight": torch.ones(16),
        "decoder_pred.weight": torch.zeros(768, 16),
    }
    loaded = load_model(save(tmp_path, {"model": {**state, **decoder}}))
    assert loaded.arch == f"timm:{TINY}"
    assert any("MAE" in note for note in loaded.notes)
    assert_features(loaded, reference)
    assert_imagenet(loaded)


def test_mae_fine_tuned_classifier(tmp_path: Path) -> None:
    torch.manual_seed(0)
    reference = timm.create_model(TINY, num_classes=4, global_pool="avg", img_size=64).eval()
    loaded = load_model(save(tmp_path, {"model": reference.state_dict()}), arch=TINY)
    assert loaded.num_classes == 4
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(x), reference(x))


def test_beit_pretraining_shares_its_positions(tmp_path: Path) -> None:
    reference, state = encoder(
        "beit_base_patch16_224",
        depth=1,
        img_size=64,
        use_rel_pos_bias=False,
        use_shared_rel_pos_bias=True,
        global_pool="token",
    )
    for name in state:
        if name.endswith("bias_table"):
            nn.init.normal_(state[name])
    reference.load_state_dict(state)
    extra = {
        "mask_token": torch.zeros(1, 1, 768),
        "lm_head.weight": torch.zeros(16, 768),
        "lm_head.bias": torch.zeros(16),
        "rel_pos_bias.relative_position_index": torch.zeros(17, 17).long(),
    }
    path = save(tmp_path, {"model": {**state, **extra}})
    loaded = load_model(path, arch="beit_base_patch16_224(depth=1)")
    assert "use_shared_rel_pos_bias=True" in loaded.arch
    assert_features(loaded, reference)


@pytest.mark.parametrize(
    ("extra", "prefix"), [((), "timm:beit_"), (("cls_pt_layers.0.w",), "timm:beitv2")]
)
def test_beit_is_looked_up_with_a_table_in_every_block(extra: tuple[str, ...], prefix: str) -> None:
    arguments = {"use_rel_pos_bias": False, "use_shared_rel_pos_bias": True, "num_classes": 0}
    with torch.device("meta"):
        state = dict(timm.create_model("beit_base_patch16_224", **arguments).state_dict())
    state |= {name: torch.zeros(2, 2) for name in extra}
    origin = recognise(Weights(tensors=state, path=Path("beit.pth"), format="torch"))
    assert origin.shapes is not None
    suited = [name for name in lookup(origin.shapes) if origin.suits(name)]
    assert f"{prefix.rstrip('_')}_base_patch16_224" in suited
    assert all(name.startswith(prefix) for name in suited)


def test_dinov2_registers_are_translated(tmp_path: Path) -> None:
    """Published names and positions; timm's own converter is the bridge."""
    reference, state = encoder("vit_small_patch14_reg4_dinov2", img_size=56)
    published = {n: t for n, t in state.items() if n not in ("reg_token", "pos_embed")}
    published["register_tokens"] = state["reg_token"]
    published["pos_embed"] = torch.cat([torch.zeros(1, 1, 384), state["pos_embed"]], 1)
    published["mask_token"] = torch.zeros(1, 384)
    loaded = load_model(save(tmp_path, published), arch="vit_small_patch14_reg4_dinov2")
    x = torch.randn(2, 3, 56, 56)
    assert loaded.preprocess["input_size"] == (3, 56, 56)
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(x), reference(x))
    assert any("DINOv2" in note for note in loaded.notes)
    assert load_model(tmp_path / "pretrained.pth").arch == "timm:vit_small_patch14_reg4_dinov2"


open_clip = pytest.importorskip("open_clip")
TEXT = {"context_length": 8, "vocab_size": 50, "width": 64, "heads": 1, "layers": 1}
NUMBERS = {"input_resolution": 64, "context_length": 8, "vocab_size": 50}


def clip(*, layers: int = 1, quick_gelu: bool = False) -> nn.Module:
    vision = {"image_size": 64, "layers": layers, "width": 768, "patch_size": 32}
    torch.manual_seed(0)
    model: nn.Module = open_clip.CLIP(512, vision, TEXT, quick_gelu=quick_gelu).eval()
    return model


@pytest.mark.parametrize("quick", [False, True])
def test_open_clip_tower_before_its_projection(tmp_path: Path, quick: bool) -> None:
    reference = clip(quick_gelu=quick)
    run = "2024_01_01-model_ViT-B-32" + "-quickgelu" * quick + "-lr_0.001"
    content = {"name": run, "epoch": 3, "state_dict": under("module.", reference.state_dict())}
    kind = "clip_quickgelu" if quick else "clip"
    loaded = load_model(save(tmp_path, content), arch=f"vit_base_patch32_{kind}_224(depth=1)")
    assert loaded.preprocess["input_size"] == (3, 64, 64)
    assert loaded.preprocess["mean"][0] == pytest.approx(0.48145466)
    assert loaded.task == "backbone"
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        projected = loaded.model(x) @ reference.visual.proj
        torch.testing.assert_close(projected, reference.encode_image(x), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("said", "numbers", "quick"),
    [
        ({"name": "model_ViT-B-32-lr"}, {}, {False}),
        ({"name": "model_ViT-B-32-quickgelu-lr"}, {}, {True}),
        ({}, NUMBERS, {True}),
        ({}, {}, {False, True}),
    ],
)
def test_the_activation_is_told_or_both_are_candidates(
    said: dict[str, str], numbers: dict[str, int], quick: set[bool]
) -> None:
    with torch.device("meta"):
        state = dict(clip(layers=12).state_dict())
    state |= {name: torch.tensor(value) for name, value in numbers.items()}
    origin = recognise(Weights(tensors=state, path=Path("clip.pt"), format="torch", metadata=said))
    found = lookup({n: tuple(t.shape) for n, t in origin.weights.tensors.items()})
    suited = [name for name in found if origin.suits(name)]
    assert {"quickgelu" in name for name in suited} == quick
    assert all("vit_base_patch32_clip" in name for name in suited)


def test_open_clip_around_a_timm_model(tmp_path: Path) -> None:
    tower = {"timm_model_name": "test_vit", "timm_model_pretrained": False, "image_size": 160}
    torch.manual_seed(0)
    reference = open_clip.CustomTextCLIP(32, tower, TEXT).eval()
    loaded = load_model(save(tmp_path, {"state_dict": reference.state_dict()}))
    assert "test_vit" in loaded.arch
    x = torch.randn(2, *loaded.preprocess["input_size"])
    with torch.no_grad():  # the pooling is OpenCLIP's choice and not in the file
        tokens = loaded.model.forward_features(x)
        torch.testing.assert_close(tokens, reference.visual.trunk.forward_features(x))


@pytest.mark.parametrize("kind", ["bare", "named", "openai"])
def test_open_clip_resnet(kind: str, tmp_path: Path) -> None:
    vision = {"image_size": 224, "layers": [3, 4, 6, 3], "width": 64, "patch_size": None}
    torch.manual_seed(0)
    reference = open_clip.CLIP(1024, vision, TEXT, quick_gelu=kind == "openai").eval()
    state = dict(reference.state_dict())
    content = {"name": "2024-model_RN50-lr_0.001", "state_dict": state}
    if kind == "openai":  # the numbers that its own files carry
        sizes = {"input_resolution": 224, "context_length": 77, "vocab_size": 49408}
        content = state | {name: torch.tensor(size) for name, size in sizes.items()}
    if kind == "bare":
        content = state
    loaded = load_model(save(tmp_path, content))
    assert loaded.arch == "timm:resnet50_clip"
    assert loaded.task == "backbone"
    x = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        features = loaded.model(x)
        pool = reference.visual.attnpool.c_proj
        torch.testing.assert_close(pool(features), reference.encode_image(x), atol=1e-4, rtol=1e-3)
