"""`clcurv.inspect`: what it says of real objects, and that it says what the commands do."""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import transformers
from hostile import HOSTILE, TINY, tiny_state
from program import SAMPLES, program
from safetensors.torch import save_file

import clcurv
from clcurv.errors import InputError, UsageError
from clcurv.report.inspect_document import InspectDocument


def told(path: Path, **options: Any) -> InspectDocument:
    """The report, of a checkpoint that is not refused."""
    report = clcurv.inspect(path, **options)
    assert report.refusal is None
    assert report.document.refusal is None
    return report.document


@pytest.fixture(scope="module")
def vit() -> InspectDocument:
    """Of the sample that timm's training script would have written."""
    return told(SAMPLES / "digits_vit.pt")


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    content: dict[str, Any] = torch.load(SAMPLES / "digits_vit.pt", weights_only=True)
    return content


def test_the_file_is_described(vit: InspectDocument) -> None:
    path = SAMPLES / "digits_vit.pt"
    content = path.read_bytes()
    assert (vit.file.kind, vit.file.format) == ("file", "torch")
    assert vit.file.size_bytes == len(content)
    assert vit.file.files[0].sha256 == hashlib.sha256(content).hexdigest()
    assert vit.file.begins == content[:16].hex(" ")


def test_the_weights_are_counted(vit: InspectDocument, stored: dict[str, Any]) -> None:
    state = stored["state_dict"]
    assert vit.weights is not None
    assert vit.weights.key == "state_dict"
    assert vit.weights.n_tensors == len(state)
    assert vit.weights.n_elements == sum(t.numel() for t in state.values())
    assert vit.weights.dtypes == {"float32": vit.weights.n_elements}
    assert vit.weights.size_bytes == 4 * vit.weights.n_elements
    assert {x.name: x.shape for x in vit.tensors} == {n: tuple(t.shape) for n, t in state.items()}


def test_every_tensor_is_matched_and_every_parameter_is_in_one_layer(
    vit: InspectDocument, stored: dict[str, Any]
) -> None:
    state = stored["state_dict"]
    assert vit.match is not None
    heads = [name for name in state if name.startswith("head.")]
    assert vit.match.head.matched == len(heads) == 2
    assert vit.match.head.matched_elements == sum(state[n].numel() for n in heads)
    assert vit.match.backbone.matched == len(state) - 2
    for part in (vit.match.backbone, vit.match.head):
        assert part.missing == part.unexpected == part.different == ()
    inside = [name for layer in vit.layers for name in layer.param_names]
    assert sorted(inside) == sorted(state)  # a ViT has no buffers
    assert sum(layer.numel for layer in vit.layers) == sum(t.numel() for t in state.values())
    assert [x.name for x in vit.layers if x.is_head] == ["head"]
    assert vit.layers[0].name == "stem"


def test_where_the_architecture_comes_from(vit: InspectDocument) -> None:
    assert vit.architecture is not None
    assert vit.architecture.name == "timm:vit_tiny_patch16_224"
    (candidate,) = vit.candidates
    assert candidate.status == "chosen"
    assert "arch = vit_tiny_patch16_224" in candidate.evidence
    assert vit.metadata["epoch"] == 29
    assert next(iter(vit.metadata)) == "arch"  # what is worth knowing first


def test_data_show_the_accuracy(tmp_path: Path) -> None:
    data = np.load(SAMPLES / "digits_held_out.npz")
    document = told(SAMPLES / "digits_vit.pt", data=SAMPLES / "digits_held_out.npz")
    assert document.data is not None
    assert document.data.accuracy is not None
    assert document.data.accuracy > 0.9
    assert document.warnings == ()
    np.savez(tmp_path / "wrong.npz", x=data["x"], y=(data["y"] + 3) % 10)
    document = told(SAMPLES / "digits_vit.pt", data=tmp_path / "wrong.npz")
    assert document.data is not None
    assert document.data.near_chance
    assert any("near chance" in warning for warning in document.warnings)


