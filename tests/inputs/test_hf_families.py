"""Hugging Face weights without their config.json; the oracle is transformers' own model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor, nn

from clcurv.errors import ArchitectureError, MismatchError
from clcurv.inputs.architecture import load_model
from clcurv.inputs.hf_index import build, collapse, load_families

# Widths that are published, with their number of heads, so that the heads follow.
TEXT = {
    "vocab_size": 40,
    "hidden_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 20,
}
IMAGE = {
    "hidden_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 24,
    "image_size": 32,
    "patch_size": 8,
}
DISTIL = {"vocab_size": 40, "dim": 128, "n_layers": 3, "n_heads": 2, "hidden_dim": 24}
GPT2 = {"vocab_size": 40, "n_embd": 128, "n_layer": 3, "n_head": 2, "n_positions": 20}

CASES: dict[str, tuple[Any, Any, str, int]] = {
    "sequence": (
        transformers.BertForSequenceClassification,
        transformers.BertConfig(**TEXT, num_labels=4),
        "classification",
        4,
    ),
    "tokens": (
        transformers.BertForTokenClassification,
        transformers.BertConfig(**TEXT, num_labels=5),
        "classification",
        5,
    ),
    "masked": (transformers.BertForMaskedLM, transformers.BertConfig(**TEXT), "masked-lm", 40),
    "roberta": (
        transformers.RobertaForSequenceClassification,
        transformers.RobertaConfig(**TEXT, num_labels=3),
        "classification",
        3,
    ),
    "distilbert": (
        transformers.DistilBertForSequenceClassification,
        transformers.DistilBertConfig(**DISTIL, num_labels=3),
        "classification",
        3,
    ),
    "causal": (transformers.GPT2LMHeadModel, transformers.GPT2Config(**GPT2), "causal-lm", 40),
    "image": (
        transformers.ViTForImageClassification,
        transformers.ViTConfig(**IMAGE, num_labels=6),
        "classification",
        6,
    ),
    "image-deit": (
        transformers.DeiTForImageClassification,
        transformers.DeiTConfig(**IMAGE, num_labels=6),
        "classification",
        6,
    ),
}


def inputs(modality: str) -> dict[str, Tensor]:
    if modality == "image":
        return {"pixel_values": torch.randn(2, 3, 32, 32)}
    ids = torch.randint(3, 40, (2, 7))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def hub_file(model: nn.Module, folder: Path) -> Path:
    """The weights as `save_pretrained` names them, without the config."""
    inner = folder / "saved"
    model.save_pretrained(inner)  # type: ignore[operator]
    return (inner / "model.safetensors").rename(folder / "weights.safetensors")


def state_file(model: nn.Module, folder: Path, prefix: str = "") -> Path:
    path = folder / "weights.pt"
    torch.save({f"{prefix}{n}": t for n, t in model.state_dict().items()}, path)
    return path


@pytest.mark.parametrize("how", ["hub", "state", "lightning"])
@pytest.mark.parametrize("case", CASES)
def test_families_are_rebuilt_from_names_and_shapes(case: str, how: str, tmp_path: Path) -> None:
    cls, config, task, width = CASES[case]
    reference = cls(config).eval()
    if how == "hub":
        path = hub_file(reference, tmp_path)
    else:
        path = state_file(reference, tmp_path, "model." if how == "lightning" else "")
    loaded = load_model(path)
    assert (loaded.arch, loaded.arch_source) == (f"hf:{cls.__name__}", "fingerprint")
    assert (loaded.task, loaded.num_classes) == (task, width)
    assert any("recognised by names and shapes" in note for note in loaded.notes)
    x = inputs(loaded.modality)
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(**x).logits, reference(**x).logits)


def test_a_backbone_without_head_gives_features(tmp_path: Path) -> None:
    reference = transformers.BertModel(transformers.BertConfig(**TEXT)).eval()
    loaded = load_model(state_file(reference, tmp_path))
    assert (loaded.arch, loaded.task) == ("hf:BertModel", "backbone")
    x = inputs("text")
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(**x), reference(**x).pooler_output)


def test_the_config_beside_a_weight_file_is_used(tmp_path: Path) -> None:
    config = transformers.BertConfig(**{**TEXT, "num_attention_heads": 8}, num_labels=3)
    reference = transformers.BertForSequenceClassification(config).eval()
    reference.save_pretrained(tmp_path)
    loaded = load_model(tmp_path / "model.safetensors")
    assert loaded.arch_source == "config"
    assert any("config.json beside model.safetensors" in note for note in loaded.notes)
    x = inputs("text")
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(**x).logits, reference(**x).logits)


def mini(heads: int) -> nn.Module:
    """MiniLM's width, of which models with 12 and with 6 heads are common."""
    sizes = {**TEXT, "hidden_size": 384, "num_attention_heads": heads}
    config = transformers.BertConfig(**sizes, num_labels=2)
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(config).eval()
    for parameter in model.parameters():  # sharp attention, or heads would hardly matter
        parameter.data.mul_(4)
    return model


