"""Trains the sample checkpoints and writes them with their held-out data.

    python sample_checkpoints/make.py                      # all three, two minutes
    python sample_checkpoints/make.py --only digits_vit    # one of them
    python sample_checkpoints/make.py --out build/samples   # leave the shipped files alone

One thread and fixed seeds: the same machine and library versions give the same
files; another CPU may round differently and end a few samples apart. The
accuracy and loss of each run are written into README.md beside the files.
Needs scikit-learn (the ``test`` extra) for its digits.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from intents import INTENTS, write_sentences
from PIL import Image
from sklearn.datasets import load_digits
from timm.data import create_transform, resolve_model_data_config
from timm.models import save_for_hf
from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

HERE = Path(__file__).parent
SAMPLES = ("digits_resnet", "digits_vit", "intent_bert")
SEED = 0
HELD_OUT_PER_CLASS = 50  # of about 180 each; the rest is trained on
IMAGES_PER_CLASS = 20  # of the held-out digits that also ship as PNG files

RESNET_ARGS = {"stem_type": "deep", "stem_width": 8, "channels": [16, 16, 32, 48]}
VIT_ARGS = {
    "img_size": 8,
    "patch_size": 2,
    "embed_dim": 48,
    "depth": 6,
    "num_heads": 4,
    "mlp_ratio": 4.0,
}


def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """scikit-learn's digits, split by class: train images and labels, held-out ones.

    Images are uint8 (n, 8, 8), 0 to 255.
    """
    data = load_digits()
    images = np.round(data.images * (255 / 16)).astype(np.uint8)
    order = np.random.default_rng(SEED).permutation(len(images))
    images, labels = images[order], data.target[order].astype(np.int64)
    rank = np.empty_like(labels)  # position of each sample within its class
    for digit in range(10):
        members = np.flatnonzero(labels == digit)
        rank[members] = np.arange(len(members))
    held_out = rank < HELD_OUT_PER_CLASS
    return images[~held_out], labels[~held_out], images[held_out], labels[held_out]


def shifted(images: Tensor, generator: torch.Generator, *, most: int, share: float) -> Tensor:
    """A share of the images moved by up to `most` pixels, black filled in."""
    padded = F.pad(images, (most,) * 4, value=float(images.min()))
    size = images.shape[-1]
    corners = torch.randint(0, 2 * most + 1, (len(images), 2), generator=generator).tolist()
    moved = torch.stack(
        [p[:, y : y + size, x : x + size] for p, (y, x) in zip(padded, corners, strict=True)]
    )
    chosen = torch.rand(len(images), 1, 1, 1, generator=generator) < share
    return torch.where(chosen, moved, images)


def score(logits: Callable[[Tensor], Tensor], inputs: Tensor, labels: Tensor) -> dict[str, float]:
    """Accuracy and mean cross-entropy."""
    with torch.no_grad():
        out = torch.cat([logits(part) for part in inputs.split(256)])
    return {
        "accuracy": (out.argmax(1) == labels).float().mean().item(),
        "loss": F.cross_entropy(out, labels).item(),
    }


def train(
    model: nn.Module,
    logits: Callable[[Tensor], Tensor],
    inputs: Tensor,
    labels: Tensor,
    *,
    epochs: int,
    batch: int,
    lr: float,
    augment: Callable[[Tensor, torch.Generator], Tensor] = lambda images, _: images,
) -> None:
    """AdamW with weight decay 0.05, one learning-rate cycle; leaves the model in eval mode."""
    generator = torch.Generator().manual_seed(SEED)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.05)
    steps = len(inputs) // batch
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=epochs * steps)
    model.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(inputs), generator=generator)[: steps * batch].split(batch):
            loss = F.cross_entropy(logits(augment(inputs[rows], generator)), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    model.eval()


def make_digits_resnet(out: Path) -> dict[str, dict[str, float]]:
    """A ResNet-18 of 16 to 48 channels as a timm folder; held-out digits as PNG files."""
    x_train, y_train, x_test, y_test = digits()
    folder = out / "digits_images"
    shutil.rmtree(folder, ignore_errors=True)
    shipped = np.concatenate(
        [np.flatnonzero(y_test == digit)[:IMAGES_PER_CLASS] for digit in range(10)]
    )
    for index in shipped:
        target = folder / str(y_test[index])
        target.mkdir(parents=True, exist_ok=True)
        (target / f"digit_{index:03d}.png").write_bytes(png(x_test[index]))

    torch.manual_seed(SEED)
    model = timm.create_model("resnet18", num_classes=10, in_chans=1, **RESNET_ARGS)
    data_config: dict[str, Any] = {
        "input_size": (1, 32, 32),
        "interpolation": "bicubic",
        "crop_pct": 1.0,
        "mean": (0.0,),
        "std": (1.0,),
    }
    raw = through(data_config, x_train)
    data_config["mean"] = (round(raw.mean().item(), 4),)
    data_config["std"] = (round(raw.std().item(), 4),)
    inputs, labels = through(data_config, x_train), torch.from_numpy(y_train)
    train(
        model,
        model,
        inputs,
        labels,
        epochs=6,
        batch=64,
        lr=5e-3,
        augment=partial(shifted, most=2, share=1.0),
    )
    for claim in ("tag", "license", "origin_url", "paper_ids"):  # of timm's ImageNet weights
        model.pretrained_cfg.pop(claim, None)
    save_for_hf(
        model,
        str(out / "digits_resnet"),
        model_args=RESNET_ARGS,
        safe_serialization=True,
        data_config=data_config,
    )
    # Scored as a user loads it: from the folder, with the preprocessing it records.
    model = timm.create_model(f"local-dir:{out / 'digits_resnet'}", pretrained=True).eval()
    recorded = resolve_model_data_config(model)
    held_out, targets = through(recorded, x_test), torch.from_numpy(y_test)
    return {
        "train": score(model, inputs, labels),
        "held out": score(model, held_out, targets),
        "digits_images/": score(model, held_out[shipped], targets[shipped]),
    }


def png(image: np.ndarray) -> bytes:
    """One digit as a 16 x 16 grey PNG."""
    buffer = io.BytesIO()
    enlarged = Image.fromarray(image).resize((16, 16), Image.Resampling.BICUBIC)
    enlarged.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def through(data_config: dict[str, Any], images: np.ndarray) -> Tensor:
    """The images as their PNG files come out of timm's own evaluation transform."""
    transform = create_transform(**data_config)
    return torch.stack([transform(Image.open(io.BytesIO(png(image)))) for image in images])


