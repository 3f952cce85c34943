"""Vision encoders inside the files of their pretraining -> the tensors of a timm model.

DINO, MoCo, MAE, BEiT and CLIP publish more than the encoder (projectors, decoders, text
towers), sometimes under names of their own, and with facts that no shape tells: the number of
attention heads, the activation, the preprocessing. What is known of them is written down here;
which timm model it is, and that it fits, is found and proved like everywhere else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from clcurv.inputs.checkpoint import Weights
from clcurv.inputs.fingerprints import is_head

# How these methods' own evaluations read ImageNet: resize to 256, cut out 224.
_IMAGENET = {
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
    "interpolation": "bicubic",
    "crop_pct": 0.875,
}

_CLIP = {
    "mean": (0.48145466, 0.4578275, 0.40821073),
    "std": (0.26862954, 0.26130258, 0.27577711),
    "interpolation": "bicubic",
    "crop_pct": 1.0,
}

# open_clip's and OpenAI's names -> timm's.
_CLIP_NAMES = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"^conv1\.", "patch_embed.proj."),
        (r"^class_embedding$", "cls_token"),
        (r"^positional_embedding$", "pos_embed"),
        (r"^ln_pre\.", "norm_pre."),
        (r"^ln_post\.", "norm."),
        (r"^transformer\.resblocks\.", "blocks."),
        (r"\.ln_([12])\.", r".norm\1."),
        (r"\.ls_([12])\.", r".ls\1."),
        (r"\.attn\.in_proj_", ".attn.qkv."),
        (r"\.attn\.out_proj\.", ".attn.proj."),
        (r"\.mlp\.c_fc\.", ".mlp.fc1."),
        (r"\.mlp\.c_proj\.", ".mlp.fc2."),
    )
)
# Blocks of CLIP's ResNets -> timm's name, and the one with OpenAI's activation.
_CLIP_RESNETS: dict[tuple[int, ...], str] = {
    (3, 4, 6, 3): "resnet50_clip",
    (3, 4, 23, 3): "resnet101_clip",
    (4, 6, 10, 6): "resnet50x4_clip",
    (6, 8, 18, 8): "resnet50x16_clip",
    (3, 15, 36, 10): "resnet50x64_clip",
}
_PROJECTING = {  # name in front of a tensor -> the method whose projector its head is
    "encoder_q": "MoCo",
    "base_encoder": "MoCo v3",
    "online_encoder": "BYOL",
}


def _any_name(name: str) -> bool:
    return bool(name)


@dataclass(frozen=True)
class Origin:
    """What the method that trained a file implies.

    Attributes:
        weights: The encoder's tensors, named as timm names them.
        method: ``DINO``, ``MAE``, ``CLIP``, ...; "" where none is recognised.
        arguments: For ``timm.create_model``: what the shapes do not tell.
        data_config: Preprocessing, in timm's words.
        shapes: What to look up, where it is not the shapes of `weights`.
        names: Candidates known without looking up.
        suits: Of several models with these tensors, whether this one can be meant.
    """

    weights: Weights
    method: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    data_config: Mapping[str, Any] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] | None = None
    names: tuple[str, ...] = ()
    suits: Callable[[str], bool] = _any_name


def recognise(weights: Weights) -> Origin:
    """Find out which pretraining wrote a file, and keep its vision encoder.

    Second copies of a network (momentum encoders, students) are left out of every file.

    Args:
        weights: A file, or a folder without config.

    Returns:
        An origin without `method` and with `weights` as they are, where nothing is special.
    """
    copies = set(weights.aside)
    kept = {
        n: t for n, t in weights.tensors.items() if weights.original_names.get(n, n) not in copies
    }
    weights = replace(weights, tensors=kept)
    names = kept.keys()
    if any(n.startswith("visual.trunk.") for n in names):
        return _open_clip_trunk(weights)
    if "visual.class_embedding" in names or "visual.attnpool.positional_embedding" in names:
        return _clip(weights)
    if "rel_pos_bias.relative_position_bias_table" in names and "patch_embed.proj.weight" in names:
        return _beit(weights)
    original = [weights.original_names.get(n, n) for n in names]
    components = {part for name in (*original, *weights.aside) for part in name.split(".")[:3]}
    for word, method in _PROJECTING.items():
        if word in components:
            return _contrastive(weights, method)
    if any(re.match(r"(head\.(mlp|last_layer)|dino_head|ibot_head)\.", n) for n in names):
        return _without_heads(weights, "DINO", "the projector", data_config=_IMAGENET)
    if "register_tokens" in names or {"mask_token", "blocks.0.ls1.gamma"} <= names:
        return _dinov2(weights)
    if "decoder_pos_embed" in names and "patch_embed.proj.weight" in names:
        return _said(weights, "MAE", "its encoder; the decoder is left out", data_config=_IMAGENET)
    if weights.metadata.get("arch") == "vit_small" and _fixed_positions(weights):
        return _contrastive(weights, "MoCo v3", keep_head=True)
    return Origin(weights)


def _said(weights: Weights, method: str, what: str, **facts: Any) -> Origin:
    note = f"recognised as {method}: {what}"
    return Origin(replace(weights, notes=(*weights.notes, note)), method, **facts)


def _without_heads(weights: Weights, method: str, what: str, **facts: Any) -> Origin:
    """Leave out what looks like a classifier and is none."""
    kept = {n: t for n, t in weights.tensors.items() if not _is_projector(n)}
    if len(kept) == len(weights.tensors):
        return _said(weights, method, "a backbone without a head", **facts)
    first = next(n for n in weights.tensors if n not in kept)
    told = f"{what} ({first}, ...) is no classifier and is left out"
    return _said(replace(weights, tensors=kept), method, told, **facts)


def _is_projector(name: str) -> bool:
    return is_head(name) or name.startswith(("dino_head.", "ibot_head."))


def _fixed_positions(weights: Weights) -> bool:
    """Sine and cosine positions leave the class token's at zero; learned ones never do."""
    table = weights.tensors.get("pos_embed")
    return table is not None and table.ndim == 3 and not bool(table[0, 0].any())


