"""A short training on one task, with or without a penalty: look-aheads and the search's trials."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from clcurv.curvature.numerics import cast, exact_numerics
from clcurv.curvature.objective import IGNORE_INDEX, Objective
from clcurv.curvature.operators import out_of_memory
from clcurv.diagnostics.sensitivity import DTYPES, move_samples
from clcurv.errors import DataError, NumericalError, ResourceError, UsageError
from clcurv.inputs.dataset import Batch, Samples
from clcurv.training.options import LookAheadOptions

Progress = Callable[[str, int, int], None]


class Diverged(NumericalError):
    """Training made the loss infinite or NaN."""


class Penalty(Protocol):
    """What is added to the task's loss, by its gradient."""

    def add_gradient_(self) -> None:
        """Add the penalty's gradient to ``.grad`` of the parameters."""


@dataclass(frozen=True)
class Fit:
    """What a training came to; scores are of the validation part, in eval mode.

    Attributes:
        steps: Optimiser steps taken.
        stopped_early: Whether the validation score ended it.
        score_before, score_after: Accuracy over loss terms, or minus the loss for squared error.
        loss_before, loss_after: Mean loss of the task, without the penalty.
        history: Score after each epoch.
        best_epoch: The epoch (from 1) whose weights were kept.
        trained_on, scored_on: Samples of either part.
    """

    steps: int
    stopped_early: bool
    score_before: float
    score_after: float
    loss_before: float
    loss_after: float
    history: tuple[float, ...]
    best_epoch: int
    trained_on: int
    scored_on: int


def fit(
    model: nn.Module,
    samples: Samples,
    objective: Objective,
    options: LookAheadOptions,
    *,
    penalty: Penalty | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    stage: str = "look-ahead",
    progress: Progress | None = None,
) -> Fit:
    """Train a model in place, as a training job would; give it a copy.

    The model is in train mode: dropout is drawn, BatchNorm normalises by the batch and moves its
    running statistics, because the network wanted is the one that training on the task leads to.
    Scores are taken in eval mode. A last batch with a single sample joins the one before
    (BatchNorm refuses one sample). The penalty's gradient is part of the gradient that is clipped.
    Global generators are left as they were.

    Args:
        model: Is left in eval mode on `device`, with the weights of the best epoch: highest
            score, then lowest loss. Parameters that do not require gradients stay.
        samples: The task's sample; `options.validation` of every class is held out.
        objective: The task's loss.
        options: How.
        penalty: Added to every step's gradient.
        device, dtype: Where, and ``float32`` or ``float64``.
        stage: For `progress`.
        progress: Called with (stage, steps done, most steps).

    Raises:
        DataError: The sample is empty, has one sample only, or nothing in it is scored.
        NumericalError: The loss is not finite before the first step.
        Diverged: Or after it (a `NumericalError` too).
        ResourceError: Out of memory.
        UsageError: All parameters are frozen.
    """
    tell = progress or (lambda stage, done, total: None)
    trained = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        raise UsageError("no parameter to train: all are frozen", hint="set requires_grad on some")
    if dtype not in DTYPES:
        raise UsageError(f"unknown dtype {dtype!r}", hint="float32 or float64")
    learn, held = split_validation(samples, fraction=options.validation, seed=options.seed)
    where = torch.device(device)
    gpus = [where.index or 0] if where.type == "cuda" else []
    with torch.random.fork_rng(devices=gpus), exact_numerics(model):
        torch.manual_seed(options.seed)
        cast(model, DTYPES[dtype], where)
        for m in model.modules():
            if isinstance(m, nn.Embedding | nn.EmbeddingBag):
                m.sparse = False  # few optimizers take sparse gradients
        moved = move_samples(samples, device, DTYPES[dtype])
        run = _Run(model, trained, moved, objective, options, penalty, stage)
        try:
            return run(learn, held, tell)
        finally:
            model.eval()
            for p in trained:
                p.grad = None


