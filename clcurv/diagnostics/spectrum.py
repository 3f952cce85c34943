"""Spectrum, fast modes and features of one network on every task of a stream: the results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

EstimateStatus = Literal["ok", "not-resolved", "below-resolution"]
SpectrumMethod = Literal["lanczos-quadrature", "dense", "gram"]
TaskStatus = Literal["ok", "failed"]


@dataclass(frozen=True)
class EpsRank:
    """How many eigenvalues lie beyond ±ε.

    Attributes:
        eps: ε, in units of the loss per squared parameter.
        count: Eigenvalues with |λ| > ε; `fraction` of all P.
        positive, negative: The same, λ > ε and λ < −ε apart.
        low, high: 95 % interval of `count`: chance over the probes, and what the quadrature
            leaves open (equal to `count` where it was counted exactly; None with a single probe).
        half_steps: `count` from half the Lanczos steps; None where it was counted exactly.
        status: ``not-resolved`` where m and m/2 steps disagree by more than the interval, or ε
            lies among Ritz values so far apart that the quadrature leaves a tenth of the count
            open; ``below-resolution`` where ε lies under rounding.
        upper: Upper edge for the fast modes; None where there is none.
    """

    eps: float
    count: float
    fraction: float
    positive: float
    negative: float
    low: float | None
    high: float | None
    half_steps: float | None
    status: EstimateStatus
    reason: str = ""
    upper: float | None = None


@dataclass(frozen=True)
class Quadrature:
    """Nodes and weights of one probe: Σ_i w_i f(θ_i) estimates tr f(H)/P.

    Attributes:
        nodes: Ritz values, ascending.
        weights: ≥ 0, sum to 1.
    """

    nodes: tuple[float, ...]
    weights: tuple[float, ...]


@dataclass(frozen=True)
class TaskSpectrum:
    """Eigenvalues of the curvature of one task's loss.

    Attributes:
        operator: ``hessian`` | ``ggn`` | ``fisher`` | ``empirical-fisher``.
        method: How: quadrature, or exact eigenvalues of the dense matrix or the Gram matrix.
        n_parameters: P, the parameters of the layers asked for.
        lambda_max, lambda_min: Ends of the spectrum.
        lambda_max_residual, lambda_min_residual: ‖Hv − λv‖ (absolute; 0 where exact).
        lambda_min_converged: Whether `lambda_min` is more than an upper bound.
        trace, trace_stderr: Sum of the eigenvalues (error over the probes; 0 where exact).
        rank_fast: For ε_fast of the learning rate and steps; None where they are not given.
        rank_relative: For ε relative to λ_max.
        curve: ε-rank over log ε, ascending in ε.
        quadrature: One entry a probe; an exact spectrum is one entry of all eigenvalues.
        probes, steps: Of the quadrature; 0 where exact.
        noise: Rounding in an eigenvalue.
        cost_gradients: By floating-point operations.
        notes: Sentences for the report.
    """

    operator: str
    method: SpectrumMethod
    n_parameters: int
    lambda_max: float
    lambda_min: float
    lambda_max_residual: float
    lambda_min_residual: float
    lambda_min_converged: bool
    trace: float
    trace_stderr: float | None
    rank_fast: EpsRank | None
    rank_relative: EpsRank
    curve: tuple[EpsRank, ...]
    quadrature: tuple[Quadrature, ...]
    probes: int
    steps: int
    noise: float
    cost_gradients: float = 0.0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class FastModes:
    """The initial residual's energy in modes that K steps of gradient descent fit.

    Attributes:
        lower, upper: A mode μ of the loss-weighted Gram matrix is fast in [lower, upper].
        share: Part of the residual's squared norm in them.
        share_stderr: Its standard error over the data, which modes are fast taken as given; None
            with Lanczos steps.
        count: Number of fast modes; None where it was not counted.
        half_steps: `share` from half the Lanczos steps; None where exact.
        status: ``not-resolved`` where they disagree.
        method: ``gram`` (exact eigenvectors) or ``lanczos``.
        gradient_share: Part of ‖∇L‖² in the same modes: a mode's residual times its eigenvalue.
        carrying_terms: How many loss terms carry the residual, (Σe)²/Σe² of their energies e.
        cost_gradients: By floating-point operations.
        notes: Sentences for the report.
    """

    lower: float
    upper: float
    share: float
    count: float | None
    half_steps: float | None
    status: EstimateStatus
    method: Literal["gram", "lanczos"]
    reason: str = ""
    gradient_share: float | None = None
    carrying_terms: float | None = None
    share_stderr: float | None = None
    cost_gradients: float = 0.0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class LayerFeatures:
    """How many directions one layer's inputs use.

    Attributes:
        name: The hooked module, whose *input* (after the nonlinearity) this is.
        n, d: Rows (samples, or samples times positions) and features.
        ceiling: min(n, d), what no rank can exceed.
        erank: Effective rank of the activation matrix (entropy of σ; Roy and Vetterli 2007).
        erank_stderr: Its standard error over the samples; None where the rows cannot be told
            apart by sample.
        erank_covariance: The other reading (entropy of σ²).
        approximate_rank: Singular values that hold 99 % of Σσ².
        dormant, dead: Part of the units active on less than 1 % of the rows, and on none; None
            where the inputs do not come from a nonlinearity that can be off.
        enough: n ≥ 5d.
    """

    name: str
    n: int
    d: int
    ceiling: int
    erank: float
    erank_covariance: float
    approximate_rank: int
    dormant: float | None
    dead: float | None
    enough: bool
    erank_stderr: float | None = None


@dataclass(frozen=True)
class TaskDiagnosis:
    """All that was measured on one task.

    Attributes:
        index: 1 for the first task.
        name: From the stream.
        checkpoint: What was met by this task, as shown to people.
        n_samples, classes, label_histogram, digest: The sample.
        mean_loss, accuracy, chance: Of the network before any step on the task.
        spectrum, fast_modes, features: None (empty) where the task failed; `fast_modes` also
            where no learning rate and steps are given.
        gradient_norm: ‖∇L‖ over the parameters measured.
        cost_gradients, seconds: Of this task.
        status: ``failed`` with a `reason`: the other tasks are kept.
    """

    index: int
    name: str
    checkpoint: str
    n_samples: int
    classes: tuple[int, ...]
    label_histogram: dict[int, int]
    digest: str
    mean_loss: float | None
    accuracy: float | None
    chance: float | None
    spectrum: TaskSpectrum | None
    fast_modes: FastModes | None
    features: tuple[LayerFeatures, ...]
    gradient_norm: float | None
    cost_gradients: float
    seconds: float
    status: TaskStatus = "ok"
    reason: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class SpectrumResult:
    """Diagnoses over a stream.

    Attributes:
        tasks: In the stream's order.
        reference: What the trend is measured against: the diagnosis of the first task's data with
            a reference network, or the first task's own entry.
        reference_kind: ``first-task`` | ``checkpoint`` | ``fresh``.
    """

    tasks: tuple[TaskDiagnosis, ...]
    reference: TaskDiagnosis
    reference_kind: Literal["first-task", "checkpoint", "fresh"]
    operator: str
    loss: str
    dtype: str
    device: str
    seed: int
    lr: float | None
    momentum: float
    steps: int | None
    gamma: float
    seconds: float
    notes: tuple[str, ...] = ()
