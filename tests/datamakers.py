"""Tiny models and data files that the input tests share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from clcurv.inputs.loaded import LoadedModel

TIMM_CONFIG = {
    "input_size": (3, 16, 16),
    "mean": (0.5, 0.4, 0.3),
    "std": (0.2, 0.25, 0.3),
    "interpolation": "bicubic",
    "crop_pct": 0.875,
    "crop_mode": "center",
}
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [*SPECIAL, "the", "a", "cat", "dog", "sat", "ran", "on", "mat", "red", "blue", "very"]


def image_model(
    classes: int | None = 2,
    *,
    channels: int = 3,
    preprocess: Mapping[str, Any] | None = None,
    id2label: Mapping[int, str] | None = None,
    modality: str = "image",
    task: str | None = None,
) -> LoadedModel:
    """A convolution, pooling, and a linear head unless `classes` is None."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        body: list[nn.Module] = [nn.Conv2d(channels, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
        head = [] if classes is None else [nn.Linear(6, classes)]
        model = nn.Sequential(*body, nn.Flatten(), *head).eval()
    return LoadedModel(
        model=model,
        arch="module:tiny",
        arch_source="given",
        modality=modality,  # type: ignore[arg-type]
        task=task or ("backbone" if classes is None else "classification"),  # type: ignore[arg-type]
        num_classes=classes,
        preprocess=dict(TIMM_CONFIG if preprocess is None else preprocess),
        id2label=dict(id2label or {}),
    )


class MeanEmbedding(nn.Module):
    """Averages word vectors: the smallest text model without a config."""

    def __init__(self, vocabulary: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 4)
        self.head = nn.Linear(4, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embedding(tokens).mean(1))


def save_tokenizer(folder: Path) -> Path:
    """A BERT tokenizer over `WORDS`, in a folder as `save_pretrained` leaves it."""
    from transformers import BertTokenizer

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    BertTokenizer(vocab=str(folder / "vocab.txt"), model_max_length=12).save_pretrained(folder)
    return folder


def bert(kind: str, folder: Path, *, classes: int = 2) -> LoadedModel:
    """A random one-layer BERT of the given kind with its tokenizer in `folder`."""
    import transformers

    config = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=12,
        num_labels=classes,
        pad_token_id=0,
    )
    name = {"classification": "BertForSequenceClassification", "masked-lm": "BertForMaskedLM"}
    name |= {"causal-lm": "BertLMHeadModel", "backbone": "BertModel"}
    config.is_decoder = kind == "causal-lm"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = getattr(transformers, name[kind])(config).eval()
    return LoadedModel(
        model=model,
        arch=f"hf:{name[kind]}",
        arch_source="config",
        modality="text",
        task=kind,  # type: ignore[arg-type]
        num_classes=classes if kind == "classification" else None,
        preprocess={"tokenizer": str(save_tokenizer(folder))},
    )


def picture(seed: int, size: tuple[int, int] = (16, 16), mode: str = "RGB") -> Image.Image:
    """Seeded noise of (width, height)."""
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


def image_folder(root: Path, counts: Mapping[str, int], **options: Any) -> Path:
    """``root/class/k.png`` with the wanted number of images per class."""
    seed = 0
    for label, count in counts.items():
        (root / label).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            picture(seed, **options).save(root / label / f"{number}.png")
            seed += 1
    return root
