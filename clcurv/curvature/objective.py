"""The loss as a mean over loss terms: samples, or scored tokens.

Every operator divides a *sum* of terms by the number of terms in the whole sample, once;
so a ragged last batch or a batch full of padding weighs exactly what it should.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from clcurv.errors import MismatchError, UsageError
from clcurv.inputs.dataset import Batch
from clcurv.inputs.loss_names import LOSSES

IGNORE_INDEX = -100
BATCH_TOLERANCE = 1e-2  # of the outputs: other batch sizes take other kernels


def forward(model: nn.Module, batch: Batch) -> Tensor:
    """The model's raw output for a batch (``.logits``, or the first of a tuple)."""
    output = model(batch.inputs) if isinstance(batch.inputs, Tensor) else model(**batch.inputs)
    output = getattr(output, "logits", output)
    if isinstance(output, tuple | list):
        output = output[0]
    if not isinstance(output, Tensor):
        raise MismatchError(
            f"the model returns {type(output).__name__}, not a tensor or an object with .logits"
        )
    if output.ndim == 0 or not output.is_floating_point():
        raise MismatchError(
            f"the model returns {str(output.dtype).removeprefix('torch.')} numbers of shape "
            f"{tuple(output.shape)}, not real ones for every sample",
            hint="measure the network that gives logits or predictions, before argmax or its loss",
        )
    return output


def part(batch: Batch, start: int, stop: int) -> Batch:
    """Some samples of a batch."""
    rows, inputs = slice(start, stop), batch.inputs
    if isinstance(inputs, Tensor):
        return Batch(inputs[rows], batch.targets[rows])
    return Batch({k: v[rows] for k, v in inputs.items()}, batch.targets[rows])


