"""Inputs for a model without data: noise that looks like its data, labelled by itself.

A stand-in, never the real thing: reports say ``generated`` and gates come out inconclusive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clcurv.errors import DataError, NumericalError, UsageError
from clcurv.inputs.dataset import Samples
from clcurv.inputs.execution import forward_faults
from clcurv.inputs.loaded import LoadedModel
from clcurv.inputs.preprocess import ImageSpec, image_spec
from clcurv.inputs.sampling import sample_digest
from clcurv.inputs.tokens import (
    IGNORED,
    is_hugging_face,
    load_tokenizer,
    mask_tokens,
    max_tokens,
    vocabulary,
)

# Neighbouring colour channels of photographs correlate at 0.9 and above (the first principal
# component of RGB is close to brightness: Ruderman, Cronin & Chiao 1998).
_CHANNEL_CORRELATION = 0.95
_TOKENS = 64


def generate_samples(
    loaded: LoadedModel, *, n: int = 512, seed: int = 0, batch_size: int = 32
) -> Samples:
    """Make inputs with the statistics the model states, and sample labels from the model.

    Images have a 1/f amplitude spectrum (Field 1987), the model's own mean and standard
    deviation per channel, and stay within what pixels in 0..1 can be. Texts are random
    words of the vocabulary between the tokenizer's own special tokens. Labels are drawn
    from the softmax of the model's prediction; a language model's tokens are scored against
    draws from its own next-token (or masked-token) distribution; a regression's targets are
    its outputs plus unit Gaussian noise. So the loss is that of a model that is right about
    the world, and its Fisher and Hessian agree in expectation.

    Args:
        loaded: The model; it needs a head.
        n: Samples to make.
        seed: Of inputs, masking and labels.
        batch_size: Rows per forward pass.

    Raises:
        DataError: The model has no head, or nothing states what its inputs look like.
        NumericalError: Its outputs are not finite.
        UsageError: `n` is not positive.
    """
    if n < 1:
        raise UsageError(f"a sample of {n} was asked for", hint="give --samples 512")
    if loaded.task == "backbone":
        raise DataError(
            f"{loaded.arch} has no head, so generated inputs cannot be labelled",
            hint="fit a head on labelled data: --head linear-probe --data ...",
        )
    rng = np.random.default_rng([seed, 1])
    generator = torch.Generator().manual_seed(seed)
    inputs: Tensor | dict[str, Tensor]
    if loaded.modality == "image":
        images, note = _images(image_spec(loaded), n, rng)
        inputs = {"pixel_values": images} if is_hugging_face(loaded) else images
    elif loaded.modality == "text":
        inputs, note = _texts(loaded, n, rng)
    else:
        raise DataError(
            f"nothing states what the inputs of {loaded.arch} look like",
            hint="give a data set with --data",
        )
    scored = None
    if loaded.task == "masked-lm":
        inputs, masked = mask_tokens(inputs, vocabulary(loaded, load_tokenizer(loaded)), seed=seed)
        scored = masked != IGNORED
    targets = torch.cat(
        [
            _own_labels(loaded, _rows(inputs, start, batch_size), generator)
            for start in range(0, n, batch_size)
        ]
    )
    if scored is not None:
        targets = targets.masked_fill(~scored, IGNORED)
    # A classifier of tokens has a label a token.
    labels = targets.flatten().tolist() if loaded.task == "classification" else []
    classes = Counter[int](labels)
    return Samples(
        inputs=inputs,
        targets=targets,
        source="generated",
        label_source="model",
        format="generated",
        class_counts=dict(sorted(classes.items())),
        available=n,
        seed=seed,
        digest=sample_digest(inputs, targets),
        notes=(note, "labels drawn from the model's own prediction"),
    )


def _images(spec: ImageSpec, n: int, rng: np.random.Generator) -> tuple[Tensor, str]:
    if spec.size is None:
        raise DataError(
            "nothing states the size of the model's images", hint="give a data set with --data"
        )
    height, width = spec.size
    noise = rng.standard_normal((n, spec.channels, height, width))
    index = np.arange(spec.channels)
    correlation = _CHANNEL_CORRELATION ** np.abs(index[:, None] - index[None, :])
    noise = np.einsum("ij,njhw->nihw", np.linalg.cholesky(correlation), noise)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :])
    # The mean brightness varies between photographs too: give it the lowest frequency's power.
    frequency[0, 0] = 1.0 / max(height, width)
    images = np.fft.irfft2(np.fft.rfft2(noise) / frequency, s=(height, width))
    axes = (0, 2, 3)
    images -= images.mean(axes, keepdims=True)
    images /= images.std(axes, keepdims=True)
    if spec.mean is not None and spec.std is not None:
        mean, std = (np.array(v)[:, None, None] for v in (spec.mean, spec.std))
        images = np.clip(images, -mean / std, (1 - mean) / std)
    note = f"1/f noise images of {spec.channels}x{height}x{width} with the model's own statistics"
    return torch.from_numpy(images.astype(np.float32)), note


def _texts(
    loaded: LoadedModel, n: int, rng: np.random.Generator
) -> tuple[Tensor | dict[str, Tensor], str]:
    tokenizer = load_tokenizer(loaded)
    words = vocabulary(loaded, tokenizer).words()
    if not words.size:
        raise DataError("the model's vocabulary holds special tokens only")
    length = min(max_tokens(loaded, tokenizer), _TOKENS)
    before, after = _frame(tokenizer)
    config = getattr(loaded.model, "config", None)
    end = getattr(config, "eos_token_id", None)
    if tokenizer is None and isinstance(end, int) and getattr(config, "is_encoder_decoder", False):
        after = [end]  # the classifiers of BART and T5 read their features there
        words = words[words != end]
    inside = length - len(before) - len(after)
    if inside < 1:
        raise DataError(f"the model takes {length} tokens, no more than its special tokens")
    ids = np.concatenate(
        [
            np.tile(np.array(before, dtype=np.int64), (n, 1)),
            rng.choice(words, size=(n, inside)),
            np.tile(np.array(after, dtype=np.int64), (n, 1)),
        ],
        axis=1,
    )
    tokens = torch.from_numpy(ids)
    note = f"random words of the vocabulary, {length} tokens each"
    if not is_hugging_face(loaded):
        return tokens, note
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}, note


def _frame(tokenizer: Any | None) -> tuple[list[int], list[int]]:
    """Special tokens that the tokenizer puts before and after a text."""
    if tokenizer is None:
        return [], []
    ids = list(tokenizer("a a")["input_ids"])
    bare = list(tokenizer("a a", add_special_tokens=False)["input_ids"])
    for start in range(len(ids) - len(bare) + 1):
        if ids[start : start + len(bare)] == bare:
            return ids[:start], ids[start + len(bare) :]
    return [], []


def _rows(
    inputs: Tensor | Mapping[str, Tensor], start: int, size: int
) -> Tensor | dict[str, Tensor]:
    rows = slice(start, start + size)
    if isinstance(inputs, Tensor):
        return inputs[rows]
    return {name: value[rows] for name, value in inputs.items()}


@torch.no_grad()
def _own_labels(
    loaded: LoadedModel, inputs: Tensor | dict[str, Tensor], generator: torch.Generator
) -> Tensor:
    with forward_faults():
        output = loaded.model(inputs) if isinstance(inputs, Tensor) else loaded.model(**inputs)
    logits: Tensor = (output if isinstance(output, Tensor) else output.logits).float().cpu()
    if not torch.isfinite(logits).all():
        raise NumericalError(
            f"the outputs of {loaded.arch} on generated inputs are not finite",
            hint="check the weights for NaN",
        )
    if loaded.task == "regression":
        flat = logits.reshape(len(logits), -1)
        return flat + torch.randn(flat.shape, generator=generator)
    probabilities = logits.softmax(-1).reshape(-1, logits.shape[-1])
    drawn = torch.multinomial(probabilities, 1, generator=generator).reshape(logits.shape[:-1])
    if loaded.task == "causal-lm":
        # The logits at t predict the token at t + 1, and targets are not shifted here.
        first = torch.full_like(drawn[:, :1], IGNORED)
        return torch.cat([first, drawn[:, :-1]], dim=1)
    return drawn