def test_wrappers_prefixes_and_other_weights_of_a_file(tmp_path: Path) -> None:
    state = tiny_state()
    wrapped = {f"module.{name}": tensor for name, tensor in state.items()}
    content = {
        "arch": TINY,
        "model": wrapped,
        "model_ema": wrapped,
        "epoch": 7,
        "best": float("nan"),
        "args": argparse.Namespace(lr=0.1, huge=10**50, names=["a"] * 100, nested={"x": 1}),
    }
    torch.save(content, tmp_path / "a b.pt")
    document = told(tmp_path / "a b.pt")
    assert document.weights is not None
    assert document.weights.key == "model"
    assert document.weights.other_keys == ("model_ema",)
    assert document.weights.prefix == "module."
    assert {x.name for x in document.tensors} == set(wrapped)  # as the file has them
    found = {name: document.metadata[name] for name in ("epoch", "args.lr", "args.nested.x")}
    assert found == {"epoch": 7, "args.lr": 0.1, "args.nested.x": 1}
    assert document.metadata["args.names"] == "100 values"
    other = document.next[-1]
    assert other.command == f"clcurv inspect '{tmp_path / 'a b.pt'}' --key model_ema"
    ema = told(tmp_path / "a b.pt", key="model_ema")
    assert ema.weights is not None
    assert (ema.weights.key, ema.weights.other_keys) == ("model_ema", ("model",))
    assert all("--key model_ema" in step.command for step in ema.next[:3])


def test_a_backbone_is_told_to_take_a_probe(tmp_path: Path) -> None:
    model = timm.create_model(TINY, num_classes=0)
    save_file(model.state_dict(), tmp_path / "backbone.safetensors")
    document = told(tmp_path / "backbone.safetensors", arch=TINY)
    assert document.architecture is not None
    assert document.architecture.task == "backbone"
    assert document.match is not None
    assert document.match.head.matched == 0
    commands = [step.command for step in document.next]
    assert "--head linear-probe" in commands[0]
    assert commands[0].startswith("clcurv kappa ")
    assert all(f"--arch {TINY}" in command for command in commands)
    assert not any(layer.is_head for layer in document.layers)
    assert document.file.format == "safetensors"


def test_all_that_does_not_fit_is_listed(tmp_path: Path) -> None:
    state = tiny_state()
    missing = "layer2.0.bn1.weight"
    del state[missing]
    state["strange.weight"] = torch.zeros(3)
    name = "layer1.0.conv1.weight"
    state[name] = state[name][:, :, :1, :1]
    torch.save({"arch": TINY, "state_dict": state}, tmp_path / "misfit.pt")
    report = clcurv.inspect(tmp_path / "misfit.pt")
    document = report.document
    assert document.architecture is None
    assert document.refusal is not None
    assert document.refusal.stage == "architecture"
    assert document.match is not None
    assert document.match.arch == f"timm:{TINY}"
    assert document.match.backbone.missing == (missing,)
    (different,) = document.match.backbone.different
    assert different.startswith(name)
    assert document.match.backbone.unexpected == ("strange.weight",)
    assert document.match.head.matched == 2
    assert [c.status for c in document.candidates] == ["refused"]
    assert any(
        "--arch" in step.placeholders or "NAME" in step.placeholders for step in document.next
    )


def test_little_that_is_missing_is_listed(tmp_path: Path) -> None:
    """One bias of 32 among 375 thousand elements: it loads, and the report says without what."""
    state = tiny_state()
    del state["layer1.0.bn1.bias"]
    torch.save({"arch": TINY, "state_dict": state}, tmp_path / "model.pt")
    document = told(tmp_path / "model.pt")
    assert document.match is not None
    assert document.match.backbone.missing == ("layer1.0.bn1.bias",)
    counters = [name for name in state if name.endswith("num_batches_tracked")]
    assert document.match.backbone.matched == len(state) - len(counters) - 2
    assert document.architecture is not None
    assert document.architecture.matched_fraction < 1