def make_digits_vit(out: Path) -> dict[str, dict[str, float]]:
    """A six-block ViT on 8 x 8 digits as a timm training file; data as npz.

    ``digits_held_out.npz`` holds the task it was trained on, ``digits_rotated.npz``
    a new task: the same digits turned by a quarter. Pixels are float32 from 0 to 1
    and go into the model as they are.
    """
    x_train, y_train, x_test, y_test = digits()
    inputs = torch.from_numpy(x_train).unsqueeze(1).float() / 255
    held_out = torch.from_numpy(x_test).unsqueeze(1).float() / 255
    rotated = torch.rot90(held_out, 1, (2, 3)).contiguous()
    labels, targets = torch.from_numpy(y_train), torch.from_numpy(y_test)
    np.savez_compressed(out / "digits_held_out.npz", x=held_out.numpy(), y=y_test)
    np.savez_compressed(out / "digits_rotated.npz", x=rotated.numpy(), y=y_test)

    torch.manual_seed(SEED)
    arch, epochs = "vit_tiny_patch16_224", 30
    # timm's default start (std 0.02) is made for hundreds of channels; 48 hardly move from it.
    model = timm.create_model(arch, num_classes=10, in_chans=1, weight_init="jax", **VIT_ARGS)
    train(
        model,
        model,
        inputs,
        labels,
        epochs=epochs,
        batch=32,
        lr=1.5e-3,
        augment=partial(shifted, most=1, share=0.25),
    )
    result = {
        "train": score(model, inputs, labels),
        "digits_held_out.npz": score(model, held_out, targets),
        "digits_rotated.npz": score(model, rotated, targets),
    }
    torch.save(
        {
            "epoch": epochs - 1,
            "arch": arch,
            "state_dict": model.state_dict(),
            "version": 2,
            "args": {
                "model": arch,
                "num_classes": 10,
                "in_chans": 1,
                "input_size": [1, 8, 8],
                "mean": [0.0],
                "std": [1.0],
                "crop_pct": 1.0,
                "interpolation": "bicubic",
                "model_kwargs": VIT_ARGS,
            },
            "metric": round(100 * result["digits_held_out.npz"]["accuracy"], 2),
        },
        out / "digits_vit.pt",
    )
    return result


