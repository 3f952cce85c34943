"""Inputs made up from what the model states, labelled by the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from datamakers import WORDS, MeanEmbedding, bert, image_model
from torch import nn

from clcurv.errors import DataError, NumericalError, UsageError
from clcurv.inputs.generated import generate_samples
from clcurv.inputs.live import wrap_module
from clcurv.inputs.loaded import LoadedModel
from clcurv.inputs.tokens import IGNORED

BIG = {"input_size": (3, 64, 64), "mean": (0.5, 0.5, 0.5), "std": (0.1, 0.1, 0.1)}


def test_images_have_a_one_over_f_spectrum_and_the_models_statistics() -> None:
    sample = generate_samples(image_model(preprocess=BIG), n=200)
    images = sample.inputs
    assert isinstance(images, torch.Tensor)
    assert images.shape == (200, 3, 64, 64)
    assert images.dtype == torch.float32
    assert images.mean((0, 2, 3)).abs().max().item() < 0.02
    assert images.std((0, 2, 3)).sub(1).abs().max().item() < 0.05
    power = np.abs(np.fft.rfft2(images[:, 0].double().numpy())).mean(0)
    frequency = np.hypot(np.fft.fftfreq(64)[:, None], np.fft.rfftfreq(64)[None, :])
    band = (frequency > 2 / 64) & (frequency < 0.4)
    slope = np.polyfit(np.log(frequency[band]), np.log(power[band]), 1)[0]
    assert slope == pytest.approx(-1, abs=0.05)
    correlation = torch.corrcoef(images.movedim(1, 0).reshape(3, -1))
    assert correlation[0, 1].item() == pytest.approx(0.95, abs=0.02)
    assert (sample.source, sample.label_source) == ("generated", "model")


def test_images_stay_within_pixels() -> None:
    config = {"input_size": (3, 16, 16), "mean": (0.1, 0.5, 0.9), "std": (0.3, 0.3, 0.3)}
    images = generate_samples(image_model(preprocess=config), n=50).inputs
    assert isinstance(images, torch.Tensor)
    mean = torch.tensor(config["mean"]).view(3, 1, 1)
    pixels = images * 0.3 + mean
    assert pixels.min() > -1e-6
    assert pixels.max() < 1 + 1e-6


def test_generated_samples_repeat_by_seed_whatever_the_batch() -> None:
    model = image_model(4)
    one = generate_samples(model, n=30, seed=1)
    assert generate_samples(model, n=30, seed=1).digest == one.digest
    assert generate_samples(model, n=30, seed=1, batch_size=7).digest == one.digest
    assert generate_samples(model, n=30, seed=2).digest != one.digest
    assert sum(one.class_counts.values()) == 30


class Fixed(nn.Module):
    """Always the same logits."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.logits.expand(len(x), *self.logits.shape)


def loaded(model: nn.Module, task: str, modality: str = "image") -> LoadedModel:
    config = {**BIG, "input_size": (3, 8, 8)}
    return LoadedModel(model.eval(), "module:x", "given", modality, task, 3, (), config)  # type: ignore[arg-type]


def test_labels_follow_the_models_softmax() -> None:
    shares = torch.tensor([0.6, 0.3, 0.1])
    sample = generate_samples(loaded(Fixed(shares.log()), "classification"), n=1500)
    assert sample.targets.dtype == torch.int64
    found = torch.bincount(sample.targets, minlength=3) / 1500
    assert torch.allclose(found, shares, atol=0.04)


def test_regression_targets_scatter_about_the_output() -> None:
    sample = generate_samples(loaded(Fixed(torch.tensor([5.0, -5.0])), "regression"), n=1000)
    assert sample.targets.shape == (1000, 2)
    assert sample.targets.mean(0).tolist() == pytest.approx([5, -5], abs=0.15)
    assert sample.targets.std(0).tolist() == pytest.approx([1, 1], abs=0.1)
    assert sample.class_counts == {}


def test_texts_are_words_between_the_tokenizers_own_tokens(tmp_path: Path) -> None:
    model = bert("classification", tmp_path)
    sample = generate_samples(model, n=20)
    assert isinstance(sample.inputs, dict)
    ids = sample.inputs["input_ids"]
    assert ids.shape == (20, 12)
    assert (ids[:, 0] == 2).all()
    assert (ids[:, -1] == 3).all()
    assert ids[:, 1:-1].min() >= 5
    assert ids.max() < len(WORDS)
    assert set(sample.targets.tolist()) <= {0, 1}


