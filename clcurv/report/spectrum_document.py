"""The report of ``clcurv spectrum``: schema ``clcurv.spectrum``, version 1.0.

`clcurv.report.spectrum_build.spectrum_document` makes a document from the results. Eigenvalues
are of the mean loss per squared parameter. Nodes and weights of every quadrature are in it, so
that any other figure of the spectrum can be computed without measuring again.
"""

from __future__ import annotations

import math
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from clcurv.report.document import Count, Document, ModelInfo, Section, Verdict

SCHEMA: Final = "clcurv.spectrum"

Share = Annotated[float, Field(ge=0, le=1)]
Status = Literal["ok", "not-resolved", "below-resolution"]


class CheckpointInfo(Section):
    """One checkpoint of the run, in the order in which tasks meet them."""

    path: str
    digest: str = ""


class StreamTaskInfo(Section):
    """One task of the resolved stream: where its data are, and what they hold."""

    name: str
    train: str | None = None
    split: str | None = None
    t: int | str | None = None
    transform: dict[str, int | str] | None = None
    n: Count | None = None
    classes: tuple[int | str, ...] = ()
    label_histogram: dict[str, int] = Field(default_factory=dict)
    digest: str = ""


class StreamInfo(Section):
    """The stream as it was resolved."""

    spec: str | None = None
    data: str | None = None
    name: str
    scenario: str = ""
    modality: str = ""
    origin: str = ""
    seed: int | None = None
    notes: tuple[str, ...] = ()
    tasks: tuple[StreamTaskInfo, ...] = ()


class BandInfo(Section):
    """Which eigenvalues K steps of gradient descent fit to within γ: lower ≤ μ ≤ upper.

    |1 − ημ|^K ≤ γ with η = lr / (1 − momentum).
    """

    lower: float
    upper: float | None


class SpectrumEstimatorInfo(Section):
    """What was computed, how, and at what cost (in gradients over a task's sample)."""

    operator: str
    loss: str
    reduction: Literal["mean"] = "mean"
    dtype: str
    device: str
    seed: int
    lr: float | None = None
    steps: int | None = None
    momentum: float = 0.0
    gamma: float
    eps_fast: BandInfo | None = None
    cost_gradients: float | None = None
    seconds: float | None = None
    versions: dict[str, str] = Field(default_factory=dict)
    settings: dict[str, str | int | float | bool | None] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()


class EpsRankInfo(Section):
    """Eigenvalues with |λ| > eps (and ≤ upper where there is one): count, and fraction of all.

    low and high bound `fraction`, count_low and count_high `count`, at 95 % over the probes
    (equal to it where it was counted; null where there is no interval); half_steps is the
    fraction that half the Lanczos steps give. positive and negative are counts.
    """

    eps: float
    upper: float | None = None
    count: float | None
    fraction: Share | None
    low: float | None = None
    high: float | None = None
    count_low: float | None = None
    count_high: float | None = None
    positive: float | None = None
    negative: float | None = None
    half_steps: float | None = None
    status: Status
    reason: str = ""


class SmoothedRankInfo(Section):
    """ε-rank as the published pipeline has it: from a density smoothed by a Gaussian kernel.

    kernel-limited: the kernel is wider than eps, and so the figure is the kernel's.
    """

    eps: float
    fraction: float | None
    kernel_width: float | None
    status: Literal["ok", "kernel-limited"]


class EpsRanks(Section):
    """fast: for ε_fast; relative: for ε relative to the largest |λ|; curve: ascending in ε.

    paper: for the same ε as fast and relative, where that was asked for.
    """

    fast: EpsRankInfo | None = None
    relative: EpsRankInfo
    curve: tuple[EpsRankInfo, ...] = ()
    paper: tuple[SmoothedRankInfo, ...] = ()