@dataclass(frozen=True)
class Objective:
    """A loss that is a mean over terms.

    Attributes:
        name: ``cross-entropy`` (class ids, or per-token ids with -100 ignored),
            ``mse`` (mean over outputs of the squared error; class ids become one-hot),
            ``next-token`` (causal language model; targets are shifted here),
            ``masked-lm`` (cross-entropy at the masked positions).
        scale: Constant factor on the loss (curvature is proportional to it).
    """

    name: str = "cross-entropy"
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.name not in LOSSES:
            raise UsageError(
                f"unknown loss {self.name!r}",
                hint=f"--loss {' | '.join(LOSSES)} | file.py:function",
            )

    def terms(self, targets: Tensor) -> int:
        """Number of loss terms behind targets, shape as in `Batch`."""
        if self.name == "mse":
            return len(targets)
        if self.name == "next-token":
            targets = targets[:, 1:]
        return int((targets != IGNORE_INDEX).sum())

    def rows(self, output: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Output and targets with one row a term: (T, C) and (T,), or (T, k) twice for mse.

        Raises:
            MismatchError: If shapes or labels do not fit the output.
        """
        if self.name == "mse":
            output = output.reshape(len(output), -1)
            if not targets.is_floating_point():
                _check_labels(targets, output.shape[1])
                targets = functional.one_hot(targets, output.shape[1])
            targets = targets.reshape(len(targets), -1).to(output.dtype)
            if targets.shape != output.shape:
                raise MismatchError(
                    f"targets of width {targets.shape[1]} do not fit outputs "
                    f"of width {output.shape[1]}"
                )
            return output, targets
        if targets.is_floating_point():
            raise MismatchError(f"{self.name} takes class ids, and the targets are fractions")
        if self.name == "next-token":
            if targets.ndim != 2 or output.ndim != 3:
                raise MismatchError(
                    f"next-token takes a sequence of tokens a sample: output of shape "
                    f"{tuple(output.shape)}, targets of shape {tuple(targets.shape)}"
                )
            output, targets = output[:, :-1], targets[:, 1:]
        if output.shape[:-1] != targets.shape:
            if output.ndim > 2 and output.shape[:1] + output.shape[2:] == targets.shape:
                output = output.movedim(1, -1)  # dense prediction, classes second
            else:
                raise MismatchError(
                    f"output of shape {tuple(output.shape)} does not fit "
                    f"targets of shape {tuple(targets.shape)} for {self.name}"
                )
        output, targets = output.reshape(-1, output.shape[-1]), targets.reshape(-1)
        scored = targets != IGNORE_INDEX
        if not bool(scored.all()):
            output, targets = output[scored], targets[scored]
        _check_labels(targets, output.shape[-1])
        return output, targets

    def per_term(self, rows: Tensor, targets: Tensor) -> Tensor:
        """Loss of every term, shape (T,), of what `rows` returned."""
        if self.name == "mse":
            return self.scale * (rows - targets).square().mean(dim=1)
        return self.scale * functional.cross_entropy(rows, targets, reduction="none")

    def output(self, model: nn.Module, batch: Batch) -> Any:
        """What `losses` takes: the model's output for a batch."""
        return forward(model, batch)

    def losses(self, output: Any, targets: Tensor) -> Tensor:
        """Loss of every term, shape (T,), of what `output` returned, with its graph."""
        return self.per_term(*self.rows(output, targets))

    def hits(self, output: Any, targets: Tensor) -> int | None:
        """Correctly predicted terms; None where the loss does not tell what is correct."""
        if self.name == "mse":
            return None
        rows, labels = self.rows(output, targets)
        return int((rows.argmax(1) == labels).sum())

    def loss_sum(self, model: nn.Module, batch: Batch) -> Tensor:
        """Sum of the loss over the terms of a batch, with its graph."""
        return self.losses(self.output(model, batch), batch.targets).sum()

    @torch.no_grad()
    def check(self, model: nn.Module, batch: Batch) -> None:
        """Whether a sample's output is its own, whatever else is in the batch.

        Batch statistics would give numbers that depend on the size of the micro-batches. Takes
        forward passes of eight samples at most.

        Raises:
            MismatchError: It is not.
        """
        if len(batch) < 3:
            return
        two, four = part(batch, 0, 2), part(batch, 0, 4)
        own, _ = self.rows(forward(model, two), two.targets)
        among, _ = self.rows(forward(model, four), four.targets)
        again, _ = self.rows(forward(model, two), two.targets)
        if not own.numel():
            return  # nothing of these samples is scored
        size = BATCH_TOLERANCE * own.abs().max()
        if bool((again - own).abs().max() > size):
            return  # not even the same twice: told elsewhere
        off = (among[: len(own)] - own).abs().max()
        if bool(off > size):  # never true of NaN: told elsewhere
            raise MismatchError(
                f"the model's output for a sample depends on the others in its batch (by "
                f"{float(off):.2g}), so the numbers would depend on the batch size",
                hint="BatchNorm without running statistics, or in train mode by hand?",
            )

    @torch.no_grad()
    def curvature_scores(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor, int | None]:
        """What one forward pass tells of a batch.

        Returns:
            Per sample (n,) an upper estimate of its share in the loss curvature: the sum over
            its terms of ``max(1 - |p|^2, |p - y|^2)`` (trace of the logit Hessian, and squared
            residual; ones for squared error); per sample (n,) the summed loss; and the number
            of correctly predicted terms, None where the loss does not tell what is correct.
        """
        # One sample a row again: scores of ragged token losses are added by sample.
        output = forward(model, batch)
        rows, targets = self.rows(output, batch.targets)
        loss = self.per_term(rows, targets)
        owner = self._owners(batch.targets)
        n = len(batch.targets)
        if self.name == "mse":
            score, correct = torch.ones_like(loss), 0
            if not batch.targets.is_floating_point():
                correct = int((rows.argmax(1) == batch.targets).sum())
        else:
            p = rows.softmax(dim=1)
            square = p.square().sum(dim=1)
            hit = p.gather(1, targets[:, None])[:, 0]
            score = torch.maximum(1 - square, square - 2 * hit + 1)
            correct = int((rows.argmax(1) == targets).sum())
        zeros = torch.zeros(n, dtype=torch.float64, device=loss.device)
        return (
            zeros.index_add(0, owner, score.double()),
            zeros.index_add(0, owner, loss.double()),
            correct,
        )

    def _owners(self, targets: Tensor) -> Tensor:
        """For every term, in the order of `rows`, the sample it belongs to."""
        if self.name == "mse" or targets.ndim == 1:
            index = torch.arange(len(targets), device=targets.device)
            return index if self.name == "mse" else index[targets != IGNORE_INDEX]
        if self.name == "next-token":
            targets = targets[:, 1:]
        scored = (targets != IGNORE_INDEX).reshape(len(targets), -1)
        return scored.nonzero()[:, 0]


def _check_labels(targets: Tensor, classes: int) -> None:
    if targets.numel() and not 0 <= int(targets.min()) <= int(targets.max()) < classes:
        bad = targets[(targets < 0) | (targets >= classes)]
        raise MismatchError(
            f"label {int(bad[0])} lies outside the model's {classes} classes "
            f"({len(bad)} of {targets.numel()} labels do)"
        )
