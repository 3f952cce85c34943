"""What makes a value of a report doubtful, its interval, and its comparison with a baseline.

One class per kind of report; `clcurv.report.gate` asks them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from clcurv.errors import UsageError
from clcurv.report.document import Document, GateOutcome
from clcurv.report.kappa_document import Group, KappaDocument
from clcurv.report.paths import Found
from clcurv.report.relimp_document import (
    AgreementInfo,
    PenaltyInfo,
    RelimpDocument,
    RelimpLayer,
    TaskSideInfo,
)
from clcurv.report.spectrum_document import (
    CollapseInfo,
    EffectiveRankInfo,
    EpsRankInfo,
    FastModesInfo,
    LayerFeaturesInfo,
    SmoothedRankInfo,
    SpectrumDocument,
    SpectrumInfo,
)

Interval = tuple[float | None, float | None]
Limit = float | str | bool | None

_NO_SPREAD = "no interval: measured on a single micro-batch"
_NO_PROBES = "no interval: measured with a single probe"


class Rules(Protocol):
    """How values of one report are judged."""

    def doubt(self, place: Found, limit: Limit) -> str:
        """Why a value must not be compared with the limit; empty where it may."""

    def interval(self, place: Found) -> Interval:
        """95 % interval; (None, None) for an exact value, (low, None) for no upper end."""

    def is_beside_the_point(self, place: Found) -> bool:
        """Whether a place decides nothing among several."""

    def is_proxy(self) -> bool:
        """Whether the data are not the user's own."""

    def compare(self, baseline: Document, allowed: float) -> list[GateOutcome]:
        """Outcomes of the comparison with an earlier report.

        Raises:
            UsageError: It is another kind of report.
        """


def rules_of(doc: Document) -> Rules:
    """The rules for a report.

    Raises:
        TypeError: Such documents are not judged.
    """
    if isinstance(doc, KappaDocument):
        return KappaRules(doc)
    if isinstance(doc, SpectrumDocument):
        return SpectrumRules(doc)
    if isinstance(doc, RelimpDocument):
        return RelimpRules(doc)
    raise TypeError(f"{type(doc).__name__} takes no gates")


def _other_kind(doc: Document, baseline: Document) -> UsageError:
    return UsageError(
        f"the baseline is a {baseline.schema_} report, not {doc.schema_}",
        hint="give an earlier report of the same command",
    )


@dataclass(frozen=True)
class KappaRules:
    """Of `KappaDocument`."""

    doc: KappaDocument

    def doubt(self, place: Found, limit: Limit) -> str:
        parent, kappa = place.parent, self.doc.kappa
        measured = {"s", "s_stderr", "lambda_min"}
        if isinstance(parent, Group) and place.field in measured:
            if place.field == "s" and parent.status != "ok":
                return f"status {parent.status}"
            if not parent.converged:
                return "not converged"
            if place.field == "s" and parent.s_stderr is None:
                return _NO_SPREAD
        if parent is kappa and place.field in {"value", "p90_p10"}:
            if kappa.status != "ok":
                return f"κ was refused ({kappa.reason})"
            counted = [g for g in self.doc.groups if kappa.include_head or not g.is_head]
            open_ = [g.name for g in counted if g.status == "unconverged"]
            if open_:
                return f"layer {open_[0]} is not converged"
            if place.field == "value" and kappa.low is None:
                return _NO_SPREAD
        return ""

    def interval(self, place: Found) -> Interval:
        parent, field = place.parent, place.field
        kappa, schedule = self.doc.kappa, self.doc.schedule
        if isinstance(parent, Group) and field == "s" and parent.s is not None:
            return parent.interval
        if parent is kappa and field == "value":
            return kappa.low, kappa.high
        if parent is schedule and field == "gamma":
            return schedule.gamma_low, schedule.gamma_high
        if parent is schedule and field == "regret_bound" and kappa.low is not None:
            from clcurv.recommend.regret import regret_bound

            high = math.inf if kappa.high is None else kappa.high
            return regret_bound(max(kappa.low, 1.0)), regret_bound(high)
        return None, None

    def is_beside_the_point(self, place: Found) -> bool:
        """A layer without any curvature to measure."""
        return isinstance(place.parent, Group) and place.parent.status == "unused"

    def is_proxy(self) -> bool:
        return self.doc.data.source == "generated"

    def compare(self, baseline: Document, allowed: float) -> list[GateOutcome]:
        from clcurv.report.regression import compare

        if not isinstance(baseline, KappaDocument):
            raise _other_kind(self.doc, baseline)
        return compare(self.doc, baseline, allowed)


def _status(part: EpsRankInfo | FastModesInfo) -> str:
    return f"{part.status} ({part.reason})" if part.reason else part.status


def _around(value: float | None, error: float | None, *, sample: int | None = None) -> Interval:
    """95 % interval; by Student's t where the error comes from a `sample` of a few numbers."""
    if value is None or not error:
        return None, None
    factor = 1.96
    if sample is not None and sample > 1:
        from clcurv.diagnostics.intervals import t_factor  # scipy, for this alone

        factor = t_factor(sample)
    return value - factor * error, value + factor * error


