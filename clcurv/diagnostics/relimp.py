"""Relative parameter importance of one network between a past and a current task: the results."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Estimator = Literal["mas", "fisher", "fisher-sampled", "fisher-empirical"]
TauMode = Literal["scaled-mean", "fixed", "mean-plus-std"]


@dataclass(frozen=True)
class TensorImportance:
    """α_rel of one tensor and what it asks for.

    Attributes:
        name: Parameter name.
        layer: The layer it belongs to.
        numel: Number of elements.
        tau: Threshold between protected and free.
        protected: Part of the elements above τ.
        shared: Part of the elements that matter for both tasks (see `LayerImportance`).
        relative_mean, relative_std: Of α_rel.
        past_mean, current_mean: Of the two importances.
        lambda_up, lambda_down: Factors above and below τ.
        status: ``ok``, or ``no-importance`` where both importances vanish.
    """

    name: str
    layer: str
    numel: int
    tau: float
    protected: float
    shared: float
    relative_mean: float
    relative_std: float
    past_mean: float
    current_mean: float
    lambda_up: float
    lambda_down: float
    status: Literal["ok", "no-importance"] = "ok"


@dataclass(frozen=True)
class LayerImportance:
    """One layer's elements by whom they matter to, and how far both tasks agree on it.

    Attributes:
        name, depth, numel, is_head: As in `clcurv.inputs.layers.Layer`.
        protected, shared, free: Parts of the elements: α_rel above τ and not important now;
            important for both (in the top tenth of each); the rest. They sum to 1.
        quantiles: α_rel at 5, 25, 50, 75, 95 %.
        past_mean, past_stderr, current_mean, current_stderr: Mean importance and its standard
            error over the samples.
        rank_correlation, rank_low, rank_high: Spearman's of past and current importance, 95 %
            bootstrap interval over elements.
        overlap, overlap_low, overlap_high: Part of the past's top tenth that is in the current's.
        near_zero: Part of the elements whose past importance is below 1e-10 of the median.
        multiplier_max: Largest α' of the layer.
    """

    name: str
    depth: int
    numel: int
    is_head: bool
    protected: float
    shared: float
    free: float
    quantiles: tuple[float, float, float, float, float]
    past_mean: float
    past_stderr: float | None
    current_mean: float
    current_stderr: float | None
    rank_correlation: float | None
    rank_low: float | None
    rank_high: float | None
    overlap: float | None
    overlap_low: float | None
    overlap_high: float | None
    near_zero: float
    multiplier_max: float


@dataclass(frozen=True)
class TaskSide:
    """One of the two tasks.

    Attributes:
        kind: ``data`` (measured now) or ``file`` (importance from an earlier run: replay-free).
        n_samples, digest: The sample.
        mean_loss, accuracy, chance: Of the network measured on it; None from a file that lacks it.
        near_zero: Part of all elements with an importance below 1e-10 of the median.
    """

    kind: Literal["data", "file"]
    n_samples: int
    digest: str
    mean_loss: float | None
    accuracy: float | None
    chance: float | None
    near_zero: float


@dataclass(frozen=True)
class LookAhead:
    """How the temporary copy was trained on the current task.

    Attributes:
        optimizer, lr, epochs, batch_size, weight_decay, momentum: As used.
        steps: Optimiser steps taken.
        stopped_early: Whether the validation score ended it.
        score_before, score_after: Validation score (accuracy, or minus the loss for regression).
        loss_before, loss_after: Validation loss.
        history: Validation score per epoch.
        new_classes: Rows added to the head.
    """

    optimizer: str
    lr: float
    epochs: int
    batch_size: int
    weight_decay: float
    momentum: float
    steps: int
    stopped_early: bool
    score_before: float
    score_after: float
    loss_before: float
    loss_after: float
    history: tuple[float, ...] = ()
    new_classes: int = 0


@dataclass(frozen=True)
class RelimpResult:
    """What was measured and what follows from it, without the per-parameter numbers.

    Attributes:
        tensors, layers: In order of depth.
        estimator, compat: How importances were taken.
        tau_mode, multiplier: Which forms were used; ``multiplier`` is ``paper`` (α' = λ·α_past
            with λ_up above τ and λ_down below) or ``code`` (α' = λ·α_rel·α_past). Both times λ_ℓ
            where a κ schedule is given.
        lambda_: Weight of the penalty recommended; lambda_ceiling = 1/(η·max α'), None where
            nothing is held.
        lambda_up, lambda_down: Recommended factors (largest over tensors for λ_up).
        tau: Parameter-weighted mean of the tensors' τ.
        learning_rate: η the ceiling is for.
        rank_correlation, overlap: Over all tensors outside the head.
        accumulated: Tasks in the past importance.
    """

    tensors: tuple[TensorImportance, ...]
    layers: tuple[LayerImportance, ...]
    past: TaskSide
    current: TaskSide
    look_ahead: LookAhead | None
    estimator: Estimator
    compat: str
    tau_mode: TauMode
    multiplier: Literal["paper", "code"]
    lambda_: float
    lambda_ceiling: float | None
    lambda_up: float
    lambda_down: float
    tau: float
    learning_rate: float
    rank_correlation: float | None
    overlap: float | None
    accumulated: int
    loss: str
    dtype: str
    device: str
    seed: int
    cost_gradients: float
    seconds: float
    notes: tuple[str, ...] = field(default=())