class _Run:
    def __init__(
        self,
        model: nn.Module,
        trained: list[nn.Parameter],
        samples: Samples,
        objective: Objective,
        options: LookAheadOptions,
        penalty: Penalty | None,
        stage: str,
    ) -> None:
        self.model, self.trained, self.samples = model, trained, samples
        self.objective, self.options = objective, options
        self.penalty, self.stage = penalty, stage
        self.piece = options.batch_size + 1  # samples in one graph; halved when memory runs out
        self.optimizer = _optimizer(trained, options)
        self.steps = 0

    def __call__(self, learn: Tensor, held: Tensor, tell: Progress) -> Fit:
        order = torch.Generator().manual_seed(self.options.seed)
        size, epochs = self.options.batch_size, self.options.epochs
        per_epoch = len(_cut(learn, size))
        self.most = epochs * per_epoch
        self.model.eval()
        self.objective.check(self.model, _take(self.samples, learn[:4]))
        before = best = self._score(held)
        kept, best_epoch, history = _state(self.model), 0, list[float]()
        for epoch in range(1, epochs + 1):
            self.model.train()
            for rows in _cut(learn[torch.randperm(len(learn), generator=order)], size):
                self._step(rows)
                tell(self.stage, self.steps, self.most)
            now = self._score(held)
            history.append(now[0])
            # The first epoch is taken whatever it brought: an untrained copy is no look-ahead.
            if epoch == 1 or (now[0], -now[1]) > (best[0], -best[1]):
                kept, best, best_epoch = _state(self.model), now, epoch
            patience = self.options.patience
            if patience is not None and epoch - best_epoch >= patience:
                break
        _restore(self.model, kept)
        return Fit(
            steps=self.steps,
            stopped_early=len(history) < epochs,
            score_before=before[0],
            score_after=best[0],
            loss_before=before[1],
            loss_after=best[1],
            history=tuple(history),
            best_epoch=best_epoch,
            trained_on=len(learn),
            scored_on=len(held),
        )

    def _step(self, rows: Tensor) -> None:
        while True:
            self.optimizer.zero_grad(set_to_none=True)
            try:
                loss = self._gradient(rows)
                break
            except (torch.OutOfMemoryError, RuntimeError) as error:
                if not out_of_memory(error):
                    raise
                self._back_off(len(rows), error)
        if loss is None:
            return
        if not math.isfinite(loss):
            raise self._diverged(loss)
        if self.penalty is not None:
            self.penalty.add_gradient_()
        if self.options.grad_clip is not None:
            nn.utils.clip_grad_norm_(self.trained, self.options.grad_clip)
        self.optimizer.step()
        self.steps += 1

    def _gradient(self, rows: Tensor) -> float | None:
        """Gradient of the batch's mean loss into ``.grad``; None where nothing is scored."""
        batch = _take(self.samples, rows)
        terms, total = self.objective.terms(batch.targets), 0.0
        if not terms:
            return None
        for part in _pieces(rows, self.piece):
            loss = self.objective.loss_sum(self.model, _take(self.samples, part)) / terms
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        return total

    def _back_off(self, rows: int, error: BaseException) -> None:
        size = min(self.piece, rows)
        whole = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in self.model.modules())
        if size == 1 or whole:  # BatchNorm in parts would be another computation
            raise ResourceError(
                f"out of memory with {size} samples in training",
                hint="give the look-ahead a smaller batch_size",
            ) from error
        self.piece = (size + 1) // 2

    @torch.no_grad()
    def _score(self, held: Tensor) -> tuple[float, float]:
        """Validation score and mean loss."""
        self.model.eval()
        loss, terms = 0.0, 0
        hits: int | None = 0
        for rows in _pieces(held, self.options.batch_size):
            batch = _take(self.samples, rows)
            output = self.objective.output(self.model, batch)
            losses = self.objective.losses(output, batch.targets)
            loss += float(losses.double().sum())
            terms += len(losses)
            found = self.objective.hits(output, batch.targets)
            hits = None if hits is None or found is None else hits + found
        if not terms:
            raise DataError("nothing in the validation part of the current task is scored")
        if not math.isfinite(loss):
            raise self._diverged(loss)
        mean = loss / terms
        return (-mean if hits is None else hits / terms), mean

    def _diverged(self, loss: float) -> NumericalError:
        if self.steps == 0:
            return NumericalError(
                f"{self.stage}: the loss is {loss} before any training",
                hint="look at the data and the checkpoint: one of them holds extreme values",
            )
        lr = self.options.lr
        return Diverged(
            f"{self.stage} diverged: the loss is {loss} after {self.steps} of {self.most} steps "
            f"({self.options.optimizer}, lr {lr:g})",
            hint=f"a smaller learning rate, for example {lr / 10:g}, or a gradient clipped to 1",
        )


