"""The report of ``clcurv relimp``: schema ``clcurv.relimp``, version 1.0.

`clcurv.report.relimp_build.relimp_document` makes a document from the results. The multipliers of
single parameters are in the side file, not here. Where only the past was measured (no current
task, or an interruption) the sections about the current task are null.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from clcurv.report.document import Count, Document, ModelInfo, Section, Verdict

SCHEMA: Final = "clcurv.relimp"
FORM: Final = "lambda/2 * sum_j alpha'_j (theta_j - theta*_j)^2"

Share = Annotated[float, Field(ge=0, le=1)]
NonNegative = Annotated[float, Field(ge=0)]
Correlation = Annotated[float, Field(ge=-1, le=1)]


class TaskSideInfo(Section):
    """One of the two tasks.

    kind: data (measured now), file (importance of an earlier run), or file+data (both,
    accumulated). mean_loss and accuracy are of the network that was measured: for the current task
    the look-ahead copy. accuracy_stderr is binomial.
    """

    kind: Literal["data", "file", "file+data"]
    path: str | None = None
    importance_path: str | None = None
    n_samples: Count
    digest: str = ""
    accumulated: Annotated[int, Field(ge=1)] = 1
    class_counts: dict[str, int] = Field(default_factory=dict)
    mean_loss: float | None = None
    accuracy: Share | None = None
    accuracy_stderr: NonNegative | None = None
    chance: Share | None = None
    near_zero: Share
    notes: tuple[str, ...] = ()


class RelimpEstimatorInfo(Section):
    """What was computed, how, and at what cost (in gradients over the sample)."""

    estimator: Literal["mas", "fisher", "fisher-sampled", "fisher-empirical"]
    compat: str
    mode: str
    loss: str
    batch_size: int | None = None
    tau_mode: Literal["scaled-mean", "fixed", "mean-plus-std"]
    multiplier: Literal["paper", "code"]
    accumulate: Literal["mean", "max"] = "mean"
    schedule: str | None = None
    granularity: str = "block"
    dtype: str
    device: str
    seed: int
    cost_gradients: float | None = None
    seconds: float | None = None
    versions: dict[str, str] = Field(default_factory=dict)
    settings: dict[str, str | int | float | bool | None] = Field(default_factory=dict)


class LookAheadInfo(Section):
    """How the temporary copy was trained on the current task alone.

    Scores are of the held-out part: accuracy, or minus the loss of a regression.
    """

    optimizer: str
    lr: float
    epochs: Count
    batch_size: Count
    weight_decay: float
    momentum: float
    steps: Count
    stopped_early: bool
    score_before: float | None
    score_after: float | None
    loss_before: float | None
    loss_after: float | None
    history: tuple[float, ...] = ()
    new_classes: Count = 0


class TrialInfo(Section):
    """One short training of the search."""

    phase: Literal["reference", "uniform", "lambda-down", "lambda-up"]
    number: Annotated[int, Field(ge=1)]
    lr: float
    lambda_: float = Field(validation_alias="lambda", serialization_alias="lambda")
    lambda_down: float
    m: float
    status: Literal["ok", "diverged"]
    score: float | None
    loss: float | None
    acceptable: bool
    steps: Count
    seconds: float


class SearchInfo(Section):
    """The search for the penalty on the current task alone.

    reference, uniform, chosen: positions in `trials`; chosen is the recommended one. Null where the
    search was interrupted.
    """

    allowed_drop: float
    max_trials: Count
    lambda_decay: float = 0.9
    acceptable: bool
    reference: Count | None
    uniform: Count | None
    chosen: Count | None
    resumed: Count = 0
    trials: tuple[TrialInfo, ...]


class PenaltyInfo(Section):
    """What the training job is to add to its loss.

    `lambda` is searched (searched true), given, or the ceiling. ceiling: 1/(learning_rate·max α'),
    above which a gradient step overshoots; null where nothing is held. lambda_up: largest over the
    tensors. tau: mean over the parameters. kind: uniform where α' is the past importance itself.
    """

    lambda_: NonNegative = Field(validation_alias="lambda", serialization_alias="lambda")
    ceiling: float | None
    lambda_up: float
    lambda_down: float
    tau: float
    learning_rate: float
    searched: bool
    kind: Literal["relative", "uniform"] = "relative"
    form: str = FORM
    advice: str


class SharesInfo(Section):
    """Parts of the parameters outside the head; they sum to 1.

    protected: α_rel above τ and not in the current task's top tenth; shared: in the top tenth of
    both tasks; free: the rest.
    """

    protected: Share
    shared: Share
    free: Share


class AgreementInfo(Section):
    """How far the two importances agree on the same parameters, with 95 % bootstrap intervals.

    rank_correlation: Spearman's. overlap: part of the past's top tenth that is in the current
    task's.
    """

    rank_correlation: Correlation | None = None
    rank_low: float | None = None
    rank_high: float | None = None
    overlap: Share | None = None
    overlap_low: float | None = None
    overlap_high: float | None = None


class RelimpLayer(Section):
    """One layer. quantiles: α_rel at 5, 25, 50, 75, 95 %. multiplier_max: its largest α'.

    current_mean, shares, agreement, quantiles, multiplier_max are null where only the past was
    measured.
    """

    name: str
    layer_id: Count
    depth: Count
    is_head: bool
    param_names: tuple[str, ...]
    numel: Count
    protected: Share | None = None
    shared: Share | None = None
    free: Share | None = None
    quantiles: tuple[float, float, float, float, float] | None = None
    past_mean: float
    past_stderr: float | None = None
    current_mean: float | None = None
    current_stderr: float | None = None
    agreement: AgreementInfo | None = None
    near_zero: Share | None = None
    multiplier_max: float | None = None


class RelimpTensor(Section):
    """One tensor: its threshold τ, the factors above and below it, and its importances."""

    name: str
    layer: str
    numel: Count
    status: Literal["ok", "no-importance"]
    tau: float
    protected: Share
    shared: Share
    relative_mean: float
    relative_std: float
    past_mean: float
    current_mean: float
    lambda_up: float
    lambda_down: float


class DensityInfo(Section):
    """Numbers of parameters outside the head by their pair of importances.

    counts: a row for every cell of the past, a column for every cell of the current task; edges
    are log10 α. The first cells hold what lies below, zeros too.
    """

    past_edges: tuple[float, ...]
    current_edges: tuple[float, ...]
    counts: tuple[tuple[int, ...], ...]

    @model_validator(mode="after")
    def _is_a_grid(self) -> Self:
        rows, columns = len(self.past_edges) - 1, len(self.current_edges) - 1
        if len(self.counts) != rows or any(len(row) != columns for row in self.counts):
            raise ValueError("the counts do not fit the edges")
        return self


class RelimpDocument(Document):
    """The whole report of ``clcurv relimp``."""

    schema_: Literal["clcurv.relimp"] = Field(
        default=SCHEMA, validation_alias="schema", serialization_alias="schema"
    )
    model: ModelInfo
    past: TaskSideInfo
    current: TaskSideInfo | None = None
    estimator: RelimpEstimatorInfo
    look_ahead: LookAheadInfo | None = None
    penalty: PenaltyInfo | None = None
    shares: SharesInfo | None = None
    agreement: AgreementInfo | None = None
    layers: Annotated[tuple[RelimpLayer, ...], Field(min_length=1)]
    tensors: tuple[RelimpTensor, ...] = ()
    search: SearchInfo | None = None
    density: DensityInfo | None = None
    verdict: Verdict | None = None

    @property
    def judged(self) -> Verdict | None:
        return self.verdict

    def with_verdict(self, verdict: Verdict) -> Self:
        return self.model_copy(update={"verdict": verdict})