def make_intent_bert(out: Path) -> dict[str, dict[str, float]]:
    """A four-block BERT with its tokenizer as an HF folder; sentences as jsonl."""
    train_rows, held_out_rows = write_sentences(SEED, train=3000, held_out_per_intent=80)
    with (out / "intents.jsonl").open("w", encoding="utf-8", newline="\n") as file:
        for text, intent in held_out_rows:
            file.write(json.dumps({"text": text, "label": intent}) + "\n")

    tokenizer = word_pieces([text for text, _ in train_rows])
    tokens, labels = encode(tokenizer, train_rows)
    held_out, targets = encode(tokenizer, held_out_rows)

    torch.manual_seed(SEED)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=128,
            max_position_embeddings=64,
            pad_token_id=tokenizer.pad_token_id,
            id2label=dict(enumerate(INTENTS)),
            label2id={intent: index for index, intent in enumerate(INTENTS)},
            problem_type="single_label_classification",
        )
    )

    def logits(batch: Tensor) -> Tensor:
        mask = (batch != tokenizer.pad_token_id).long()
        return model(input_ids=batch, attention_mask=mask).logits

    train(model, logits, tokens, labels, epochs=6, batch=64, lr=1e-3)
    folder = out / "intent_bert"
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return {
        "train": score(logits, tokens, labels),
        "intents.jsonl": score(logits, held_out, targets),
    }


def word_pieces(texts: list[str]) -> BertTokenizerFast:
    """A WordPiece tokenizer: the words seen twice or more, and every letter for the rest.

    The vocabulary is listed rather than trained because the trainer breaks ties
    in an order that changes from run to run.
    """
    counts: dict[str, int] = {}
    for word in " ".join(texts).split():
        counts[word] = counts.get(word, 0) + 1
    letters = sorted({letter for word in counts for letter in word})
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters]
    pieces += [f"##{letter}" for letter in letters]
    pieces += sorted(word for word, count in counts.items() if count > 1 and len(word) > 1)
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    backend = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.BertProcessing(
        ("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"])
    )
    return BertTokenizerFast(tokenizer_object=backend, model_max_length=64)


def encode(tokenizer: BertTokenizerFast, rows: list[tuple[str, str]]) -> tuple[Tensor, Tensor]:
    batch = tokenizer([text for text, _ in rows], padding=True, return_tensors="pt")
    return batch["input_ids"], torch.tensor([INTENTS.index(intent) for _, intent in rows])


def write_block(readme: Path, marker: str, text: str) -> None:
    """Replaces what stands between the two comments named `marker`, if they are there."""
    begin, end = f"<!-- {marker} -->", f"<!-- /{marker} -->"
    if not readme.is_file() or begin not in (page := readme.read_text(encoding="utf-8")):
        return
    head, rest = page.split(begin, 1)
    tail = rest.split(end, 1)[1]
    readme.write_text(f"{head}{begin}\n{text.strip()}\n{end}{tail}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=SAMPLES, help="make this one only")
    parser.add_argument("--out", type=Path, default=HERE, help="folder to write to")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    options.out.mkdir(parents=True, exist_ok=True)
    makers = {
        "digits_resnet": make_digits_resnet,
        "digits_vit": make_digits_vit,
        "intent_bert": make_intent_bert,
    }
    for name in [options.only] if options.only else SAMPLES:
        start = time.perf_counter()
        result = makers[name](options.out)
        rows = [
            f"| {part} | {100 * value['accuracy']:.1f} % | {value['loss']:.4f} |"
            for part, value in result.items()
        ]
        table = "\n".join(["| data | accuracy | mean loss |", "|---|---|---|", *rows])
        print(f"{name} ({time.perf_counter() - start:.0f} s)\n{table}\n")
        write_block(options.out / "README.md", f"training {name}", table)


if __name__ == "__main__":
    main()
