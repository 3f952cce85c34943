"""Per-layer sensitivity s_ℓ and κ of one network on one data set."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

Status = Literal["ok", "unconverged", "unused", "non-positive", "below-resolution"]
KappaStatus = Literal["ok", "refused"]


@dataclass(frozen=True)
class LayerSensitivity:
    """What was measured for one layer.

    Attributes:
        name, param_names, depth, is_head: As in `clcurv.inputs.layers.Layer`.
        tied_names: Further names of the same tensors.
        numel: Number of parameters.
        s: Largest eigenvalue of the block; None when status is ``unused``.
        s_stderr: Standard error of `s` over the data (None with one micro-batch).
        lambda_min: Smallest Ritz value of the block, an upper bound on its smallest eigenvalue
            (None where it did not settle). A fitted network's negative eigenvalues are a few
            per cent of s and lie behind dozens of larger positive ones: at the default `tol`
            the bound is loose by that much, at a small `tol` it is the eigenvalue.
        residual: ‖H v − s v‖ / |s| at the last step.
        error_bound: Estimated relative error of `s` left by the solver.
        steps: Products with all the data that this layer took.
        converged: The solver met its tolerance.
        status: ``ok``, or why `s` must not be used.
        reason: One clause for people when status is not ``ok``.
        n_batches: Micro-batches behind the standard error; None for many.
    """

    name: str
    param_names: tuple[str, ...]
    depth: int
    numel: int
    is_head: bool
    s: float | None
    s_stderr: float | None
    lambda_min: float | None
    residual: float | None
    error_bound: float | None
    steps: int
    converged: bool
    status: Status
    reason: str = ""
    tied_names: tuple[str, ...] = ()
    n_batches: int | None = None

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of `s` by Student's t, widened by the solver's error; None without one."""
        if self.s is None or self.s_stderr is None or not math.isfinite(self.s_stderr):
            return None
        from clcurv.diagnostics.intervals import t_factor  # scipy, which a schema does not need

        factor = 1.96 if self.n_batches is None else t_factor(self.n_batches)
        half = factor * self.s_stderr + abs(self.s) * (self.error_bound or 0.0)
        return self.s - half, self.s + half


@dataclass(frozen=True)
class KappaResult:
    """Sensitivities of all layers, shallow to deep, and κ over those that count.

    Attributes:
        layers: One entry a layer, in order of depth, heads last.
        kappa: max s / min s over the layers with status ``ok`` (head apart unless
            `include_head`); None when it is refused, see `status` and `reason`.
        kappa_low, kappa_high: 95 % interval of κ.
        p90_p10: Ratio of the 90th to the 10th percentile of s over the same layers.
        status: ``ok`` | ``refused``.
        reason: Why κ was refused, naming the layer.
        include_head: Whether heads took part in κ.
        mean_loss, accuracy: Of the model on the sample (accuracy None for regression).
        chance: Accuracy of always guessing the commonest class.
        n_samples, n_terms, n_batches, batch_size: The sample; terms are what the loss is
            averaged over (samples, or scored tokens).
        cost_gradients: Work done, in gradients over the sample.
        seconds: Wall-clock time of the measurement.
        new_task_grad_sq: Layer name -> ‖g_ℓ‖² of the new task's mean loss, when given.
        notes: Sentences for the report.
    """

    layers: tuple[LayerSensitivity, ...]
    kappa: float | None
    kappa_low: float | None
    kappa_high: float | None
    p90_p10: float | None
    status: KappaStatus
    reason: str
    include_head: bool
    mean_loss: float
    accuracy: float | None
    chance: float | None
    n_samples: int
    n_terms: int
    n_batches: int
    batch_size: int
    operator: str
    loss: str
    dtype: str
    device: str
    tol: float
    max_steps: int
    seed: int
    attention: str = "math"
    cost_gradients: float = 0.0
    seconds: float = 0.0
    new_task_grad_sq: dict[str, float] | None = None
    cross_check: tuple[CrossCheck, ...] = ()
    notes: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class CrossCheck:
    """PyHessian's top eigenvalue of one layer beside ours."""

    name: str
    s: float
    s_pyhessian: float
    relative_difference: float