def test_architectures_that_cannot_be_told_apart(tmp_path: Path) -> None:
    """EfficientNet-Lite0 and its TensorFlow twin have equal tensors and pad otherwise."""
    model = timm.create_model("efficientnet_lite0", num_classes=3)
    torch.save(model.state_dict(), tmp_path / "lite.pt")
    report = clcurv.inspect(tmp_path / "lite.pt")
    assert isinstance(report.refusal, InputError)
    fits = {c.name for c in report.document.candidates if c.status == "fits"}
    assert {"timm:efficientnet_lite0", "timm:tf_efficientnet_lite0"} <= fits
    commands = [step.command for step in report.document.next]
    assert any("--arch timm:tf_efficientnet_lite0" in command for command in commands)
    assert any("--data DATA" in command for command in commands)

    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (6, 224, 224, 3), dtype=np.uint8)
    with torch.no_grad():
        config = timm.data.resolve_data_config(model=model)
        mean, std = (torch.tensor(config[key])[:, None, None] for key in ("mean", "std"))
        inputs = (torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255 - mean) / std
        logits = model.eval()(inputs)
        model.classifier.bias -= logits.mean(0)
        model.classifier.weight *= 20 / logits.std()
        model.classifier.bias *= 20 / logits.std()
        labels = model(inputs).argmax(1)  # right by construction for one of the two
    torch.save(model.state_dict(), tmp_path / "lite.pt")
    np.savez(tmp_path / "seen.npz", x=pixels, y=labels.numpy())
    document = told(tmp_path / "lite.pt", data=tmp_path / "seen.npz", samples=6)
    assert document.architecture is not None
    assert document.architecture.name == "timm:efficientnet_lite0"
    assert document.architecture.source == "loss"
    losses = {c.name: c.mean_loss for c in document.candidates if c.mean_loss is not None}
    assert len(losses) > 1
    assert min(losses, key=lambda name: losses[name]) == "timm:efficientnet_lite0"
    assert document.next[0].command.endswith(f"--data {tmp_path / 'seen.npz'}")
    assert "--arch timm:efficientnet_lite0" in document.next[0].command


def bert(folder: Path, kind: str) -> Path:
    config = transformers.BertConfig(
        vocab_size=40, hidden_size=8, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=8, num_labels=3,
    )  # fmt: skip
    getattr(transformers, kind)(config).save_pretrained(folder)
    return folder


def test_a_hugging_face_folder(tmp_path: Path) -> None:
    document = told(bert(tmp_path / "bert", "BertForSequenceClassification"))
    assert document.file.kind == "folder"
    names = {part.name: part.sha256 for part in document.file.files}
    weights = (tmp_path / "bert" / "model.safetensors").read_bytes()
    assert names["model.safetensors"] == hashlib.sha256(weights).hexdigest()
    assert document.architecture is not None
    assert document.architecture.name == "hf:BertForSequenceClassification"
    assert document.candidates[0].evidence == "config.json (architectures) names it"
    assert document.match is not None
    assert document.match.head.matched == 2
    assert [x.name for x in document.layers if x.is_head] == ["classifier"]
    # It was saved without a tokenizer, so texts cannot be read; better said now than later.
    assert any("no tokenizer" in warning for warning in document.warnings)
    (tmp_path / "texts.csv").write_text("text,label\nhello,0\nthere,1\nyou,2\n")
    ran = program("kappa", tmp_path / "bert", "--data", tmp_path / "texts.csv", "-q")
    assert ran.code == 3
    assert "no tokenizer" in ran.err


