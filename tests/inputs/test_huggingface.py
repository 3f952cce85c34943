from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from clcurv.errors import ArchitectureError, MismatchError, NumericalError
from clcurv.inputs.architecture import LoadedModel, load_model

SMALL = {
    "vocab_size": 30,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "num_hidden_layers": 2,
}


def bert(**changes: Any) -> transformers.BertConfig:
    return transformers.BertConfig(**{**SMALL, **changes})


def gpt2() -> transformers.GPT2Config:
    return transformers.GPT2Config(
        vocab_size=30, n_layer=2, n_embd=8, n_head=2, bos_token_id=0, eos_token_id=0
    )


def vit() -> transformers.ViTConfig:
    sizes = {"image_size": 16, "patch_size": 8, "num_labels": 3}
    return transformers.ViTConfig(**{**SMALL, **sizes})


def tokens() -> dict[str, Tensor]:
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    return {"input_ids": torch.randint(1, 30, (2, 5)), "attention_mask": mask}


def images() -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(2, 3, 16, 16)}


CASES = {
    "classifier": (transformers.BertForSequenceClassification, bert(num_labels=4), tokens),
    "tokens": (transformers.BertForTokenClassification, bert(num_labels=4), tokens),
    "masked": (transformers.BertForMaskedLM, bert(), tokens),
    "causal": (transformers.GPT2LMHeadModel, gpt2(), tokens),
    "image": (transformers.ViTForImageClassification, vit(), images),
}
EXPECTED = {
    "classifier": ("classification", "text", 4, {"classifier.weight", "classifier.bias"}),
    "tokens": ("classification", "text", 4, {"classifier.weight", "classifier.bias"}),
    "masked": ("masked-lm", "text", 30, None),
    "causal": ("causal-lm", "text", 30, set()),
    "image": ("classification", "image", 3, {"classifier.weight", "classifier.bias"}),
}


@pytest.mark.parametrize("case", CASES)
def test_folders_load_as_their_own_class_and_differentiate_twice(case: str, tmp_path: Path) -> None:
    cls, config, inputs = CASES[case]
    reference = cls(config).eval()
    reference.save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    task, modality, width, head = EXPECTED[case]
    assert (loaded.arch, loaded.arch_source) == (f"hf:{cls.__name__}", "config")
    assert (loaded.task, loaded.modality, loaded.num_classes) == (task, modality, width)
    if head is not None:
        assert set(loaded.head_params) == head
    assert type(loaded.model) is cls
    x = inputs()
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(**x).logits, reference(**x).logits)
    assert_second_derivative(loaded, x)


def assert_second_derivative(loaded: LoadedModel, x: dict[str, Tensor]) -> None:
    params = list(loaded.model.parameters())
    with sdpa_kernel(SDPBackend.MATH):
        out = loaded.model(**x)
        value = (out if isinstance(out, Tensor) else out.logits).square().mean()
        first = torch.autograd.grad(value, params, create_graph=True, allow_unused=True)
        product = sum(g.square().sum() for g in first if g is not None)
        second = torch.autograd.grad(product, params, allow_unused=True)
    assert any(g is not None and bool(g.abs().sum() > 0) for g in second)


def test_tied_head_is_reported_and_is_no_head(tmp_path: Path) -> None:
    transformers.GPT2LMHeadModel(gpt2()).save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    assert loaded.head_params == ()
    assert any("lm_head.weight" in note and "tied" in note for note in loaded.notes)


def test_labels_and_class_count(tmp_path: Path) -> None:
    config = bert(id2label={0: "bad", 1: "good"})
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path)
    assert load_model(tmp_path).id2label == {0: "bad", 1: "good"}
    with pytest.raises(MismatchError, match="2 classes, 7 were asked for"):
        load_model(tmp_path, num_classes=7)


def test_one_label_means_regression(tmp_path: Path) -> None:
    transformers.BertForSequenceClassification(bert(num_labels=1)).save_pretrained(tmp_path)
    assert load_model(tmp_path).task == "regression"


def test_random_head_is_refused(tmp_path: Path) -> None:
    """transformers would fill it with random numbers and only warn."""
    transformers.BertModel(bert()).save_pretrained(tmp_path)
    change_config(tmp_path, architectures=["BertForSequenceClassification"])
    with pytest.raises(MismatchError, match=r"head: classifier\.bias"):
        load_model(tmp_path)


def test_wrong_config_is_a_mismatch(tmp_path: Path) -> None:
    transformers.BertModel(bert()).save_pretrained(tmp_path)
    change_config(tmp_path, hidden_size=16)
    with pytest.raises(MismatchError, match="shapes differ"):
        load_model(tmp_path)
    change_config(tmp_path, hidden_size=8, num_hidden_layers=3)
    with pytest.raises(MismatchError, match="missing"):
        load_model(tmp_path)


def test_nan_and_unknown_classes(tmp_path: Path) -> None:
    model = transformers.BertModel(bert())
    nn.init.constant_(model.encoder.layer[0].output.dense.weight, float("nan"))
    model.save_pretrained(tmp_path)
    with pytest.raises(NumericalError, match=r"encoder\.layer\.0\.output\.dense\.weight"):
        load_model(tmp_path)
    change_config(tmp_path, architectures=["NoSuchModel"])
    with pytest.raises((ArchitectureError, NumericalError)):
        load_model(tmp_path)


