"""Numbers over a stream beside their reference -> a verdict. No torch here.

No source gives a threshold below which a network has collapsed, so later tasks are compared
with a reference, and three figures must agree before the word is used: eigenvalues beyond ε,
the residual's share in fast modes, and the effective rank of the features (Prakash et al., arXiv
2509.22335). Even then it is a risk: networks of low rank that learn well are known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from clcurv.diagnostics.spectrum import EpsRank, SpectrumResult, TaskDiagnosis

VerdictName = Literal["healthy", "at risk", "collapsed", "inconclusive"]
Direction = Literal["falls", "flat", "rises", "unknown"]

FELL = 0.8  # of the reference; ours: a fifth is more than tasks of one stream differ by chance
LATE = 0.25  # the last quarter of the tasks speaks for the end of the stream
MOST = 0.75  # of them must lie below the reference one by one: tasks of a stream scatter
_KINDS = {
    "first-task": "at the first task",
    "checkpoint": "in the reference checkpoint",
    "fresh": "in a fresh copy",
}


@dataclass(frozen=True)
class Signal:
    """One figure at the end of the stream beside its reference.

    Attributes:
        name: ``eps_rank.fast`` | ``eps_rank.relative`` | ``fast_modes.share`` |
            ``effective_rank``.
        value: Median over the late tasks; None where it is not known there.
        reference: The reference's.
        ratio: value/reference.
        direction: ``falls`` below 0.8 of the reference (with three quarters of the late tasks
            below it, and beyond the intervals and errors where there are any), ``rises`` above
            1/0.8, ``flat`` between.
        agrees: Whether it speaks for a collapse; None where it cannot be told.
        reason: Why not.
    """

    name: str
    value: float | None
    reference: float | None
    ratio: float | None
    direction: Direction
    agrees: bool | None
    reason: str = ""


@dataclass(frozen=True)
class Verdict:
    """What the signals say together.

    Attributes:
        verdict: ``collapsed`` where all three fell; ``at risk`` where the ε-rank or the
            effective rank did; ``healthy`` where neither did (the fast share alone hangs on the
            few samples that the network is most wrong about); ``inconclusive`` where fewer than
            two can be told.
        evidence: The figures, in a sentence.
        signals: ε-rank, fast share, effective rank.
        late: Index of the tasks that speak for the end of the stream.
    """

    verdict: VerdictName
    evidence: str
    signals: tuple[Signal, ...]
    late: tuple[int, ...]


def judge(result: SpectrumResult) -> Verdict:
    """Compare the last quarter of the stream with its reference."""
    late, reference = late_tasks(result), result.reference
    fast = _eps_rank(late, reference, "fast")
    # Where ε_fast is not resolved, an ε further from zero may be.
    eps = fast if fast.agrees is not None else _eps_rank(late, reference, "relative")
    signals = (
        eps if eps.agrees is not None or not _asked(late, reference) else fast,
        _signal(
            "fast_modes.share",
            late,
            reference,
            _share,
            "no --lr and --steps were given",
            error=lambda task: task.fast_modes.share_stderr if task.fast_modes else None,
        ),
        _effective_rank(late, reference),
    )
    known = [s for s in signals if s.agrees is not None]
    fell = [s for s in known if s.agrees]
    verdict: VerdictName
    if len(known) < 2:
        verdict = "inconclusive"
    elif len(fell) == len(signals):
        verdict = "collapsed"
    else:
        verdict = "at risk" if any(s.name != "fast_modes.share" for s in fell) else "healthy"
    return Verdict(
        verdict=verdict,
        evidence=_evidence(verdict, result, late, signals),
        signals=signals,
        late=tuple(x.index for x in late),
    )


def late_tasks(result: SpectrumResult) -> tuple[TaskDiagnosis, ...]:
    """The last quarter of the tasks that did not fail; never the reference itself."""
    done = [x for x in result.tasks if x.status == "ok"]
    count = math.ceil(LATE * len(done))
    if result.reference_kind == "first-task":
        done = [x for x in done if x.index != result.reference.index]
    return tuple(done[-count:]) if done else ()


def mean_effective_rank(task: TaskDiagnosis) -> float | None:
    """Mean over the layers of the effective rank of the activations; None without any."""
    return sum(x.erank for x in task.features) / len(task.features) if task.features else None


def mean_effective_rank_stderr(task: TaskDiagnosis) -> float | None:
    """Of that mean over the samples, at most: the mean of the layers' errors; None if one lacks."""
    errors = [x.erank_stderr for x in task.features if x.erank_stderr is not None]
    return sum(errors) / len(errors) if errors and len(errors) == len(task.features) else None


def _rank(task: TaskDiagnosis, which: str) -> EpsRank | None:
    rank: EpsRank | None = getattr(task.spectrum, f"rank_{which}") if task.spectrum else None
    return rank if rank is not None and rank.status == "ok" else None


def _asked(late: Sequence[TaskDiagnosis], reference: TaskDiagnosis) -> bool:
    """Whether ε_fast is known: a learning rate and steps were given."""
    return any(x.spectrum and x.spectrum.rank_fast for x in (*late, reference))


def _share(task: TaskDiagnosis) -> float | None:
    modes = task.fast_modes
    return modes.share if modes is not None and modes.status == "ok" else None