def split_validation(samples: Samples, *, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Rows to train on and rows to score on, `fraction` of every class.

    Every class keeps a sample to train on; classes too small to give one give none. Samples with
    real or per-token targets are split as one class. With ``fraction=0`` both parts are all rows.

    Raises:
        DataError: No samples, or too few to hold one out.
    """
    n = len(samples)
    if n == 0:
        raise DataError(
            "the current task has no samples", hint="look at --current: it is empty, or filtered"
        )
    everything = torch.arange(n)
    if fraction == 0:
        return everything, everything
    if n == 1:
        raise DataError(
            "the current task has one sample: none is left to train on or to score",
            hint="give more samples",
        )
    generator = torch.Generator().manual_seed(seed)
    targets = samples.targets.cpu()
    classes = targets if targets.ndim == 1 and not targets.is_floating_point() else torch.zeros(n)
    held = []
    for label in classes.unique():  # type: ignore[no-untyped-call]
        rows = everything[classes == label]
        count = min(round(fraction * len(rows)), len(rows) - 1)
        held.append(rows[torch.randperm(len(rows), generator=generator)[:count]])
    chosen = torch.cat(held)
    if not len(chosen):  # tiny classes: one sample of the largest
        label = classes.mode().values
        chosen = everything[classes == label][-1:]
    left = torch.ones(n, dtype=torch.bool)
    left[chosen] = False
    return everything[left], chosen.sort().values


def scored_classes(samples: Samples, objective: Objective) -> int:
    """Width a head needs for the sample's class ids; 0 where targets are no class ids."""
    targets = samples.targets
    language = objective.name in ("next-token", "masked-lm")
    if language or targets.is_floating_point() or not targets.numel():
        return 0
    known = targets[targets != IGNORE_INDEX]
    return int(known.max()) + 1 if known.numel() else 0


def _optimizer(trained: list[nn.Parameter], options: LookAheadOptions) -> torch.optim.Optimizer:
    if options.optimizer == "adamw":
        return torch.optim.AdamW(trained, lr=options.lr, weight_decay=options.weight_decay)
    return torch.optim.SGD(
        trained, lr=options.lr, momentum=options.momentum, weight_decay=options.weight_decay
    )


def _cut(rows: Tensor, size: int) -> Sequence[Tensor]:
    """Consecutive batches; a single left-over sample joins the last one."""
    parts = _pieces(rows, size)
    if len(parts) > 1 and len(parts[-1]) == 1 and size > 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts


def _pieces(rows: Tensor, size: int) -> list[Tensor]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def _take(samples: Samples, rows: Tensor) -> Batch:
    rows = rows.to(samples.targets.device)
    inputs = samples.inputs
    if isinstance(inputs, Tensor):
        return Batch(inputs[rows], samples.targets[rows])
    return Batch({k: v[rows] for k, v in inputs.items()}, samples.targets[rows])


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    yield from model.parameters()
    yield from model.buffers()


def _state(model: nn.Module) -> list[Tensor]:
    return [t.detach().clone() for t in _tensors(model)]


@torch.no_grad()
def _restore(model: nn.Module, kept: list[Tensor]) -> None:
    for tensor, value in zip(_tensors(model), kept, strict=True):
        tensor.copy_(value)
