"""What every report has in common, and how reports become strict JSON.

A minor version only adds keys, so readers ignore what they do not know. Non-finite numbers
are never written: they become null beside a `status` and a `reason`. The reports themselves:
`clcurv.report.kappa_document`, `clcurv.report.spectrum_document`, `clcurv.report.l2er_document`;
`clcurv.report.reader.load_document` reads one back. No torch here: a saved report can be judged
where torch is not installed.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from clcurv.runtime import atomic_write

Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
SchemaVersion = Annotated[str, Field(pattern=r"^1\.\d+$")]


class Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="ignore", allow_inf_nan=False, populate_by_name=True
    )


class ToolInfo(Section):
    name: str = "clcurv"
    version: str


class ModelInfo(Section):
    """The network, and how sure it is that the weights are in the right one.

    probe_accuracy: of a linear probe, each sample predicted by a fit without it.
    """

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
    probe_accuracy: float | None = None
    notes: tuple[str, ...] = ()


class GateOutcome(Section):
    """One condition, and how it came out."""

    expression: str
    outcome: Literal["pass", "fail", "inconclusive"]
    reason: str
    value: float | str | bool | None = None
    low: float | None = None
    high: float | None = None


class Verdict(Section):
    """All conditions together: exit code 0, 10 (one failed) or 11 (inconclusive)."""

    exit_code: Literal[0, 10, 11]
    inconclusive: Literal["fail", "pass"]
    gates: tuple[GateOutcome, ...]


class Document(Section):
    """The header of every document.

    Attributes:
        complete: False where the run was interrupted: what was known by then, to be looked at.
            Every gate on it is inconclusive.
    """

    schema_: str = Field(default="", validation_alias="schema", serialization_alias="schema")
    schema_version: SchemaVersion = "1.0"
    tool: ToolInfo
    created: str
    complete: bool = True
    command: str | None = None
    warnings: tuple[str, ...] = ()

    @property
    def judged(self) -> Verdict | None:
        """How the gates came out; None where there were none."""
        return None

    def with_verdict(self, verdict: Verdict) -> Self:
        """The same report with what its gates decided.

        Raises:
            TypeError: Gates do not judge this kind.
        """
        raise TypeError(f"{type(self).__name__} takes no gates")


# Allowed by JSON, but they move a terminal's cursor, reverse its text, or are no valid UTF-8.
_RAW_CONTROLS = re.compile("[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
# No string of JSON text holds a raw line end, so this never meets the inside of one.
_NUMBERS = re.compile(r"\[\n([\d.eE+\-,\s]+)\]")


def to_json(document: Document) -> str:
    """Strict JSON text, indented, ending in a newline; safe to show in a terminal.

    A list of numbers stands on one line.
    """
    text = json.dumps(
        document.model_dump(mode="json", by_alias=True),
        allow_nan=False,
        ensure_ascii=False,
        indent=2,
    )
    text = _NUMBERS.sub(lambda m: f"[{', '.join(m[1].replace(',', ' ').split())}]", text)
    return _RAW_CONTROLS.sub(lambda m: f"\\u{ord(m[0]):04x}", text) + "\n"


def write_json(document: Document, path: str | Path) -> None:
    """Write the report, whole or not at all.

    Raises:
        UsageError: The path cannot be written.
        ResourceError: The disk is full.
    """
    atomic_write(path, to_json(document).encode())


def finite(value: float | None) -> float | None:
    """The number, or None where JSON has no word for it."""
    return value if value is not None and math.isfinite(value) else None