def _contrastive(weights: Weights, method: str, *, keep_head: bool = False) -> Origin:
    arguments: dict[str, Any] = {}
    token = weights.tensors.get("cls_token")
    if method == "MoCo v3" and token is not None and token.shape[-1] == 384:
        # facebookresearch/moco-v3, vits.py: its ViT-S has 12 heads of 32, timm's 6 of 64.
        arguments["num_heads"] = 12
    facts = {"data_config": _IMAGENET, "arguments": arguments}
    if keep_head:
        return _said(weights, method, "a linear classifier on its encoder", **facts)
    return _without_heads(weights, method, "the projector", **facts)


def _beit(weights: Weights) -> Origin:
    """BEiT's pretraining shares one table of relative positions among all blocks."""
    shared = weights.tensors["rel_pos_bias.relative_position_bias_table"]
    shapes = {n: tuple(t.shape) for n, t in weights.tensors.items() if "rel_pos_bias." not in n}
    second = any(n.startswith("cls_pt_layers.") for n in weights.tensors)
    blocks = {m[1] for n in shapes if (m := re.match(r"blocks\.(\d+)\.", n))}
    for block in blocks:
        shapes[f"blocks.{block}.attn.relative_position_bias_table"] = tuple(shared.shape)
    return _said(
        weights,
        "BEiT",
        "its encoder, with relative positions shared by all blocks",
        arguments={"use_rel_pos_bias": False, "use_shared_rel_pos_bias": True},
        # beit_base_patch16_384 is the same network, cut out of images otherwise.
        data_config={"crop_pct": 0.9, "interpolation": "bicubic"},
        shapes=shapes,
        suits=lambda name: name.startswith("timm:beitv2" if second else "timm:beit_"),
    )


