"""Is a report worse than an earlier one?

Two numbers must not grow by more than the allowed fraction: κ, and the largest s among the
layers outside the head that both reports measured (status ``ok``). Growth is new/old − 1.

With equal data digests both reports saw the very same samples, so sampling error does not
separate them and only the solver's own error counts. With different data the growth gets a
95 % interval from the two intervals (recovered variances of a log ratio: Zou and Donner,
*Construction of confidence limits about effect measures*, Statistics in Medicine 2008).
Where the interval holds the limit the comparison is inconclusive, as it is between reports
that differ in operator, loss or layers.
"""

from __future__ import annotations

import math

from clcurv.report.document import GateOutcome
from clcurv.report.kappa_document import Group, KappaDocument
from clcurv.report.text import number, percent, printable

Interval = tuple[float, float, float]  # value, low, high


def compare(new: KappaDocument, old: KappaDocument, allowed: float) -> list[GateOutcome]:
    """One outcome for κ and one for the largest s.

    Args:
        new: The report to judge.
        old: The baseline.
        allowed: Fraction by which a number may grow, e.g. 0.1.
    """
    names = (f"kappa regression>{percent(allowed)}", f"max s regression>{percent(allowed)}")
    if reason := _incomparable(new, old):
        return [GateOutcome(expression=x, outcome="inconclusive", reason=reason) for x in names]
    paired = bool(new.data.digest) and new.data.digest == old.data.digest
    note = "" if paired else "; other data than the baseline's"
    shared = _shared(new, old)
    pairs = (
        (_kappa(new, paired), _kappa(old, paired)),
        (_top(new, shared, paired), _top(old, shared, paired)),
    )
    return [
        _outcome(name, now, before, allowed, note)
        for name, (now, before) in zip(names, pairs, strict=True)
    ]


def _incomparable(new: KappaDocument, old: KappaDocument) -> str:
    pairs: dict[str, tuple[object, object]] = {
        "operator": (new.estimator.operator, old.estimator.operator),
        "loss": (new.estimator.loss, old.estimator.loss),
        "layers": (new.estimator.granularity, old.estimator.granularity),
        "include_head": (new.kappa.include_head, old.kappa.include_head),
    }
    layers = [{g.name for g in doc.groups if not g.is_head} for doc in (new, old)]
    if layers[0] != layers[1]:
        pairs["network"] = (new.model.arch, old.model.arch)
    found = [
        f"{k} {now} now, {was} in the baseline" for k, (now, was) in pairs.items() if now != was
    ]
    return f"not comparable: {printable('; '.join(found))}" if found else ""


def _outcome(
    name: str, new: Interval | None, old: Interval | None, allowed: float, note: str
) -> GateOutcome:
    if new is None or old is None:
        which = "this report" if new is None else "the baseline"
        return GateOutcome(
            expression=name, outcome="inconclusive", reason=f"{which} has no such value"
        )
    growth = math.log(new[0] / old[0])
    low = growth - math.hypot(math.log(new[0] / new[1]), math.log(old[2] / old[0]))
    high = growth + math.hypot(math.log(new[2] / new[0]), math.log(old[0] / old[1]))
    limit = math.log1p(allowed)
    text = (
        f"{number(old[0])} before, {number(new[0])} now: {100 * math.expm1(growth):+.1f} %, "
        f"95 % interval {_growth(low)} to {_growth(high)}{note}"
    )
    if low > limit:
        kind = "fail"
    elif high <= limit:
        kind = "pass"
    else:
        kind = "inconclusive"
        text += ": straddles the limit"
    return GateOutcome.model_validate(
        {
            "expression": name,
            "outcome": kind,
            "reason": text,
            "value": math.expm1(growth),
            "low": math.expm1(low) if low < 700 else None,
            "high": math.expm1(high) if high < 700 else None,
        }
    )


def _growth(log_ratio: float) -> str:
    return "∞" if log_ratio > 20 else f"{100 * math.expm1(log_ratio):+.1f} %"


def _solver_error(groups: list[Group]) -> float:
    return max((g.error_bound or 0.0 for g in groups), default=0.0)


def _kappa(doc: KappaDocument, paired: bool) -> Interval | None:
    kappa = doc.kappa
    if kappa.value is None or kappa.status != "ok" or kappa.value <= 0:
        return None
    if paired:
        # Both ends of the ratio may be off; layers that did not converge count in κ too.
        counted = [g for g in doc.groups if kappa.include_head or not g.is_head]
        error = 2 * _solver_error([g for g in counted if g.status in {"ok", "unconverged"}])
        return kappa.value, kappa.value / (1 + error), kappa.value * (1 + error)
    low = kappa.low if kappa.low and kappa.low > 0 else kappa.value
    high = kappa.high or (math.inf if kappa.low is not None else kappa.value)
    return kappa.value, min(low, kappa.value), max(high, kappa.value)


def _shared(new: KappaDocument, old: KappaDocument) -> set[str]:
    def usable(doc: KappaDocument) -> set[str]:
        return {g.name for g in doc.groups if g.status == "ok" and g.s and not g.is_head}

    return usable(new) & usable(old)


def _top(doc: KappaDocument, names: set[str], paired: bool) -> Interval | None:
    groups = [g for g in doc.groups if g.name in names and g.s is not None]
    if not groups:
        return None
    top = max(groups, key=lambda g: g.s or 0.0)
    assert top.s is not None
    if paired:
        error = top.error_bound or 0.0
        return top.s, top.s / (1 + error), top.s * (1 + error)
    low, high = top.interval
    floor = top.s * 1e-9  # a lower end at 0 has no logarithm
    return top.s, top.s if low is None else max(low, floor), top.s if high is None else high
