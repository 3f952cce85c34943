from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import timm
import torch
import torchvision
import transformers
from torch import Tensor, nn

from clcurv.errors import UsageError
from clcurv.inputs.dataset import Batch
from clcurv.inputs.heads import find_head
from clcurv.inputs.layers import Layer, discover_layers, left_out

TEXT = {"vocab_size": 30, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8}


def image_batch(size: int = 64, channels: int = 3) -> Batch:
    return Batch(torch.randn(3, channels, size, size), torch.zeros(3, dtype=torch.long))


def text_batch() -> Batch:
    ids = torch.randint(1, 30, (3, 5))
    return Batch({"input_ids": ids, "attention_mask": torch.ones_like(ids)}, ids)


def names(layers: Sequence[Layer]) -> list[str]:
    return [layer.name for layer in layers]


def assert_partition(model: nn.Module, layers: Sequence[Layer]) -> None:
    """Every parameter in exactly one layer, depths 0, 1, 2, ..., heads last."""
    inside = [name for layer in layers for name in layer.param_names]
    assert sorted(inside) == sorted(name for name, _ in model.named_parameters())
    assert [layer.depth for layer in layers] == list(range(len(layers)))
    heads = [layer.is_head for layer in layers]
    assert heads == sorted(heads)
    assert len(set(names(layers))) == len(layers)


def blocks_of(model: nn.Module, batch: Batch) -> list[Layer]:
    layers = discover_layers(model, batch, head_params=find_head(model)[0])
    assert_partition(model, layers)
    return layers


def test_timm_vit() -> None:
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=3, num_classes=4)
    layers = blocks_of(model, image_batch(32))
    assert names(layers) == ["stem", "blocks.0", "blocks.1", "blocks.2", "norm", "head"]
    stem = {"cls_token", "pos_embed", "patch_embed.proj.weight", "patch_embed.proj.bias"}
    assert set(layers[0].param_names) == stem
    assert "blocks.0.norm1.weight" in layers[1].param_names
    assert [layer.is_head for layer in layers] == [False] * 5 + [True]


def test_blocks_one_and_ten_do_not_mix() -> None:
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=12, num_classes=0)
    layers = {layer.name: layer for layer in blocks_of(model, image_batch(32))}
    assert len(layers) == 14
    assert all(name.startswith("blocks.1.") for name in layers["blocks.1"].param_names)
    assert all(name.startswith("blocks.10.") for name in layers["blocks.10"].param_names)


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_resnet18_of_either_library(library: str) -> None:
    if library == "timm":
        model = timm.create_model("resnet18", num_classes=4)
    else:
        model = torchvision.models.resnet18(num_classes=4)
    layers = blocks_of(model, image_batch())
    blocks = [f"layer{stage}.{block}" for stage in (1, 2, 3, 4) for block in (0, 1)]
    assert names(layers) == ["stem", *blocks, "fc"]
    assert set(layers[0].param_names) == {"conv1.weight", "bn1.weight", "bn1.bias"}
    assert "layer2.0.downsample.1.weight" in layers[3].param_names


@pytest.mark.parametrize(
    ("name", "some"),
    [
        ("convnext_atto", ["stem", "stages.1.blocks.0", "head.norm", "head.fc"]),
        ("mobilenetv3_small_050", ["stem", "blocks.1.0", "conv_head", "classifier"]),
        ("swin_tiny_patch4_window7_224", ["patch_embed", "layers.1.blocks.0", "norm", "head.fc"]),
        ("densenet121", ["stem", "features.denseblock1.denselayer1", "features.norm5"]),
        ("regnety_002", ["stem", "s1.b1", "s4.b7", "head.fc"]),
    ],
)
def test_timm_names_are_readable(name: str, some: list[str]) -> None:
    model = timm.create_model(name, num_classes=4)
    size = 224 if "swin" in name else 64
    found = names(blocks_of(model, image_batch(size)))
    assert [n for n in found if n in some] == some


def test_both_heads_of_a_distilled_vit() -> None:
    model = timm.create_model("deit_tiny_distilled_patch16_224", img_size=32, depth=2)
    layers = blocks_of(model, image_batch(32))
    assert [layer.name for layer in layers if layer.is_head] == ["head", "head_dist"]


def test_torchvision_vit_gathers_its_loose_parameters_in_the_stem() -> None:
    model = torchvision.models.VisionTransformer(32, 16, 2, 2, 16, 16, num_classes=4)
    layers = blocks_of(model, image_batch(32))
    blocks = [f"encoder.layers.encoder_layer_{index}" for index in (0, 1)]
    assert names(layers) == ["stem", *blocks, "encoder.ln", "heads.head"]
    assert {"class_token", "encoder.pos_embedding", "conv_proj.weight"} < set(layers[0].param_names)
    assert any("out_proj" in name for name in layers[1].param_names)


def test_plain_sequences_give_a_layer_per_weight() -> None:
    model = torchvision.models.vgg11_bn(num_classes=4)
    layers = blocks_of(model, image_batch(32))
    assert names(layers)[:2] == ["features.0", "features.4"]
    assert set(layers[0].param_names) == {
        f"features.{n}" for n in ("0.weight", "0.bias", "1.weight", "1.bias")
    }
    assert names(layers)[-1] == "classifier.6"


def test_bert() -> None:
    config = transformers.BertConfig(**TEXT, num_hidden_layers=2)
    model = transformers.BertForSequenceClassification(config)
    layers = blocks_of(model, text_batch())
    blocks = ["bert.encoder.layer.0", "bert.encoder.layer.1"]
    assert names(layers) == ["bert.embeddings", *blocks, "bert.pooler", "classifier"]