def _signal(
    name: str,
    late: Sequence[TaskDiagnosis],
    reference: TaskDiagnosis,
    read: Callable[[TaskDiagnosis], float | None],
    missing: str,
    *,
    error: Callable[[TaskDiagnosis], float | None] = lambda task: None,
) -> Signal:
    found = [x for x in map(read, late) if x is not None and math.isfinite(x)]
    base = read(reference)
    value = median(found) if found else None
    # A median of few of the late tasks would be of those that happened to be measurable.
    if value is None or 2 * len(found) < len(late) or base is None or not math.isfinite(base):
        return Signal(name, value, base, None, "unknown", None, missing)
    if base <= 0:
        return Signal(name, value, base, None, "unknown", None, "it is zero in the reference")
    ratio = value / base
    direction: Direction = "falls" if ratio < FELL else "rises" if ratio > 1 / FELL else "flat"
    if direction == "falls" and sum(x < base for x in found) < MOST * len(found):
        return Signal(name, value, base, ratio, "flat", False, "the tasks scatter about it")
    # Errors of one task's figures; their median over late tasks has no larger one.
    errors = [x for x in map(error, late) if x is not None]
    spread = math.hypot(error(reference) or 0.0, median(errors) if errors else 0.0)
    if direction == "falls" and base - value <= 1.96 * spread:
        return Signal(name, value, base, ratio, "flat", False, "the difference is within errors")
    return Signal(name, value, base, ratio, direction, direction == "falls")


def _eps_rank(late: Sequence[TaskDiagnosis], reference: TaskDiagnosis, which: str) -> Signal:
    def fraction(task: TaskDiagnosis) -> float | None:
        rank = _rank(task, which)
        return rank.fraction if rank else None

    ranks = [(x, getattr(x.spectrum, f"rank_{which}")) for x in (*late, reference) if x.spectrum]
    reasons = [
        ("in the reference " if x is reference else "") + (r.reason or r.status)
        for x, r in ranks
        if r is not None and r.status != "ok"
    ]
    missing = reasons[0] if reasons else "it was not measured"
    signal = _signal(f"eps_rank.{which}", late, reference, fraction, missing)
    if signal.direction != "falls":
        return signal
    base = _rank(reference, which)
    highs = [r.high if r.high is not None else r.count for x in late if (r := _rank(x, which))]
    floor = base.low if base and base.low is not None else base.count if base else 0.0
    if median(highs) < floor:
        return signal
    return Signal(
        signal.name,
        signal.value,
        signal.reference,
        signal.ratio,
        "flat",
        False,
        "the intervals over the probes overlap",
    )


def _effective_rank(late: Sequence[TaskDiagnosis], reference: TaskDiagnosis) -> Signal:
    def layout(task: TaskDiagnosis) -> tuple[tuple[str, int, int], ...]:
        return tuple((x.name, x.d, x.n if not x.enough else 0) for x in task.features)

    def comparable(task: TaskDiagnosis) -> float | None:
        return mean_effective_rank(task) if layout(task) == layout(reference) else None

    return _signal(
        "effective_rank",
        late,
        reference,
        comparable,
        "layers or numbers of samples differ from the reference's",
        error=mean_effective_rank_stderr,
    )


def _evidence(
    verdict: VerdictName,
    result: SpectrumResult,
    late: Sequence[TaskDiagnosis],
    signals: Sequence[Signal],
) -> str:
    if not late:
        return (
            "One task cannot show a trend: give a longer stream, or a reference "
            "(--reference fresh, or a checkpoint)."
        )
    where = _KINDS[result.reference_kind]
    told = [_clause(s, where) for s in signals]
    n = len(late)
    span = f"the last {n} of {len(result.tasks)} tasks" if n > 1 else f"task {late[0].index}"
    meaning = {
        "healthy": "neither rank fell below 0.8 of the reference, so there is no sign of a loss "
        "of plasticity",
        "at risk": "some fell and others did not, which is a warning and no more: plasticity may "
        "be on its way down",
        "collapsed": "all three fell together, as they do in networks that stop learning; a "
        "risk, not a proof, since networks of low rank that learn well are known",
        "inconclusive": "fewer than two of the three can be told, so nothing is concluded",
    }[verdict]
    if verdict == "at risk" and all(s.agrees for s in signals if s.agrees is not None):
        meaning = (
            "what can be told fell, but one of three figures is missing, and only all three "
            "together are called a collapse"
        )
    return f"Over {span}: {'; '.join(told)}. Together: {meaning}."


def _clause(signal: Signal, where: str) -> str:
    label = {
        "eps_rank.fast": "eigenvalues beyond ε_fast",
        "eps_rank.relative": "eigenvalues beyond ε relative to λ_max",
        "fast_modes.share": "share of the residual in fast modes",
        "effective_rank": "mean effective rank",
    }[signal.name]
    if signal.value is None or signal.reference is None or signal.ratio is None:
        return f"{label} not known ({signal.reason})"
    text = f"{label} {_figure(signal, signal.value)} against {_figure(signal, signal.reference)}"
    text += f" {where} (×{signal.ratio:.2f})"
    return f"{text}, {signal.reason}" if signal.reason else text


def _figure(signal: Signal, value: float) -> str:
    return f"{value:.1f}" if signal.name == "effective_rank" else f"{100 * value:.3g} %"