def test_numbers_of_heads_are_listed_or_told_by_loss(tmp_path: Path) -> None:
    reference = mini(6)
    path = state_file(reference, tmp_path)
    with pytest.raises(ArchitectureError, match="num_attention_heads=12") as caught:
        load_model(path)
    assert "--arch 'hf:BertForSequenceClassification(num_attention_heads=" in str(caught.value.hint)
    x = inputs("text")
    with torch.no_grad():
        wanted = reference(**x).logits

    def labelled(candidate: Any) -> float:
        with torch.no_grad():
            return float((candidate.model(**x).logits - wanted).square().mean())

    loaded = load_model(path, labelled=labelled)
    name = "hf:BertForSequenceClassification(num_attention_heads=6)"
    assert (loaded.arch, loaded.arch_source) == (name, "loss")
    explicit = load_model(path, arch=name)
    assert explicit.arch_source == "option"
    with torch.no_grad():
        torch.testing.assert_close(explicit.model(**x).logits, wanted)


def test_what_no_shape_tells_is_refused_with_what_is_missing(tmp_path: Path) -> None:
    sizes = {**TEXT, "num_key_value_heads": 1}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))
    with pytest.raises(ArchitectureError, match="LlamaForCausalLM") as caught:
        load_model(state_file(model, tmp_path))
    assert "rope" in str(caught.value)
    assert "config.json" in str(caught.value.hint)


def test_a_near_match_is_no_silent_partial_load(tmp_path: Path) -> None:
    cls, config, _, _ = CASES["sequence"]
    state = dict(cls(config).state_dict())
    del state["bert.encoder.layer.1.output.dense.weight"]
    path = tmp_path / "weights.pt"
    torch.save(state, path)
    with pytest.raises(MismatchError, match=r"layer\.1\.output\.dense\.weight"):
        load_model(path)
    state = dict(cls(config).state_dict())
    state["classifier.weight"] = torch.zeros(4, 7)
    torch.save(state, path)
    with pytest.raises(MismatchError, match="classifier"):
        load_model(path)


def test_bf16_is_cast_and_said(tmp_path: Path) -> None:
    cls, config, _, _ = CASES["sequence"]
    path = tmp_path / "weights.safetensors"
    state = cls(config).to(torch.bfloat16).state_dict()
    save_file({n: t.contiguous() for n, t in state.items()}, path)
    loaded = load_model(path)
    assert "bfloat16 weights were cast to float32" in loaded.notes
    assert {p.dtype for p in loaded.model.parameters()} == {torch.float32}


def test_the_index_knows_the_families_of_every_head() -> None:
    kinds = {
        suffix: {f.model_type for f in load_families() if f.cls.endswith(suffix)}
        for suffix in (
            "ForSequenceClassification",
            "ForTokenClassification",
            "ForImageClassification",
            "ForMaskedLM",
        )
    }
    assert {"bert", "roberta", "deberta-v2", "llama", "t5", "qwen2"} <= kinds[
        "ForSequenceClassification"
    ]
    assert {"bert", "electra", "xlm-roberta"} <= kinds["ForTokenClassification"]
    assert {"vit", "swin", "convnext", "resnet", "dinov2"} <= kinds["ForImageClassification"]
    assert {"bert", "albert", "mpnet"} <= kinds["ForMaskedLM"]
    causal = {f.model_type for f in load_families() if "LM" in f.cls}
    assert {"gpt2", "opt", "llama", "mistral", "gpt_neox"} <= causal


def test_the_index_is_what_the_script_makes() -> None:
    made = build(frozenset({"electra"}))
    assert made["skipped"] == []
    shipped = {(f.cls, f.names) for f in load_families() if f.model_type == "electra"}
    entries = {
        (e["class"], frozenset(made["names"][i] for i in e["names"])) for e in made["families"]
    }
    assert entries == shipped
    assert collapse("bert.encoder.layer.11.output.dense.weight") == (
        "bert.encoder.layer.#.output.dense.weight"
    )