def test_a_classifier_of_tokens_has_a_label_a_token() -> None:
    network = nn.Embedding.from_pretrained(100 * torch.eye(3))  # sure that word i is of class i
    sample = generate_samples(loaded(network, "classification", "text"), n=30)
    assert isinstance(sample.inputs, torch.Tensor)
    assert torch.equal(sample.targets, sample.inputs)
    assert sum(sample.class_counts.values()) == sample.inputs.numel()


def test_texts_without_a_tokenizer_take_the_embedding() -> None:
    sample = generate_samples(loaded(MeanEmbedding(9, 3), "classification", "text"), n=30)
    assert isinstance(sample.inputs, torch.Tensor)
    assert sample.inputs.max() == 8


class Successor(nn.Module):
    """Is sure that token t is followed by t + 1."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 10)
        with torch.no_grad():
            self.embedding.weight.copy_(100 * torch.eye(10).roll(1, 1))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.embedding(tokens)


def test_causal_targets_come_one_after_the_token_that_predicts_them() -> None:
    sample = generate_samples(loaded(Successor(), "causal-lm", "text"), n=5)
    assert isinstance(sample.inputs, torch.Tensor)
    assert (sample.targets[:, 0] == IGNORED).all()
    assert torch.equal(sample.targets[:, 1:], (sample.inputs[:, :-1] + 1) % 10)


def test_masked_targets_sit_at_scored_places_only(tmp_path: Path) -> None:
    sample = generate_samples(bert("masked-lm", tmp_path), n=10)
    assert isinstance(sample.inputs, dict)
    scored = sample.targets != IGNORED
    assert (scored.sum(1) >= 1).all()
    masked = sample.inputs["input_ids"] == WORDS.index("[MASK]")
    assert scored[masked].all()
    assert sample.targets[scored].max() < len(WORDS)


def test_what_cannot_be_generated_is_refused_with_a_way_out() -> None:
    with pytest.raises(DataError, match="no head") as caught:
        generate_samples(image_model(None))
    assert "--head linear-probe" in (caught.value.hint or "")
    for model in (image_model(modality="array"), image_model(preprocess={})):
        with pytest.raises(DataError) as caught:
            generate_samples(model)
        assert "--data" in (caught.value.hint or "")
    with pytest.raises(UsageError):
        generate_samples(image_model(), n=0)


def test_weights_of_nan_are_a_numerical_error() -> None:
    with pytest.raises(NumericalError, match="not finite"):
        generate_samples(loaded(Fixed(torch.tensor([float("nan"), 0.0])), "classification"), n=4)


def test_the_models_state_and_the_global_seed_are_untouched() -> None:
    model = image_model()
    before = {k: v.clone() for k, v in model.model.state_dict().items()}
    state = torch.random.get_rng_state()
    generate_samples(model, n=4)
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.equal(v, model.model.state_dict()[k]) for k, v in before.items())
    assert all(p.grad is None and p.requires_grad for p in model.model.parameters())


@pytest.mark.parametrize("kind", ["T5", "Bart"])
def test_classifiers_that_read_the_end_of_a_text_get_one(kind: str) -> None:
    """Without a tokenizer: as many ends in every text, or their forward refuses the batch."""
    small = {"vocab_size": 40, "d_model": 16, "num_labels": 3}
    if kind == "T5":
        small |= {
            "d_kv": 8,
            "d_ff": 16,
            "num_layers": 1,
            "num_heads": 2,
            "decoder_start_token_id": 0,
        }
    else:
        small |= {"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16}
        small |= {"decoder_ffn_dim": 16, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    config = getattr(transformers, f"{kind}Config")(**small)
    model = getattr(transformers, f"{kind}ForSequenceClassification")(config).eval()
    samples = generate_samples(wrap_module(model), n=6)
    assert isinstance(samples.inputs, dict)
    ids = samples.inputs["input_ids"]
    assert bool((ids[:, -1] == config.eos_token_id).all())
    assert bool(((ids == config.eos_token_id).sum(1) == 1).all())
    assert samples.targets.shape == (6,)
