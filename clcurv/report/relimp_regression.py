"""Does a network share more with its next task, or know its past less well, than before?

Looked at are the share of parameters that matter for both tasks, where both reports are of equal
data, and the accuracy on the past, with its binomial error.
"""

from __future__ import annotations

import math

from clcurv.report.document import GateOutcome
from clcurv.report.relimp_document import RelimpDocument
from clcurv.report.text import percent, printable


def compare(new: RelimpDocument, old: RelimpDocument, allowed: float) -> list[GateOutcome]:
    """One outcome for each of the two numbers.

    Args:
        new: The report to judge.
        old: The baseline.
        allowed: Fraction by which the shared part may rise and the accuracy fall, e.g. 0.1.
    """
    return [_shared(new, old, allowed), _accuracy(new, old, allowed)]


def _shared(new: RelimpDocument, old: RelimpDocument, allowed: float) -> GateOutcome:
    title = f"shared rise>{percent(allowed)}"
    reason = _incomparable(new, old)
    if reason or new.shares is None or old.shares is None:
        reason = reason or "a report is about the past only"
        return GateOutcome(expression=title, outcome="inconclusive", reason=reason)
    now, before = new.shares.shared, old.shares.shared
    if before <= 0:
        fails = now > 0
        rise = math.inf if fails else 0.0
    else:
        rise = now / before - 1
        fails = rise > allowed
    text = f"{percent(before)} before, {percent(now)} now"
    return GateOutcome(
        expression=title,
        outcome="fail" if fails else "pass",
        reason=text,
        value=rise if math.isfinite(rise) else None,
    )


def _accuracy(new: RelimpDocument, old: RelimpDocument, allowed: float) -> GateOutcome:
    title = f"past accuracy fall>{percent(allowed)}"
    now, before = new.past, old.past
    if now.accuracy is None or before.accuracy is None or before.accuracy <= 0:
        return GateOutcome(
            expression=title, outcome="inconclusive", reason="a report has no accuracy on the past"
        )
    fall = 1 - now.accuracy / before.accuracy
    # On the very same sample nothing but the network differs.
    paired = bool(now.digest) and now.digest == before.digest
    error = 0.0 if paired else math.hypot(now.accuracy_stderr or 0.0, before.accuracy_stderr or 0.0)
    spread = 1.96 * error / before.accuracy
    text = f"{percent(before.accuracy)} before, {percent(now.accuracy)} now"
    low, high = fall - spread, fall + spread
    if low > allowed:
        kind = "fail"
    elif high <= allowed:
        kind = "pass"
    else:
        kind = "inconclusive"
        text += f", 95 % interval of the fall {percent(low)} to {percent(high)}"
    return GateOutcome.model_validate(
        {
            "expression": title,
            "outcome": kind,
            "reason": text,
            "value": fall,
            "low": low if spread else None,
            "high": high if spread else None,
        }
    )


def _incomparable(new: RelimpDocument, old: RelimpDocument) -> str:
    def settings(doc: RelimpDocument) -> dict[str, object]:
        return {
            "estimator": doc.estimator.estimator,
            "compat": doc.estimator.compat,
            "loss": doc.estimator.loss,
            "parameters": sum(x.numel for x in doc.layers if not x.is_head),
            "current task": None if doc.current is None else doc.current.digest,
        }

    ours, theirs = settings(new), settings(old)
    found = [f"{k} {ours[k]} now, {theirs[k]} before" for k in ours if ours[k] != theirs[k]]
    return f"not comparable: {printable('; '.join(found))}" if found else ""