def test_tied_language_model_head_is_one_layer_under_both_names() -> None:
    config = transformers.GPT2Config(
        vocab_size=30, n_layer=2, n_embd=8, n_head=2, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config)
    layers = blocks_of(model, text_batch())
    assert names(layers) == ["stem", "transformer.h.0", "transformer.h.1", "transformer.ln_f"]
    assert layers[0].tied_names == ("lm_head.weight",)
    assert not any(layer.is_head for layer in layers)


class Small(nn.Module):
    """Registered in another order than it runs, with an unused and a tied part."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(2, 2)
        self.late = nn.Linear(6, 6)
        self.late_norm = nn.LayerNorm(6)
        self.early = nn.Linear(4, 6)
        self.scale = nn.Parameter(torch.ones(6))
        self.again = nn.Linear(6, 6)
        self.again.weight = self.late.weight
        self.out = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.early(x)) * self.scale
        x = self.again(torch.tanh(self.late_norm(self.late(x))))
        result: Tensor = self.out(x)
        return result


def vector_batch() -> Batch:
    return Batch(torch.randn(3, 4), torch.zeros(3, dtype=torch.long))


def test_depth_is_the_order_of_execution_and_norms_belong_to_what_they_follow() -> None:
    layers = blocks_of(Small(), vector_batch())
    assert names(layers) == ["scale", "early", "late", "again", "unused", "out"]
    by_name = {layer.name: layer for layer in layers}
    assert by_name["late"].tied_names == ("again.weight",)
    assert set(by_name["late"].param_names) == {
        *("late.weight", "late.bias", "late_norm.weight", "late_norm.bias"),
    }
    assert by_name["again"].param_names == ("again.bias",)
    assert by_name["out"].is_head


def test_wrapped_models_keep_their_full_names() -> None:
    wrapped = nn.Sequential()
    wrapped.add_module("net", timm.create_model("resnet18", num_classes=2))
    layers = discover_layers(wrapped, image_batch())
    assert_partition(wrapped, layers)
    assert {"net.stem", "net.layer1.0", "net.layer4.1"} < set(names(layers))


def test_module_and_tensor() -> None:
    model = Small()
    modules = discover_layers(model, vector_batch(), granularity="module", head_params=["out.bias"])
    assert_partition(model, modules)
    assert names(modules)[:4] == ["scale", "early", "late", "late_norm"]
    tensors = discover_layers(
        model, vector_batch(), granularity="tensor", head_params=["out.weight", "out.bias"]
    )
    assert_partition(model, tensors)
    assert names(tensors)[-2:] == ["out.weight", "out.bias"]
    assert [layer.is_head for layer in tensors[-3:]] == [False, True, True]


def test_regex_groups_by_first_group_or_match_and_leaves_the_rest_out() -> None:
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=3, num_classes=4)
    batch = image_batch(32)
    layers = discover_layers(model, batch, granularity=r"blocks\.\d+\.(?:attn|mlp)")
    assert names(layers)[:3] == ["blocks.0.attn", "blocks.0.mlp", "blocks.1.attn"]
    assert "cls_token" in left_out(model, layers)
    assert "blocks.0.norm1.weight" in left_out(model, layers)
    kinds = discover_layers(model, batch, regex=r"blocks\.\d+\.(attn|mlp)")
    assert names(kinds) == ["attn", "mlp"]
    assert len(kinds[0].param_names) == 3 * 4


@pytest.mark.parametrize("regex", ["(", "no_such_name"])
def test_bad_regex_is_a_usage_error(regex: str) -> None:
    with pytest.raises(UsageError, match="--layers"):
        discover_layers(Small(), vector_batch(), granularity=regex)


def test_explicit_groups() -> None:
    model = Small()
    groups = {"b": ["out.weight"], "a": ["early.weight", "again.weight"]}
    layers = discover_layers(model, vector_batch(), groups=groups, head_params=["out.weight"])
    assert [(layer.name, layer.param_names) for layer in layers] == [
        ("a", ("late.weight", "early.weight")),
        ("b", ("out.weight",)),
    ]
    assert layers[1].is_head
    with pytest.raises(UsageError, match="no parameter"):
        discover_layers(model, vector_batch(), groups={"a": ["nope"]})
    with pytest.raises(UsageError, match="two layers"):
        discover_layers(model, vector_batch(), groups={"a": ["late.weight"], "b": ["again.weight"]})


def test_the_model_comes_back_untouched() -> None:
    model = timm.create_model("test_resnet", num_classes=2).train()
    model.bn1.eval()
    before = copy.deepcopy(model.state_dict())
    modes = {name: module.training for name, module in model.named_modules()}
    discover_layers(model, image_batch())
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    assert modes == {name: module.training for name, module in model.named_modules()}
    assert all(not module._forward_pre_hooks for module in model.modules())
    assert all(param.grad is None for param in model.parameters())


def test_fused_transformer_encoder_is_seen_through() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()
    batch = Batch(torch.randn(2, 3, 8), torch.zeros(2, dtype=torch.long))
    layers = discover_layers(model, batch)
    assert_partition(model, layers)
    assert names(layers) == ["layers.0", "layers.1", "layers.2"]
    inside = discover_layers(model, batch, granularity="module")
    assert names(inside)[0] == "layers.0.self_attn"
