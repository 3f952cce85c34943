"""Does a network learn less well than an earlier report's on the same stream?

Looked at is the last task that both reports measured, met with equal data. Three numbers must
not fall by more than the allowed fraction: the ε-rank fraction (for ε_fast where both have it,
with the same band; else relative to λ_max), the share of the residual in fast modes, and the
mean effective rank. The fall is 1 − new/old. For the ε-rank it gets a 95 % interval from the
intervals over the probes (recovered variances of a log ratio: Zou and Donner, *Construction of
confidence limits about effect measures*, Statistics in Medicine 2008).
"""

from __future__ import annotations

import math

from clcurv.report.document import GateOutcome
from clcurv.report.spectrum_document import EpsRankInfo, SpectrumDocument, TaskInfo
from clcurv.report.text import number, percent, printable

Interval = tuple[float, float, float]  # value, low, high


def compare(new: SpectrumDocument, old: SpectrumDocument, allowed: float) -> list[GateOutcome]:
    """One outcome for each of the three numbers, where the reports have it.

    Args:
        new: The report to judge.
        old: The baseline.
        allowed: Fraction by which a number may fall, e.g. 0.1.
    """
    titles = [f"{x} fall>{percent(allowed)}" for x in ("ε-rank", "fast share", "effective rank")]
    pair = _last_shared(new, old)
    reason = _incomparable(new, old)
    if pair is None:
        reason = reason or "no task was measured in both reports with equal data"
    if pair is None or reason:
        return [GateOutcome(expression=x, outcome="inconclusive", reason=reason) for x in titles]
    now, before = pair
    found = (_ranks(now, before), _shares(now, before), _effective(now, before))
    return [
        _outcome(title, values, allowed, now)
        for title, values in zip(titles, found, strict=True)
        if values is not None
    ]


def _last_shared(new: SpectrumDocument, old: SpectrumDocument) -> tuple[TaskInfo, TaskInfo] | None:
    earlier = {t.index: t for t in old.tasks if t.status == "ok"}
    pairs = [(t, earlier[t.index]) for t in new.tasks if t.status == "ok" and t.index in earlier]
    pairs = [(now, before) for now, before in pairs if now.digest == before.digest]
    return pairs[-1] if pairs else None


def _incomparable(new: SpectrumDocument, old: SpectrumDocument) -> str:
    def sizes(doc: SpectrumDocument) -> list[int]:
        return sorted({t.spectrum.n_parameters for t in doc.tasks if t.spectrum})

    pairs = {
        "operator": (new.estimator.operator, old.estimator.operator),
        "loss": (new.estimator.loss, old.estimator.loss),
        "parameters": (sizes(new), sizes(old)),
    }
    found = [f"{k} {now} now, {was} before" for k, (now, was) in pairs.items() if now != was]
    return f"not comparable: {printable('; '.join(found))}" if found else ""


def _ranks(now: TaskInfo, before: TaskInfo) -> tuple[Interval, Interval] | str:
    if now.eps_rank is None or before.eps_rank is None:
        return "a report has no ε-rank"
    new, old = now.eps_rank.fast, before.eps_rank.fast
    if new is None or old is None or (new.eps, new.upper) != (old.eps, old.upper):
        new, old = now.eps_rank.relative, before.eps_rank.relative
    ours, theirs = _rank(new, "this report's"), _rank(old, "the baseline's")
    if isinstance(ours, str) or isinstance(theirs, str):
        return ours if isinstance(ours, str) else str(theirs)
    return ours, theirs


def _rank(rank: EpsRankInfo, whose: str) -> Interval | str:
    if rank.status != "ok":
        return f"{whose} ε-rank is {rank.status}"
    if rank.fraction is None or rank.low is None or rank.high is None:
        return f"{whose} ε-rank has no interval"
    return rank.fraction, rank.low, rank.high


def _shares(now: TaskInfo, before: TaskInfo) -> tuple[Interval, Interval] | str | None:
    new, old = now.fast_modes, before.fast_modes
    if new is None or old is None or (new.lower, new.upper) != (old.lower, old.upper):
        return None
    if {new.status, old.status} != {"ok"} or new.share is None or old.share is None:
        return "the share of fast modes is not resolved"
    return (new.share,) * 3, (old.share,) * 3


def _effective(now: TaskInfo, before: TaskInfo) -> tuple[Interval, Interval] | str | None:
    new, old = now.effective_rank, before.effective_rank
    if new is None or old is None or new.value is None or old.value is None:
        return None
    if [(x.name, x.d) for x in now.features] != [(x.name, x.d) for x in before.features]:
        return "other layers than the baseline's"
    return (new.value,) * 3, (old.value,) * 3


def _outcome(
    title: str, values: tuple[Interval, Interval] | str, allowed: float, task: TaskInfo
) -> GateOutcome:
    if isinstance(values, str):
        return GateOutcome(expression=title, outcome="inconclusive", reason=values)
    new, old = values
    if old[0] <= 0:
        return GateOutcome(
            expression=title, outcome="inconclusive", reason="the baseline's value is zero"
        )
    ratio, low, high = _ratio(new, old)
    text = (
        f"task {task.index}: {number(old[0])} before, {number(new[0])} now: "
        f"{100 * (ratio - 1):+.1f} %"
    )
    if low != high:
        text += f", 95 % interval {100 * (low - 1):+.1f} % to {100 * (high - 1):+.1f} %"
    limit = 1 - allowed
    if high < limit:
        kind = "fail"
    elif low >= limit:
        kind = "pass"
    else:
        kind = "inconclusive"
        text += ": straddles the limit"
    return GateOutcome.model_validate(
        {
            "expression": title,
            "outcome": kind,
            "reason": text,
            "value": 1 - ratio,
            "low": 1 - high if math.isfinite(high) else None,
            "high": 1 - low,
        }
    )


def _ratio(new: Interval, old: Interval) -> Interval:
    """new/old with its interval."""
    ratio = new[0] / old[0]
    if new[0] <= 0:
        high = new[2] / old[1] if old[1] > 0 else math.inf
        return ratio, 0.0, high
    down = math.hypot(_log(new[0], new[1]), _log(old[2], old[0]))
    up = math.hypot(_log(new[2], new[0]), _log(old[0], old[1]))
    return ratio, ratio * math.exp(-down), ratio * math.exp(up) if up < 700 else math.inf


def _log(upper: float, lower: float) -> float:
    return math.log(upper / lower) if lower > 0 else math.inf