_RANKS = {"fraction", "count", "positive", "negative"}
# Section, field, field of its standard error.
_SAMPLED = (
    (FastModesInfo, "share", "share_stderr"),
    (EffectiveRankInfo, "value", "stderr"),
    (LayerFeaturesInfo, "erank", "erank_stderr"),
)


@dataclass(frozen=True)
class SpectrumRules:
    """Of `SpectrumDocument`."""

    doc: SpectrumDocument

    def doubt(self, place: Found, limit: Limit) -> str:
        parent, field = place.parent, place.field
        if isinstance(parent, SmoothedRankInfo) and field == "fraction":
            return "" if parent.status == "ok" else parent.status
        if isinstance(parent, EpsRankInfo) and field in _RANKS:
            if parent.status != "ok":
                return _status(parent)
            if field in {"fraction", "count"} and parent.low is None:
                return _NO_PROBES
        if isinstance(parent, FastModesInfo) and field in {"share", "count"}:
            return "" if parent.status == "ok" else _status(parent)
        if isinstance(parent, SpectrumInfo):
            if field == "lambda_min" and not parent.lambda_min_converged:
                return "not converged: an upper bound"
            if field == "trace" and parent.probes and parent.trace_stderr is None:
                return _NO_PROBES
        inconclusive = isinstance(parent, CollapseInfo) and parent.value == "inconclusive"
        if inconclusive and field == "value" and limit != "inconclusive":
            return f"the verdict is inconclusive ({self.doc.verdict.evidence})"
        return ""

    def interval(self, place: Found) -> Interval:
        parent, field = place.parent, place.field
        if isinstance(parent, EpsRankInfo):
            if field == "fraction":
                return parent.low, parent.high
            if field == "count":
                return parent.count_low, parent.count_high
        for kind, name, error in _SAMPLED:
            if isinstance(parent, kind) and field == name:
                return _around(place.value, getattr(parent, error))
        if isinstance(parent, SpectrumInfo):
            if field == "trace":
                return _around(parent.trace, parent.trace_stderr, sample=parent.probes)
            # A Ritz value never lies beyond the end of the spectrum.
            if field == "lambda_max" and parent.lambda_max is not None:
                return parent.lambda_max, parent.lambda_max + (parent.lambda_max_residual or 0.0)
            if field == "lambda_min" and parent.lambda_min is not None:
                return parent.lambda_min - (parent.lambda_min_residual or 0.0), parent.lambda_min
        return None, None

    def is_beside_the_point(self, place: Found) -> bool:
        return False

    def is_proxy(self) -> bool:
        return False

    def compare(self, baseline: Document, allowed: float) -> list[GateOutcome]:
        from clcurv.report.spectrum_regression import compare

        if not isinstance(baseline, SpectrumDocument):
            raise _other_kind(self.doc, baseline)
        return compare(self.doc, baseline, allowed)


_ENDS = {
    "rank_correlation": ("rank_low", "rank_high"),
    "overlap": ("overlap_low", "overlap_high"),
}
_ERRORS = {
    "accuracy": "accuracy_stderr",
    "past_mean": "past_stderr",
    "current_mean": "current_stderr",
}


@dataclass(frozen=True)
class RelimpRules:
    """Of `RelimpDocument`."""

    doc: RelimpDocument

    def doubt(self, place: Found, limit: Limit) -> str:
        parent, field = place.parent, place.field
        if isinstance(parent, AgreementInfo) and field in _ENDS:
            low = getattr(parent, _ENDS[field][0])
            if place.value is None:
                return "not defined: one of the importances is constant"
            return "no interval: too few parameters" if low is None else ""
        search = self.doc.search
        if isinstance(parent, PenaltyInfo) and field == "lambda" and search is not None:
            return "" if search.acceptable else "no trial was acceptable"
        return ""

    def interval(self, place: Found) -> Interval:
        parent, field = place.parent, place.field
        if isinstance(parent, AgreementInfo) and field in _ENDS:
            low, high = _ENDS[field]
            return getattr(parent, low), getattr(parent, high)
        if isinstance(parent, TaskSideInfo | RelimpLayer) and field in _ERRORS:
            return _around(place.value, getattr(parent, _ERRORS[field], None))
        return None, None

    def is_beside_the_point(self, place: Found) -> bool:
        """The head among the layers: other tasks have other outputs."""
        return isinstance(place.parent, RelimpLayer) and place.parent.is_head

    def is_proxy(self) -> bool:
        return False

    def compare(self, baseline: Document, allowed: float) -> list[GateOutcome]:
        from clcurv.report.relimp_regression import compare

        if not isinstance(baseline, RelimpDocument):
            raise _other_kind(self.doc, baseline)
        return compare(self.doc, baseline, allowed)
