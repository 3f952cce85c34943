"""Labels that come with the tokens of a language model, against the loss of transformers."""

from __future__ import annotations

from typing import Any

import datasets
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

from clcurv.curvature.objective import Objective
from clcurv.errors import DataError, MismatchError
from clcurv.inputs.dataset import Samples, load_samples
from clcurv.inputs.loaded import LoadedModel

SIZE = 11


def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=SIZE, n_positions=8, n_embd=8, n_layer=1, n_head=2, bos_token_id=1,
            eos_token_id=1,
        )
    ).eval()  # fmt: skip


def bert() -> BertForMaskedLM:
    torch.manual_seed(0)
    return BertForMaskedLM(
        BertConfig(
            vocab_size=SIZE, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=12, max_position_embeddings=8,
        )
    ).eval()  # fmt: skip


def loaded(model: Any, task: str) -> LoadedModel:
    return LoadedModel(
        model=model, arch="x", arch_source="given", modality="text", task=task, num_classes=None
    )


def given() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    ids = torch.randint(0, SIZE, (40, 7))
    labels = ids.clone()
    labels[:, :5] = -100  # the prompt
    return ids, labels


def mean_loss(model: Any, samples: Samples, name: str) -> float:
    objective = Objective(name)
    with torch.no_grad():
        batches = samples.split(16)
        total = sum(float(objective.loss_sum(model, batch)) for batch in batches)
    return total / sum(objective.terms(batch.targets) for batch in batches)


FORMS = {
    "pair": lambda ids, labels: ({"input_ids": ids}, labels),
    "mapping": lambda ids, labels: {"input_ids": ids, "labels": labels},
    "loader": lambda ids, labels: DataLoader(
        [{"input_ids": i, "labels": x} for i, x in zip(ids, labels, strict=True)], batch_size=8
    ),
    "datasets": lambda ids, labels: datasets.Dataset.from_dict(
        {"input_ids": ids.tolist(), "labels": labels.tolist()}
    ),
    "npz": lambda ids, labels: (ids.numpy(), labels.numpy()),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_prompt_is_not_scored(form: str) -> None:
    model, (ids, labels) = gpt2(), given()
    samples = load_samples(FORMS[form](ids, labels), loaded(model, "causal-lm"), n=40)
    expected = float(model(input_ids=ids, labels=labels).loss.detach())
    assert mean_loss(model, samples, "next-token") == pytest.approx(expected, rel=1e-6)
    assert Objective("next-token").terms(samples.targets) == 80
    assert any("80 tokens" in note for note in samples.notes)


def test_words_that_are_masked_already_stay_so() -> None:
    model, (ids, labels) = bert(), given()
    samples = load_samples({"input_ids": ids, "labels": labels}, loaded(model, "masked-lm"), n=40)
    expected = float(model(input_ids=ids, labels=labels).loss.detach())
    assert mean_loss(model, samples, "masked-lm") == pytest.approx(expected, rel=1e-6)
    assert isinstance(samples.inputs, dict)
    assert torch.equal(samples.inputs["input_ids"].sort(0).values, ids.sort(0).values)


def test_classes_are_no_tokens() -> None:
    model, (ids, _) = gpt2(), given()
    samples = load_samples(({"input_ids": ids}, [0, 1] * 20), loaded(model, "causal-lm"), n=40)
    assert Objective("next-token").terms(samples.targets) == 240
    assert any("labels left out" in note for note in samples.notes)


@pytest.mark.parametrize(("label", "error"), [(SIZE, MismatchError), (-3, MismatchError)])
def test_labels_outside_the_vocabulary(label: int, error: type[Exception]) -> None:
    ids, labels = given()
    labels[3, 6] = label
    with pytest.raises(error, match=f"label {label} is no token of {SIZE}"):
        load_samples(({"input_ids": ids}, labels), loaded(gpt2(), "causal-lm"), n=40)


def test_nothing_to_score() -> None:
    ids, _ = given()
    with pytest.raises(DataError, match="no token is scored"):
        load_samples(
            ({"input_ids": ids}, np.full((40, 7), -100)), loaded(gpt2(), "causal-lm"), n=40
        )
