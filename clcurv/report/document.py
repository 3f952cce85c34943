"""The report as strict JSON: schema ``clcurv.schedule``, version 1.0.

A minor version only adds keys, so readers ignore what they do not know. Non-finite numbers
are never written: they become null beside a `status` and a `reason`. This file holds the
shape and writes it; `clcurv.report.build.kappa_document` makes a document from the results,
`clcurv.report.reader.load_document` reads one back. No torch here: a saved report can be
judged where torch is not installed.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from clcurv.errors import UsageError
from clcurv.runtime import atomic_write

SCHEMA: Final = "clcurv.schedule"
SCHEMA_VERSION = "1.0"
PENALTY_FORM = "0.5*lambda*sum_l lambda_l*sum_i F_i*(theta_i-theta*_i)^2"

Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]


class _Model(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="ignore", allow_inf_nan=False, populate_by_name=True
    )


class ToolInfo(_Model):
    name: str = "clcurv"
    version: str


class ModelInfo(_Model):
    """The network, and how sure it is that the weights are in the right one."""

    path: str | None = None
    arch: str
    arch_source: str
    format: str | None = None
    key: str | None = None
    prefix: str = ""
    digest: str = ""
    num_params: Count
    num_classes: int | None = None
    task: str
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    matched_fraction: float = 1.0
    candidates: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class DataInfo(_Model):
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
    class_counts: dict[str, int] = {}
    digest: str = ""
    seed: int = 0
    accuracy: float | None = None
    chance: float | None = None
    mean_loss: float | None = None
    skipped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class EstimatorInfo(_Model):
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
    versions: dict[str, str] = {}
    settings: dict[str, str | int | float | bool | None] = {}
    notes: tuple[str, ...] = ()


class KappaInfo(_Model):
    """κ = max s / min s, with its 95 % interval; low without high: no upper end."""

    value: float | None
    low: float | None = None
    high: float | None = None
    p90_p10: float | None = None
    status: Literal["ok", "refused"]
    reason: str = ""
    include_head: bool = False


class PenaltyInfo(_Model):
    """The penalty that the λ are meant for."""

    form: str = PENALTY_FORM
    description: str = (
        "lambda_l: groups[].lambda of the layer that parameter i is in; F_i: importance "
        "(mean of per-sample squares); theta*: the checkpoint's parameters; lambda: your own "
        "overall strength. Multiplying the stored importance by lambda_l is equivalent."
    )


class ScheduleInfo(_Model):
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


class Defaults(_Model):
    """For parameters in no group, such as a new task's head."""

    lambda_: Positive = Field(default=1.0, validation_alias="lambda", serialization_alias="lambda")
    lr_scale: Positive = 1.0


class Group(_Model):
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
        """95 % interval of s: 1.96 standard errors, widened by the solver's error bound."""
        if self.s is None or self.s_stderr is None:
            return None, None
        half = 1.96 * self.s_stderr + abs(self.s) * (self.error_bound or 0.0)
        return self.s - half, self.s + half


class CrossCheckInfo(_Model):
    """PyHessian's value beside ours."""

    name: str
    s: float | None
    s_pyhessian: float | None
    relative_difference: float | None


class GateOutcome(_Model):
    """One condition, and how it came out."""

    expression: str
    outcome: Literal["pass", "fail", "inconclusive"]
    reason: str
    value: float | str | bool | None = None
    low: float | None = None
    high: float | None = None


class Verdict(_Model):
    """All conditions together: exit code 0, 10 (one failed) or 11 (inconclusive)."""

    exit_code: Literal[0, 10, 11]
    inconclusive: Literal["fail", "pass"]
    gates: tuple[GateOutcome, ...]


class KappaDocument(_Model):
    """The whole report of ``clcurv kappa``.

    Attributes:
        complete: False where the run was interrupted: what was known by then, to be looked at.
            No schedule is taken from such a report, and every gate on it is inconclusive.
    """

    schema_: Literal["clcurv.schedule"] = Field(
        default=SCHEMA, validation_alias="schema", serialization_alias="schema"
    )
    schema_version: Annotated[str, Field(pattern=r"^1\.\d+$")] = SCHEMA_VERSION
    tool: ToolInfo
    created: str
    complete: bool = True
    command: str | None = None
    model: ModelInfo
    data: DataInfo
    estimator: EstimatorInfo
    kappa: KappaInfo
    penalty: PenaltyInfo = PenaltyInfo()
    schedule: ScheduleInfo
    defaults: Defaults
    groups: Annotated[tuple[Group, ...], Field(min_length=1)]
    cross_check: tuple[CrossCheckInfo, ...] = ()
    warnings: tuple[str, ...] = ()
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

    def with_verdict(self, verdict: Verdict) -> KappaDocument:
        """The same report with its verdict section."""
        return self.model_copy(update={"verdict": verdict})


DOCUMENTS: dict[str, type[KappaDocument]] = {SCHEMA: KappaDocument}


def json_schema(name: str) -> dict[str, Any]:
    """JSON Schema of a document, for ``clcurv schema NAME``.

    Args:
        name: ``clcurv.schedule``, or without the ``clcurv.``.

    Raises:
        UsageError: There is no such document.
    """
    document = DOCUMENTS.get(name) or DOCUMENTS.get(f"clcurv.{name}")
    if document is None:
        raise UsageError(f"no schema named {name!r}", hint=f"one of: {', '.join(DOCUMENTS)}")
    return document.model_json_schema(mode="serialization")


# Allowed by JSON, but they move a terminal's cursor, reverse its text, or are no valid UTF-8.
_RAW_CONTROLS = re.compile("[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")


def to_json(document: KappaDocument) -> str:
    """Strict JSON text, indented, ending in a newline; safe to show in a terminal."""
    text = json.dumps(
        document.model_dump(mode="json", by_alias=True),
        allow_nan=False,
        ensure_ascii=False,
        indent=2,
    )
    return _RAW_CONTROLS.sub(lambda m: f"\\u{ord(m[0]):04x}", text) + "\n"


def write_json(document: KappaDocument, path: str | Path) -> None:
    """Write the report, whole or not at all.

    Raises:
        UsageError: The path cannot be written.
        ResourceError: The disk is full.
    """
    atomic_write(path, to_json(document).encode())


def finite(value: float | None) -> float | None:
    """The number, or None where JSON has no word for it."""
    return value if value is not None and math.isfinite(value) else None