def _dinov2(weights: Weights) -> Origin:
    """timm adds the class token's position to the token, where there are registers."""
    tensors = dict(weights.tensors)
    tensors.pop("mask_token", None)
    if {"register_tokens", "cls_token", "pos_embed"} <= tensors.keys():
        positions = tensors["pos_embed"]
        tensors["reg_token"] = tensors.pop("register_tokens")
        tensors["cls_token"] = tensors["cls_token"] + positions[:, :1]
        tensors["pos_embed"] = positions[:, 1:]
    renamed = {
        re.sub(r"\.mlp\.w12\.", ".mlp.fc1.", re.sub(r"\.mlp\.w3\.", ".mlp.fc2.", n)): t
        for n, t in tensors.items()
    }
    return _without_heads(_only(weights, renamed), "DINOv2", "the projector")


def _clip(weights: Weights) -> Origin:
    tensors = {
        n.removeprefix("visual."): t for n, t in weights.tensors.items() if n.startswith("visual.")
    }
    note = "the vision tower before its projection; the text tower is left out"
    if "attnpool.positional_embedding" in tensors:
        return _clip_resnet(weights, tensors, note)
    # Only the files that OpenAI wrote carry these numbers.
    openai = "input_resolution" in weights.tensors and "context_length" in weights.tensors
    quick = openai or _mentions(weights, "quickgelu")
    told = quick or _mentions(weights, "vit-")
    if not told:
        note += "; nothing in the file tells GELU from QuickGELU"

    def suits(name: str) -> bool:
        return not told or ("quickgelu" in name) == quick

    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name == "proj":
            continue
        for pattern, new in _CLIP_NAMES:
            name = pattern.sub(new, name)
        if name in ("cls_token", "pos_embed"):
            tensor = tensor.reshape(1, -1, tensor.shape[-1])
        renamed[name] = tensor
    return _said(_only(weights, renamed), "CLIP", note, data_config=_CLIP, suits=suits)


def _clip_resnet(weights: Weights, tensors: Mapping[str, Tensor], note: str) -> Origin:
    """timm's converter knows the names; the numbers of blocks tell which network it is.

    The image tower has ReLUs: GELU or QuickGELU concerns the text tower alone.
    """
    depths = tuple(
        1
        + max((int(m[1]) for n in tensors if (m := re.match(rf"layer{s}\.(\d+)\.", n))), default=0)
        for s in (1, 2, 3, 4)
    )
    plain = _CLIP_RESNETS.get(depths)
    # The projection is the pooling's last layer, and where a classifier would be.
    kept = {f"visual.{n}": t for n, t in tensors.items() if not n.startswith("attnpool.c_proj.")}
    return _said(
        _only(weights, kept),
        "CLIP",
        note,
        data_config=_CLIP,
        names=(f"timm:{plain}",) if plain else (),
    )


def _open_clip_trunk(weights: Weights) -> Origin:
    """OpenCLIP around a timm model."""
    trunk = {
        n.removeprefix("visual.trunk."): t
        for n, t in weights.tensors.items()
        if n.startswith("visual.trunk.")
    }
    note = (
        "the vision tower before its projection; the text tower is left out; how the tower pools "
    )
    note += "its tokens is not in the file"
    return _said(_only(weights, trunk), "OpenCLIP", note)


def _only(weights: Weights, tensors: dict[str, Tensor]) -> Weights:
    return replace(weights, tensors=tensors, original_names={}, prefix="", aside=())


def _mentions(weights: Weights, word: str) -> bool:
    """Whether a plain value beside the tensors, like OpenCLIP's run name, holds a word."""
    said = [weights.metadata.get(key) for key in ("name", "model", "arch", "model_name")]
    return any(word in value.lower().replace("_", "-") for value in said if isinstance(value, str))
