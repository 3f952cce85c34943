"""PEFT folders on a local base; the oracle is PEFT's own model."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import clcurv
from clcurv.errors import MismatchError, NotWeightsError
from clcurv.inputs.architecture import LoadedModel, load_model
from clcurv.inputs.dataset import Batch
from clcurv.inputs.layers import discover_layers

peft = pytest.importorskip("peft")

SIZES = {
    "vocab_size": 30,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "num_hidden_layers": 2,
}


def tokens() -> dict[str, Tensor]:
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    return {"input_ids": torch.randint(1, 30, (2, 5)), "attention_mask": mask}


def adapt(base: nn.Module, **arguments: Any) -> nn.Module:
    """An adapter that changes what the base computes, unlike a fresh one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT uses names that transformers is about to drop
        model: nn.Module = peft.get_peft_model(base, peft.LoraConfig(r=2, **arguments)).eval()
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter)
    return model


def classifier(folder: Path) -> nn.Module:
    """A base without a head, and an adapter that brings one of three classes."""
    base = transformers.BertModel(transformers.BertConfig(**SIZES))
    base.save_pretrained(folder / "base")
    headed = transformers.BertForSequenceClassification.from_pretrained(
        folder / "base", num_labels=3
    )
    model = adapt(headed, task_type="SEQ_CLS", target_modules=["query", "value"])
    model.save_pretrained(folder / "adapter")  # type: ignore[operator]
    return model


def test_the_adapter_and_its_head_are_the_layers(tmp_path: Path) -> None:
    reference = classifier(tmp_path)
    loaded = load_model(tmp_path / "adapter")
    assert loaded.arch == "hf:BertForSequenceClassification+LORA"
    assert (loaded.task, loaded.modality, loaded.num_classes) == ("classification", "text", 3)
    x = tokens()
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(**x).logits, reference(**x).logits)
    learned = {n for n, p in reference.named_parameters() if p.requires_grad}
    assert {n for n, _ in loaded.model.named_parameters()} == learned
    assert all(p.requires_grad for p in loaded.model.parameters())
    assert set(loaded.head_params) == {n for n in learned if "modules_to_save" in n}
    assert any("base is frozen" in note for note in loaded.notes)
    layers = discover_layers(
        loaded.model, Batch(x, torch.zeros(2).long()), head_params=loaded.head_params
    )
    assert [layer.is_head for layer in layers] == [False, False, True]
    assert [layer.name.rpartition(".")[2] for layer in layers[:2]] == ["0", "1"]
    assert_second_derivative(loaded, x)


def assert_second_derivative(loaded: LoadedModel, x: dict[str, Tensor]) -> None:
    params = list(loaded.model.parameters())
    with sdpa_kernel(SDPBackend.MATH):
        value = loaded.model(**x).logits.square().mean()
        first = torch.autograd.grad(value, params, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), params)
    assert all(bool(g.abs().sum() > 0) for g in second)


def test_language_model_with_transposed_convolutions(tmp_path: Path) -> None:
    sizes = {"vocab_size": 30, "n_layer": 2, "n_embd": 8, "n_head": 2}
    base = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
    base.save_pretrained(tmp_path / "base")
    reference = adapt(base, task_type="CAUSAL_LM", target_modules=["c_attn"], fan_in_fan_out=True)
    reference.save_pretrained(tmp_path / "adapter")  # type: ignore[operator]
    set_base(tmp_path / "adapter", "../base")
    loaded = load_model(tmp_path / "adapter")
    assert (loaded.task, loaded.head_params) == ("causal-lm", ())
    assert sum(p.numel() for p in loaded.model.parameters()) == 2 * 2 * (8 + 24)
    x = tokens()
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(**x).logits, reference(**x).logits)


def test_a_timm_folder_is_a_base_too(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = timm.create_model("test_vit", num_classes=3)
    (tmp_path / "base").mkdir()
    save_file(model.state_dict(), tmp_path / "base" / "model.safetensors")
    config = {"architecture": "test_vit", "num_classes": 3}
    (tmp_path / "base" / "config.json").write_text(json.dumps(config))
    reference = adapt(model, target_modules=["qkv"], modules_to_save=["head"])
    reference.save_pretrained(tmp_path / "adapter")  # type: ignore[operator]
    set_base(tmp_path / "adapter", str(tmp_path / "base"))
    loaded = load_model(tmp_path / "adapter")
    assert loaded.arch == "timm:test_vit+LORA"
    assert len(loaded.head_params) == 2
    x = torch.randn(2, *loaded.preprocess["input_size"])
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(x), reference(x))


def set_base(folder: Path, base: str | None) -> None:
    path = folder / "adapter_config.json"
    said = {**json.loads(path.read_text()), "base_model_name_or_path": base}
    path.write_text(json.dumps(said))


@pytest.mark.parametrize("base", [None, "organisation/not-here"])
def test_a_base_that_is_not_local_is_named(tmp_path: Path, base: str | None) -> None:
    classifier(tmp_path)
    set_base(tmp_path / "adapter", base)
    with pytest.raises(NotWeightsError, match=base or "not named in it") as caught:
        load_model(tmp_path / "adapter")
    assert "base_model_name_or_path" in str(caught.value.hint)


def test_no_silent_partial_adapter(tmp_path: Path) -> None:
    """PEFT itself only lists the missing tensors in a result that few people read."""
    classifier(tmp_path)
    path = tmp_path / "adapter" / "adapter_model.safetensors"
    whole = load_file(path)
    one = next(name for name in whole if "lora_B" in name)
    save_file({n: t for n, t in whole.items() if n != one}, path)
    with pytest.raises(MismatchError, match="lacks"):
        load_model(tmp_path / "adapter")
    save_file({**whole, one: torch.zeros(8, 5)}, path)
    with pytest.raises(MismatchError, match="shapes differ"):
        load_model(tmp_path / "adapter")
    save_file({**whole, one.replace("layer.0", "layer.7"): whole[one].clone()}, path)
    with pytest.raises(MismatchError, match="no place"):
        load_model(tmp_path / "adapter")


def test_kappa_measures_the_adapter_alone(tmp_path: Path) -> None:
    samples = Path(__file__).parents[2] / "sample_checkpoints"
    base = transformers.AutoModelForSequenceClassification.from_pretrained(samples / "intent_bert")
    model = adapt(base, task_type="SEQ_CLS", target_modules=["query", "value"])
    model.save_pretrained(tmp_path)  # type: ignore[operator]
    set_base(tmp_path, str(samples / "intent_bert"))
    report = clcurv.kappa(tmp_path, data=samples / "intents.jsonl", samples=8)
    layers = report.result.layers
    assert len(layers) == 5
    assert sum(layer.numel for layer in layers) == sum(
        p.numel() for p in model.parameters() if p.requires_grad
    )
    assert all(layer.s > 0 for layer in layers)
