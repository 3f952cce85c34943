"""L2-ER as a callback of transformers' own Trainer, against the same steps in a plain loop."""

import copy
import warnings

import pytest
import torch
from torch.nn import functional
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from clcurv.training import L2ER

COEFFICIENTS = {
    "weight_decay": 1e-2, "er_lr": 0.05, "er_every": 2, "window": 14,
    "layers": ["bert.encoder.layer.0.output.dense", "classifier"],
}  # fmt: skip


def bert():
    torch.manual_seed(0)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=12, max_position_embeddings=8, num_labels=3, pad_token_id=0,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )
    )  # fmt: skip


class Rows(torch.utils.data.Dataset):
    """24 padded texts; remembers in which order they were taken."""

    def __init__(self):
        g = torch.Generator().manual_seed(3)
        self.ids = torch.randint(1, 30, (24, 6), generator=g)
        self.mask = (torch.arange(6) < torch.randint(2, 7, (24, 1), generator=g)).long()
        self.taken = []

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        self.taken.append(i)
        return self.row(i)

    def row(self, i):
        return {
            "input_ids": self.ids[i] * self.mask[i],
            "attention_mask": self.mask[i],
            "labels": int(self.ids[i].sum()) % 3,
        }

    def batch(self, indices):
        rows = [self.row(i) for i in indices]
        return {k: torch.stack([torch.as_tensor(r[k]) for r in rows]) for k in rows[0]}


def mean_loss(outputs, labels, num_items_in_batch):
    """Over all micro-batches of a step: how the Trainer divides by itself depends on the model."""
    return functional.cross_entropy(outputs.logits, labels, reduction="sum") / num_items_in_batch


def run(model, folder, *, steps, accumulate=1, resume=None, **more):
    """Trains; returns the order of the samples and the regulariser."""
    arguments = TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=4, max_steps=steps, learning_rate=0.05,
        weight_decay=0.0, lr_scheduler_type="constant", optim="sgd", max_grad_norm=0.0,
        report_to=[], use_cpu=True, disable_tqdm=True, gradient_accumulation_steps=accumulate,
        logging_strategy="no", **more,
    )  # fmt: skip
    data, reg = Rows(), L2ER(model, **COEFFICIENTS)
    built = Trainer(
        model, arguments, train_dataset=data, compute_loss_func=mean_loss,
        callbacks=[reg.callback()],
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the Trainer's own
        built.train(resume_from_checkpoint=resume)
    return data, reg


def close(a, b):
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_steps_are_those_of_a_plain_loop(tmp_path, accumulate):
    model, other = bert(), bert()
    data, done = run(model, tmp_path, steps=4, accumulate=accumulate, save_strategy="no")
    assert (done.steps, done.skipped) == (2, 0)
    assert not model._forward_pre_hooks

    reg = L2ER(other, **COEFFICIENTS)
    sgd = torch.optim.SGD(other.parameters(), lr=0.05, weight_decay=reg.weight_decay)
    for k in range(4):
        sgd.zero_grad()
        parts = []
        for j in range(accumulate):
            start = 4 * (k * accumulate + j)
            batch = data.batch(data.taken[start : start + 4])
            labels = batch.pop("labels")
            mean_loss(other(**batch), labels, 4 * accumulate).backward()
            parts.append(batch)
        sgd.step()
        reg.step_all(parts)
    close(model, other)


def test_resumed_training_takes_up_the_window(tmp_path):
    whole, model = bert(), bert()
    run(whole, tmp_path / "whole", steps=6, save_strategy="no")
    run(model, tmp_path / "cut", steps=3, save_strategy="steps", save_steps=3)
    checkpoint = tmp_path / "cut" / "checkpoint-3"
    assert (checkpoint / "l2er.pt").is_file()
    later = copy.deepcopy(model)
    _, reg = run(later, tmp_path / "cut", steps=6, resume=str(checkpoint), save_strategy="no")
    assert reg.steps == 3  # the fourth batch completes the window begun before the checkpoint
    close(later, whole)