def test_a_head_that_the_backbone_leaves_behind(tmp_path: Path) -> None:
    folder = bert(tmp_path / "bert", "BertForSequenceClassification")
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(
        config.replace("BertForSequenceClassification", "BertModel")
    )
    document = told(folder)
    assert document.match is not None
    assert set(document.match.head.unexpected) == {"classifier.weight", "classifier.bias"}
    assert document.match.backbone.unexpected == ()


def test_tied_weights_are_one(tmp_path: Path) -> None:
    config = transformers.GPT2Config(vocab_size=40, n_embd=8, n_layer=2, n_head=2, n_positions=16)
    model = transformers.GPT2LMHeadModel(config)
    model.save_pretrained(tmp_path / "gpt2")
    document = told(tmp_path / "gpt2")
    assert document.architecture is not None
    assert document.architecture.n_parameters == sum(p.numel() for p in model.parameters())
    assert document.match is not None
    assert document.match.backbone.matched_elements == document.architecture.n_parameters
    tied = [name for layer in document.layers for name in layer.tied_names]
    assert tied == ["lm_head.weight"]


def test_layers_by_an_expression() -> None:
    document = told(SAMPLES / "digits_vit.pt", layers=r"blocks\.(\d)\.")
    assert [x.name for x in document.layers] == list("012345")
    with pytest.raises(UsageError):
        clcurv.inspect(SAMPLES / "digits_vit.pt", layers="nothing_like_it")


def test_weights_that_are_not_finite_keep_their_architecture(tmp_path: Path) -> None:
    report = clcurv.inspect(HOSTILE["nan_weights"](tmp_path))
    (candidate,) = report.document.candidates
    assert (candidate.name, candidate.status) == (f"timm:{TINY}", "fits")
    assert report.document.weights is not None


def test_bad_data_are_not_the_checkpoints_fault(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    report = clcurv.inspect(SAMPLES / "digits_vit.pt", data=tmp_path / "empty")
    assert report.document.refusal is not None
    assert report.document.refusal.stage == "data"
    assert report.document.architecture is not None
    (step,) = report.document.next
    assert step.command == f"clcurv inspect {SAMPLES / 'digits_vit.pt'}"


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        clcurv.inspect(tmp_path / "nothing.pt")
    with pytest.raises(UsageError, match="no option"):
        clcurv.inspect(SAMPLES / "digits_vit.pt", operator="hessian")


def test_a_network_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "def build():\n"
        "    return nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))\n"
    )
    state = {"0.weight": torch.ones(4, 5), "0.bias": torch.ones(4)}
    state |= {"2.weight": torch.ones(3, 4), "2.bias": torch.ones(3)}
    torch.save(state, tmp_path / "mine.pt")
    unknown = clcurv.inspect(tmp_path / "mine.pt")
    assert isinstance(unknown.refusal, InputError)
    assert any("FILE.py:FACTORY" in step.placeholders for step in unknown.document.next)
    document = told(tmp_path / "mine.pt", arch=f"{tmp_path}/mine.py:build", trust_code=True)
    assert sorted(x.numel for x in document.layers) == [15, 24]
    assert "--trust-code" in document.next[0].command


def test_a_headless_one_cannot_be_chosen_by_its_loss(tmp_path: Path) -> None:
    """Features are no logits: the loss of either sibling would mean nothing."""
    model = timm.create_model("efficientnet_lite0", num_classes=0)
    torch.save(model.state_dict(), tmp_path / "lite.pt")
    pixels = np.zeros((4, 224, 224, 3), dtype=np.uint8)
    np.savez(tmp_path / "data.npz", x=pixels, y=np.arange(4) % 2)
    report = clcurv.inspect(tmp_path / "lite.pt", data=tmp_path / "data.npz", samples=4)
    assert isinstance(report.refusal, InputError)
    assert "labelled data" not in str(report.refusal.hint)
    assert {c.status for c in report.document.candidates} == {"fits"}
    assert report.document.match is not None
    assert report.document.match.backbone.missing == ()
    assert not any("--data DATA" in step.command for step in report.document.next)
