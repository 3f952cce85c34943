"""The report of ``clcurv kappa``: schema ``clcurv.schedule``, version 1.0.

`clcurv.report.build.kappa_document` makes a document from the results.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from clcurv.report.document import Count, Document, ModelInfo, Positive, Section, Verdict

SCHEMA: Final = "clcurv.schedule"
PENALTY_FORM = "0.5*lambda*sum_l lambda_l*sum_i F_i*(theta_i-theta*_i)^2"


class DataInfo(Section):
    """The frozen sample, and how the model does on it."""

    path: str | None = None
    source: Literal["path", "generated", "given"]
    label_source: Literal["data", "model"] = "data"
    format: str = "given"
    n_samples: Count
    n_terms: Count
    n_batches: Count
    batch_size: Count
    available: Count = 0
    class_counts: dict[str, int] = Field(default_factory=dict)
    digest: str = ""
    seed: int = 0
    accuracy: float | None = None
    chance: float | None = None
    mean_loss: float | None = None
    skipped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class EstimatorInfo(Section):
    """What was computed, how, and at what cost (in gradients over the sample)."""

    operator: str
    loss: str
    reduction: Literal["mean"] = "mean"
    dtype: str
    device: str
    attention: str
    tol: float
    max_steps: int
    seed: int
    granularity: str
    cost_gradients: float | None = None
    seconds: float | None = None
    versions: dict[str, str] = Field(default_factory=dict)
    settings: dict[str, str | int | float | bool | None] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()


class KappaInfo(Section):
    """κ = max s / min s, with its 95 % interval; low without high: no upper end."""

    value: float | None
    low: float | None = None
    high: float | None = None
    p90_p10: float | None = None
    status: Literal["ok", "refused"]
    reason: str = ""
    include_head: bool = False


class PenaltyInfo(Section):
    """The penalty that the λ are meant for."""

    form: str = PENALTY_FORM
    description: str = (
        "lambda_l: groups[].lambda of the layer that parameter i is in; F_i: importance "
        "(mean of per-sample squares); theta*: the checkpoint's parameters; lambda: your own "
        "overall strength. Multiplying the stored importance by lambda_l is equivalent."
    )


class ScheduleInfo(Section):
    """The advice; gamma = lambda[l+1]/lambda[l], direction early means gamma < 1."""

    mode: str
    requested: str
    direction: Literal["early", "late", "flat"]
    gamma: float | None = None
    gamma_low: float | None = None
    gamma_high: float | None = None
    gamma_applied: float | None = None
    level: float | None = None
    fit_depth: float | None = None
    fit_s: float | None = None
    r2: float | None = None
    spearman: float | None = None
    n_fitted: Count = 0
    range: float
    range_limited: bool = False
    regret_bound: float | None = None
    regret_measured: float | None = None
    advice: str
    normalisation: str
    convention: str = (
        "gamma = lambda[l+1]/lambda[l], from shallow to deep; direction early: lambda larger in "
        "early layers (gamma < 1), late: in late layers (gamma > 1), flat: undecided"
    )


class Defaults(Section):
    """For parameters in no group, such as a new task's head."""

    lambda_: Positive = Field(default=1.0, validation_alias="lambda", serialization_alias="lambda")
    lr_scale: Positive = 1.0


class Group(Section):
    """One layer: what was measured and what to do."""

    name: Annotated[str, Field(min_length=1)]
    layer_id: Count
    depth: int
    is_head: bool = False
    param_names: Annotated[tuple[str, ...], Field(min_length=1)]
    tied_names: tuple[str, ...] = ()
    numel: Annotated[int, Field(ge=1)]
    s: float | None
    s_stderr: float | None = None
    s_low: float | None = None
    s_high: float | None = None
    lambda_min: float | None = None
    residual: float | None = None
    error_bound: float | None = None
    steps: Count = 0
    converged: bool
    status: Literal["ok", "unconverged", "unused", "non-positive", "below-resolution", "non-finite"]
    lambda_: Positive = Field(validation_alias="lambda", serialization_alias="lambda")
    lambda_low: float | None = None
    lambda_high: float | None = None
    lr_scale: Positive
    reason: str

    @property
    def interval(self) -> tuple[float | None, float | None]:
        """95 % interval of s, as stated; without that, 1.96 standard errors and the error bound."""
        if self.s_low is not None and self.s_high is not None:
            return self.s_low, self.s_high
        if self.s is None or self.s_stderr is None:
            return None, None
        half = 1.96 * self.s_stderr + abs(self.s) * (self.error_bound or 0.0)
        return self.s - half, self.s + half


class CrossCheckInfo(Section):
    """PyHessian's value beside ours."""

    name: str
    s: float | None
    s_pyhessian: float | None
    relative_difference: float | None


class KappaDocument(Document):
    """The whole report of ``clcurv kappa``; no schedule is taken from one that is not complete."""

    schema_: Literal["clcurv.schedule"] = Field(
        default=SCHEMA, validation_alias="schema", serialization_alias="schema"
    )
    model: ModelInfo
    data: DataInfo
    estimator: EstimatorInfo
    kappa: KappaInfo
    penalty: PenaltyInfo = PenaltyInfo()
    schedule: ScheduleInfo
    defaults: Defaults
    groups: Annotated[tuple[Group, ...], Field(min_length=1)]
    cross_check: tuple[CrossCheckInfo, ...] = ()
    verdict: Verdict | None = None

    @model_validator(mode="after")
    def _groups_are_a_partition(self) -> KappaDocument:
        names: set[str] = set()
        owner: dict[str, str] = {}
        for group in self.groups:
            if group.name in names:
                raise ValueError(f"two groups are named {group.name!r}")
            names.add(group.name)
            for parameter in (*group.param_names, *group.tied_names):
                if parameter in owner:
                    raise ValueError(
                        f"parameter {parameter!r} is in {owner[parameter]!r} and {group.name!r}"
                    )
                owner[parameter] = group.name
        return self

    @property
    def judged(self) -> Verdict | None:
        return self.verdict

    def with_verdict(self, verdict: Verdict) -> Self:
        return self.model_copy(update={"verdict": verdict})
