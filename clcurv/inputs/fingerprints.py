"""Names and shapes of tensors -> the timm or torchvision models that have them.

The index (`fingerprints.json.gz`) is made by ``python -m clcurv.inputs.fingerprints --build``,
which builds every model of both libraries without allocating its weights. A model's
signature is a hash over its tensors' names and shapes, blind to what a user changes:
the head, the number of input channels, the image size. Only an exact match counts.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import hashlib
import json
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

INDEX = Path(__file__).with_name("fingerprints.json.gz")

Shapes = Mapping[str, tuple[int, ...]]

# First components of names that belong to a classifier, in either library.
_HEADS = frozenset(
    (
        *("head", "heads", "fc", "classifier", "classif", "last_linear", "head_dist"),
        *("heads_dist", "aux_head", "aux1", "aux2", "AuxLogits"),
    )
)
# Buffers that come and go with the version or the image size.
_VOLATILE = re.compile(
    r"(^|\.)(num_batches_tracked|relative_position_index|relative_coords_table|attn_mask"
    r"|attention_bias_idxs|position_ids)$"
)
# Their shape follows the image size.
_POSITIONAL = re.compile(
    r"(^|\.)(pos_embed(ding)?[_a-z0-9]*|pos_emb|patch_pos|pixel_pos|position_embedding_table"
    r"|relative_position_bias_table|attention_biases|rel_pos_[hw]|height_rel|width_rel)$"
)
# Left in the file by self-supervised pretraining.
_PRETRAINING = re.compile(
    r"^(decoder|mask_token|masked_embed|projector|projection|predictor|prototypes|queue|momentum"
    r"|contrastive|lm_head|dino_head|ibot_head|cls_pt_layers)"
)


@dataclass(frozen=True)
class Index:
    """The shipped index.

    Attributes:
        signatures: Signature (16 hex digits) -> architectures, e.g. ``timm:resnet18``.
        first_convs: Modules whose input channels are the image's.
        versions: Library -> version it was made with.
    """

    signatures: Mapping[str, tuple[str, ...]]
    first_convs: frozenset[str]
    versions: Mapping[str, str]


@functools.cache
def load_index() -> Index:
    """Read the shipped index (about 40 kB)."""
    content = json.loads(gzip.decompress(INDEX.read_bytes()))
    return Index(
        signatures={key: tuple(names) for key, names in content["signatures"].items()},
        first_convs=frozenset(content["first_convs"]),
        versions=content["versions"],
    )


def is_head(name: str) -> bool:
    """Whether a tensor's name says that it belongs to a classifier."""
    return name.split(".", 1)[0] in _HEADS


def is_positional(name: str) -> bool:
    """Whether a tensor's shape follows the image size."""
    return bool(_POSITIONAL.search(name))


def is_volatile(name: str) -> bool:
    """Whether a tensor is bookkeeping that may be missing without harm."""
    return bool(_VOLATILE.search(name))


def is_pretraining(name: str) -> bool:
    """Whether a tensor is a leftover of self-supervised pretraining (decoder, projector)."""
    return bool(_PRETRAINING.search(name))


def signature(shapes: Shapes, first_convs: Iterable[str]) -> str | None:
    """Hash of names and shapes; None where nothing but a head is there."""
    channels = {f"{module}.weight" for module in first_convs}
    lines = []
    for name, shape in shapes.items():
        if is_head(name) or is_volatile(name):
            continue
        # Average pooling renames a vision transformer's last norm; the weights are the same.
        canonical = re.sub(r"^fc_norm\.", "norm.", name)
        sizes = [str(size) for size in shape]
        if is_positional(name):
            sizes = ["?"]
        elif name in channels and len(sizes) > 1:
            sizes[1] = "*"
        lines.append(f"{canonical}:{','.join(sizes)}")
    if not lines:
        return None
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16]


def lookup(shapes: Shapes) -> tuple[str, ...]:
    """Architectures whose tensors are exactly these, head and image size apart.

    Args:
        shapes: Name -> shape of the tensors in a checkpoint.

    Returns:
        E.g. ``("timm:resnet18", "torchvision:resnet18")``; empty when none matches.
    """
    index = load_index()
    found = _find(shapes, index)
    if not found:
        rest = {name: shape for name, shape in shapes.items() if not is_pretraining(name)}
        found = _find(rest, index) if len(rest) < len(shapes) else ()
    return found


def _find(shapes: Shapes, index: Index) -> tuple[str, ...]:
    key = signature(shapes, index.first_convs)
    return index.signatures.get(key, ()) if key is not None else ()


def build(limit: int | None = None) -> dict[str, object]:
    """Build every timm model and torchvision classifier without weights; a few minutes.

    Args:
        limit: Only so many of each library, for tests.
    """
    import timm
    import torch
    import torchvision
    from accelerate import init_empty_weights  # type: ignore[import-untyped]

    shapes: dict[str, dict[str, tuple[int, ...]]] = {}
    first_convs: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in timm.list_models()[:limit]:
            with torch.device("meta"):
                model = timm.create_model(name)
            shapes[f"timm:{name}"] = {k: tuple(v.shape) for k, v in model.state_dict().items()}
            first = (getattr(model, "pretrained_cfg", None) or {}).get("first_conv") or ()
            first_convs |= {first} if isinstance(first, str) else set(first)
        for name in torchvision.models.list_models(module=torchvision.models)[:limit]:
            # Some of them compute with tensors while being built, so no meta device.
            with init_empty_weights():
                model = torchvision.models.get_model(name, weights=None)
            state = {k: tuple(v.shape) for k, v in model.state_dict().items()}
            shapes[f"torchvision:{name}"] = state
            conv = next((k for k, shape in state.items() if len(shape) == 4), None)
            first_convs |= {conv.removesuffix(".weight")} if conv else set()
    signatures: dict[str, list[str]] = {}
    for name, state in shapes.items():
        key = signature(state, first_convs)
        if key is not None:
            signatures.setdefault(key, []).append(name)
    versions = {"timm": timm.__version__, "torchvision": torchvision.__version__}
    return {
        # Without the build tag (+cu130), which says nothing about the models.
        "versions": {name: version.split("+")[0] for name, version in versions.items()},
        "first_convs": sorted(first_convs),
        "signatures": {key: sorted(signatures[key]) for key in sorted(signatures)},
    }


def main() -> None:
    """Entry of ``python -m clcurv.inputs.fingerprints``."""
    parser = argparse.ArgumentParser(description="Make the fingerprint index.")
    parser.add_argument("--build", action="store_true", required=True)
    parser.add_argument("--output", type=Path, default=INDEX)
    options = parser.parse_args()
    content = build()
    text = json.dumps(content, separators=(",", ":"))
    options.output.write_bytes(gzip.compress(text.encode(), mtime=0))
    print(f"{options.output}: {options.output.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
