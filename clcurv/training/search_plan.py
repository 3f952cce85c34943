"""What the hyper-parameter search tries next: a function of the trials so far. No torch here.

The continual hyper-parameter search of Suresh et al. (arXiv 2608.00630), after the framework of
De Lange et al. (2021): nothing but the current task is needed.

==============  =================================================================================
``reference``   without penalty, one trial a learning rate; the best score is the plasticity
                reference, its rate the η of what follows
``uniform``     penalty λ/2 Σ α_past (θ−θ*)², λ from 1/(η·max α) down, until the score is within
                the allowed drop of the reference
``lambda-down`` relative multipliers at that λ, λ_down from 1 down, ...
``lambda-up``   ... then λ_up from its highest value down (m from 1), until the score beats the
                uniform one or reaches the reference
==============  =================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from clcurv.errors import NumericalError, UsageError

Phase = Literal["reference", "uniform", "lambda-down", "lambda-up"]
RELATIVE: tuple[Phase, ...] = ("lambda-down", "lambda-up")


@dataclass(frozen=True)
class Plan:
    """A trial to run.

    Attributes:
        phase, number: Where in the search; numbers from 1 in each phase.
        lr: Learning rate.
        lambda_: λ; 0 without penalty.
        lambda_down: Factor below τ.
        m: Place of λ_up between its lowest (0) and highest (1) value.
    """

    phase: Phase
    number: int
    lr: float
    lambda_: float = 0.0
    lambda_down: float = 1.0
    m: float = 1.0


@dataclass(frozen=True)
class Trial:
    """A trial that was run.

    Attributes:
        phase, number, lr, lambda_down, m: As planned.
        lambda_: λ as used: planned, or the ceiling 1/(η·max α') of its multipliers if lower.
        status: ``ok``, or ``diverged`` (no score).
        score, loss: Of the validation part.
        acceptable: Whether the score is within the allowed drop of the reference; in the phase
            ``reference`` whether there is one.
        steps, seconds: What it took.
    """

    phase: Phase
    number: int
    lr: float
    lambda_: float
    lambda_down: float
    m: float
    status: Literal["ok", "diverged"]
    score: float | None
    loss: float | None
    acceptable: bool
    steps: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """Of the search; the trials themselves follow `LookAheadOptions`.

    Attributes:
        learning_rates: Tried without penalty, in this order.
        allowed_drop: Part of the reference score that may be lost.
        max_trials: Most trials in each phase.
        lambda_decay, down_decay: Factors of λ and λ_down from trial to trial.
        up_step: Step of m, from 1 down.
    """

    learning_rates: tuple[float, ...]
    allowed_drop: float = 0.1
    max_trials: int = 10
    lambda_decay: float = 0.9
    down_decay: float = 0.8
    up_step: float = 0.1

    def __post_init__(self) -> None:
        rates = self.learning_rates
        if not rates or not all(0 < rate < math.inf for rate in rates):
            raise UsageError("the search needs learning rates above 0")
        if not 0 <= self.allowed_drop < 1:
            raise UsageError(f"the allowed drop is a part below 1, not {self.allowed_drop}")
        if self.max_trials < 1:
            raise UsageError(f"a phase needs at least one trial, not {self.max_trials}")
        for name in ("lambda_decay", "down_decay", "up_step"):
            if not 0 < getattr(self, name) < 1:
                raise UsageError(f"{name} lies between 0 and 1, not at {getattr(self, name)}")


def next_plan(
    settings: SearchSettings,
    trials: Sequence[Trial],
    *,
    largest_importance: float,
    up_matters: bool = True,
) -> Plan | None:
    """The next trial, or None when the search is over.

    Args:
        settings: Of the search.
        trials: All trials so far, in order.
        largest_importance: max α of the past.
        up_matters: Whether λ_up has room to move for any tensor; the phase ``lambda-up`` is left
            out where it has none.

    Raises:
        NumericalError: The past importance vanishes, or no learning rate gave a score.
    """
    tried = _of(trials, "reference")
    rates = settings.learning_rates[: settings.max_trials]
    if len(tried) < len(rates):
        return Plan("reference", len(tried) + 1, rates[len(tried)])
    lr = reference_trial(trials).lr
    uniform = _of(trials, "uniform")
    if not any(t.acceptable for t in uniform) and len(uniform) < settings.max_trials:
        start = ceiling(lr, largest_importance)
        lambda_ = start * settings.lambda_decay ** len(uniform)
        return Plan("uniform", len(uniform) + 1, lr, lambda_)
    lambda_ = uniform_trial(trials).lambda_
    down, up = _of(trials, "lambda-down"), _of(trials, "lambda-up")
    if _reached(trials, down) or _reached(trials, up):
        return None
    if len(down) < settings.max_trials:
        factor = settings.down_decay ** len(down)
        return Plan("lambda-down", len(down) + 1, lr, lambda_, factor)
    # m = 1 was the last trial of the phase before.
    steps = min(settings.max_trials, int(1 / settings.up_step + 1e-9))
    if up_matters and len(up) < steps:
        m = max(0.0, round(1 - settings.up_step * (len(up) + 1), 12))
        return Plan("lambda-up", len(up) + 1, lr, lambda_, down[-1].lambda_down, m)
    return None


def ceiling(lr: float, largest: float) -> float:
    """1/(η·max α): above it a gradient step on the penalty overshoots θ*.

    Raises:
        NumericalError: max α is zero or not finite.
    """
    bound = 1 / (lr * largest) if largest > 0 else math.inf
    if not 0 < bound < math.inf:
        raise NumericalError(
            f"the largest importance for the past is {largest:g}: there is nothing to hold",
            hint="measure the importance on data that the network was trained on",
        )
    return bound


def is_acceptable(score: float | None, reference: float, allowed_drop: float) -> bool:
    """Whether a score is within the allowed part of the reference's size."""
    return score is not None and score >= reference - allowed_drop * abs(reference)


def reference_trial(trials: Sequence[Trial]) -> Trial:
    """The best trial without penalty: highest score, then lowest loss, then the first.

    Raises:
        NumericalError: All of them diverged.
    """
    scored = [t for t in _of(trials, "reference") if t.score is not None]
    if not scored:
        raise NumericalError(
            "training on the current task diverged at every learning rate",
            hint="a smaller learning rate, or a gradient clipped to 1",
        )
    return max(scored, key=_rank)


def uniform_trial(trials: Sequence[Trial]) -> Trial:
    """The acceptable trial with the largest λ; without one the best, else the last."""
    uniform = _of(trials, "uniform")
    held = [t for t in uniform if t.acceptable]
    if held:
        return held[0]
    scored = [t for t in uniform if t.score is not None]
    return max(scored, key=_rank) if scored else uniform[-1]


def chosen_trial(trials: Sequence[Trial]) -> Trial:
    """What the search recommends: the best acceptable trial, not the last.

    Of the relative trials the acceptable one with the highest score (among equals the first, which
    holds most); without one the uniform trial if acceptable; else the best of all with a penalty.
    """
    relative = [t for t in trials if t.phase in RELATIVE]
    held = [t for t in relative if t.acceptable]
    if held:
        return max(held, key=lambda t: t.score if t.score is not None else -math.inf)
    uniform = uniform_trial(trials)
    if uniform.acceptable:
        return uniform
    scored = [t for t in (uniform, *relative) if t.score is not None]
    return max(scored, key=_rank) if scored else uniform


def _reached(trials: Sequence[Trial], relative: Sequence[Trial]) -> bool:
    """Whether the last relative trial beat the uniform one or reached the reference."""
    if not relative or relative[-1].score is None:
        return False
    score, uniform = relative[-1].score, uniform_trial(trials).score
    reference = reference_trial(trials).score
    assert reference is not None
    return score >= reference or (relative[-1].acceptable and (uniform is None or score > uniform))


def _of(trials: Sequence[Trial], phase: Phase) -> list[Trial]:
    return [t for t in trials if t.phase == phase]


def _rank(trial: Trial) -> tuple[float, float]:
    assert trial.score is not None
    assert trial.loss is not None
    return trial.score, -trial.loss