def test_unsupported_task(tmp_path: Path) -> None:
    transformers.BertForQuestionAnswering(bert()).save_pretrained(tmp_path)
    with pytest.raises(ArchitectureError, match="neither a classifier"):
        load_model(tmp_path)


def test_backbone_with_pooler_gives_its_output(tmp_path: Path) -> None:
    reference = transformers.BertModel(bert()).eval()
    reference.save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    assert (loaded.task, loaded.num_classes, loaded.head_params) == ("backbone", None, ())
    x = tokens()
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(**x), reference(**x).pooler_output)
    assert any("pooler" in note for note in loaded.notes)
    assert_second_derivative(loaded, x)
    assert {n for n, _ in loaded.model.named_parameters()} == {
        n for n, _ in reference.named_parameters()
    }


def test_sentence_transformer_is_the_masked_mean(tmp_path: Path) -> None:
    reference = transformers.BertModel(bert()).eval()
    reference.save_pretrained(tmp_path)
    (tmp_path / "modules.json").write_text("[]")
    (tmp_path / "1_Pooling").mkdir()
    pooling = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    loaded = load_model(tmp_path)
    x = tokens()
    with torch.no_grad():
        hidden = reference(**x).last_hidden_state
        expected = torch.stack([hidden[0].mean(0), hidden[1, :3].mean(0)])
        torch.testing.assert_close(loaded.model(**x), expected)
    assert any("attention mask" in note for note in loaded.notes)
    assert not any("pooler" in name for name, _ in loaded.model.named_parameters())


def test_image_backbone(tmp_path: Path) -> None:
    reference = transformers.ViTModel(vit(), add_pooling_layer=False).eval()
    reference.save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    assert (loaded.task, loaded.modality) == ("backbone", "image")
    with torch.no_grad():
        x = images()
        torch.testing.assert_close(loaded.model(**x), reference(**x).last_hidden_state[:, 0])


def test_bin_shards_load_too(tmp_path: Path) -> None:
    model = transformers.BertModel(bert())
    state = model.state_dict()
    names = list(state)
    model.config.architectures = ["BertModel"]
    model.config.save_pretrained(tmp_path)
    weight_map = {}
    for index, some in enumerate((names[::2], names[1::2])):
        file = f"pytorch_model-0000{index + 1}-of-00002.bin"
        torch.save({name: state[name] for name in some}, tmp_path / file)
        weight_map |= dict.fromkeys(some, file)
    index_file = tmp_path / "pytorch_model.bin.index.json"
    index_file.write_text(json.dumps({"weight_map": weight_map}))
    loaded = load_model(tmp_path)
    assert loaded.matched_fraction == 1.0
    assert torch.equal(loaded.model.state_dict()[names[0]], state[names[0]])


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


TOWER = {
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
}


@pytest.mark.parametrize("family", ["CLIP", "Siglip"])
def test_models_of_text_and_images_give_their_vision_tower(family: str, tmp_path: Path) -> None:
    text = {"vocab_size": 30, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    text |= {"num_attention_heads": 2, "projection_size": 8}
    config = getattr(transformers, f"{family}Config")(text_config=text, vision_config=TOWER)
    reference = getattr(transformers, f"{family}Model")(config).eval()
    for parameter in reference.parameters():
        nn.init.normal_(parameter, std=0.3)
    reference.save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    assert (loaded.arch, loaded.task) == (f"hf:{family}VisionModel", "backbone")
    assert loaded.modality == "image"
    assert any("text tower" in note for note in loaded.notes)
    with torch.no_grad():
        x = images()
        expected = reference.vision_model(**x).pooler_output
        torch.testing.assert_close(loaded.model(**x), expected)


def test_mae_folder_hides_no_patches(tmp_path: Path) -> None:
    config = transformers.ViTMAEConfig(
        **TOWER, decoder_hidden_size=8, decoder_num_hidden_layers=1, decoder_num_attention_heads=2
    )
    transformers.ViTMAEForPreTraining(config).save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    assert (loaded.arch, loaded.task) == ("hf:ViTModel", "backbone")
    assert loaded.missing == ()
    assert any("hides no patches" in note for note in loaded.notes)
    x = images()
    config.mask_ratio = 0.0
    masked = transformers.ViTMAEModel.from_pretrained(tmp_path, config=config).eval()
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(**x), loaded.model(**x), atol=0, rtol=0)
        torch.testing.assert_close(loaded.model(**x), masked(**x).last_hidden_state[:, 0])


def test_masked_image_modelling_gives_the_encoder(tmp_path: Path) -> None:
    config = transformers.BeitConfig(**TOWER, vocab_size=12, use_shared_relative_position_bias=True)
    reference = transformers.BeitForMaskedImageModeling(config).eval()
    reference.save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    assert (loaded.arch, loaded.task) == ("hf:BeitModel", "backbone")
    x = images()
    with torch.no_grad():
        expected = reference.beit(**x).last_hidden_state[:, 0]
        torch.testing.assert_close(loaded.model(**x), expected)


def test_a_config_without_a_class_is_asked_for_its_family(tmp_path: Path) -> None:
    reference = transformers.BertForTokenClassification(bert(num_labels=4)).eval()
    reference.save_pretrained(tmp_path)
    change_config(tmp_path, architectures=None)
    loaded = load_model(tmp_path)
    assert loaded.arch == "hf:BertForTokenClassification"
    x = tokens()
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(**x).logits, reference(**x).logits)