class QuadratureInfo(Section):
    """One probe, or all eigenvalues where they were counted: Σ w f(θ) estimates tr f(H)/P."""

    nodes: Annotated[tuple[float, ...], Field(min_length=1)]
    weights: Annotated[tuple[Annotated[float, Field(ge=0)], ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _is_a_measure(self) -> Self:
        if len(self.nodes) != len(self.weights):
            raise ValueError(f"{len(self.nodes)} nodes and {len(self.weights)} weights")
        if not math.isclose(math.fsum(self.weights), 1.0, abs_tol=1e-3):
            raise ValueError("the weights do not sum to 1")
        return self


class SpectrumInfo(Section):
    """Eigenvalues of one task's curvature.

    lambda_min is an upper bound where it is not converged. Residuals are ‖Hv − λv‖; noise is
    the rounding in an eigenvalue. probes and steps are 0 for an exact spectrum.
    """

    operator: str
    method: Literal["lanczos-quadrature", "dense", "gram"]
    n_parameters: Annotated[int, Field(ge=1)]
    lambda_max: float | None
    lambda_min: float | None
    lambda_max_residual: float | None = None
    lambda_min_residual: float | None = None
    lambda_min_converged: bool = True
    trace: float | None
    trace_stderr: float | None = None
    probes: Count = 0
    steps: Count = 0
    noise: float | None = None
    quadrature: tuple[QuadratureInfo, ...] = ()


class FastModesInfo(Section):
    """The initial residual's energy in modes that are fast, and their number.

    share_stderr: over the data, None with Lanczos steps. gradient_share: the same of the loss
    gradient. carrying_terms: how many loss terms carry the residual, (Σe)²/Σe² of their energies.
    """

    lower: float
    upper: float | None
    share: float | None
    share_stderr: float | None = None
    count: float | None = None
    half_steps: float | None = None
    gradient_share: float | None = None
    carrying_terms: float | None = None
    status: Status
    reason: str = ""
    method: Literal["gram", "lanczos"]


class LayerFeaturesInfo(Section):
    """How many directions one layer's inputs use; no rank exceeds the ceiling min(n, d)."""

    name: str
    n: Count
    d: Count
    ceiling: Count
    erank: float | None
    erank_stderr: float | None = None
    erank_covariance: float | None
    approximate_rank: Count
    dormant: float | None = None
    dead: float | None = None
    enough: bool


class EffectiveRankInfo(Section):
    """Means over the layers: of the effective rank, and of its part of the ceiling.

    value: of the activations' singular values; stderr: over the samples, at most (the mean of the
    layers' errors); covariance: of their squares.
    """

    value: float | None
    stderr: float | None = None
    fraction: float | None = None
    covariance: float | None = None


class TaskInfo(Section):
    """One task: the network that met it, before any step on it.

    The sections are null where the task failed; `reason` says why.
    """

    index: Annotated[int, Field(ge=1)]
    name: str
    checkpoint: str
    status: Literal["ok", "failed"]
    reason: str = ""
    n_samples: Count
    classes: tuple[int, ...] = ()
    label_histogram: dict[str, int] = Field(default_factory=dict)
    digest: str = ""
    mean_loss: float | None = None
    accuracy: float | None = None
    chance: float | None = None
    gradient_norm: float | None = None
    eps_rank: EpsRanks | None = None
    fast_modes: FastModesInfo | None = None
    effective_rank: EffectiveRankInfo | None = None
    features: tuple[LayerFeaturesInfo, ...] = ()
    spectrum: SpectrumInfo | None = None
    cost_gradients: float | None = None
    seconds: float | None = None
    notes: tuple[str, ...] = ()


class ReferenceInfo(Section):
    """What the trend is measured against; `task` is null where it is the first task's entry."""

    kind: Literal["first-task", "checkpoint", "fresh"]
    task: TaskInfo | None = None


class SignalInfo(Section):
    """One number at the end of the stream beside its reference.

    agrees: whether it speaks for a collapse; null where that cannot be told, with the reason.
    """

    name: str
    value: float | None
    reference: float | None
    ratio: float | None
    direction: str
    agrees: bool | None
    reason: str = ""


class CollapseInfo(Section):
    """The verdict on the network. late: the tasks that speak for the end of the stream."""

    value: Literal["healthy", "at risk", "collapsed", "inconclusive"]
    evidence: str
    signals: tuple[SignalInfo, ...] = ()
    late: tuple[int, ...] = ()


class ObjectiveInfo(Section):
    """The objective that the steps amount to.

    min L + lambda·‖θ‖² − beta·Σ_l erank_l (Prakash et al., arXiv 2509.22335).
    """

    lambda_: float = Field(validation_alias="lambda", serialization_alias="lambda")
    beta: float
    form: str = "L + lambda*||theta||^2 - beta*sum_l erank(E[a_l a_l^T])"


class L2erInfo(Section):
    """The recommended regularisation; all zero where the stream is healthy."""

    weight_decay: Annotated[float, Field(ge=0)]
    er_lr: Annotated[float, Field(ge=0)]
    er_every: Count
    er_layers: tuple[str, ...]
    window: Count
    order: tuple[str, ...]
    lr: float | None = None
    objective: ObjectiveInfo
    derivation: str


class SpectrumDocument(Document):
    """The whole report of ``clcurv spectrum``.

    Attributes:
        verdict: On the network.
        gates: On the report: how ``--fail-on`` and ``--baseline`` came out.
    """

    schema_: Literal["clcurv.spectrum"] = Field(
        default=SCHEMA, validation_alias="schema", serialization_alias="schema"
    )
    model: ModelInfo
    checkpoints: tuple[CheckpointInfo, ...] = ()
    stream: StreamInfo
    estimator: SpectrumEstimatorInfo
    verdict: CollapseInfo
    l2er: L2erInfo | None = None
    reference: ReferenceInfo
    tasks: Annotated[tuple[TaskInfo, ...], Field(min_length=1)]
    gates: Verdict | None = None

    @model_validator(mode="after")
    def _tasks_are_in_order(self) -> Self:
        order = [t.index for t in self.tasks]
        if order != sorted(set(order)):
            raise ValueError(f"the tasks are numbered {order}")
        return self

    @property
    def judged(self) -> Verdict | None:
        return self.gates

    def with_verdict(self, verdict: Verdict) -> Self:
        return self.model_copy(update={"gates": verdict})
