"""The facts around the table of layers, and the table's cells, once for every text format."""

from __future__ import annotations

from typing import Protocol

from clcurv.report.parts import model_text
from clcurv.report.relimp_document import (
    AgreementInfo,
    RelimpDocument,
    RelimpLayer,
    SearchInfo,
    TaskSideInfo,
)
from clcurv.report.text import interval, number, percent, printable

_ESTIMATORS = {
    "mas": "MAS",
    "fisher": "exact Fisher",
    "fisher-sampled": "sampled Fisher",
    "fisher-empirical": "empirical Fisher",
}
_TAUS = {
    "scaled-mean": "0.8 × mean α_rel",
    "fixed": "0.5",
    "mean-plus-std": "mean + std of α_rel",
}


class TrialLike(Protocol):
    """A trial of the search, as measured or as in a report."""

    @property
    def phase(self) -> str: ...
    @property
    def number(self) -> int: ...
    @property
    def lr(self) -> float: ...
    @property
    def lambda_(self) -> float: ...
    @property
    def lambda_down(self) -> float: ...
    @property
    def m(self) -> float: ...
    @property
    def status(self) -> str: ...
    @property
    def score(self) -> float | None: ...
    @property
    def acceptable(self) -> bool: ...
    @property
    def seconds(self) -> float: ...


def heading(doc: RelimpDocument) -> list[tuple[str, str]]:
    """Label and text: what was measured on what."""
    model, estimator = doc.model, doc.estimator
    work = (
        f", {number(estimator.cost_gradients)} gradients' work" if estimator.cost_gradients else ""
    )
    rows = [
        (
            "model",
            model_text(model),
        ),
        ("past", side_text(doc.past)),
    ]
    if doc.current is not None:
        after = " after the look-ahead" if doc.look_ahead is not None else ""
        rows.append(("current", side_text(doc.current) + after))
    if doc.look_ahead is not None:
        rows.append(("look-ahead", look_ahead_text(doc)))
    rows.append(
        (
            "estimator",
            f"{_ESTIMATORS[estimator.estimator]}, {printable(estimator.compat)}, of "
            f"{estimator.loss}, {estimator.dtype} on {printable(estimator.device)}{work}",
        )
    )
    return rows


def side_text(side: TaskSideInfo) -> str:
    """``old/: 512 samples, accuracy 98.0 % (chance 10.0 %), mean loss 0.0929``."""
    origins = [printable(x) for x in (side.importance_path, side.path) if x]
    text = f"{' and '.join(origins) or 'given'}: {side.n_samples} samples"
    if side.accumulated > 1:
        text += f" of each of {side.accumulated} tasks"
    if side.accuracy is not None:
        chance = "" if side.chance is None else f" (chance {percent(side.chance)})"
        text += f", accuracy {percent(side.accuracy)}{chance}"
    if side.mean_loss is not None:
        text += f", mean loss {number(side.mean_loss)}"
    return text


def look_ahead_text(doc: RelimpDocument) -> str:
    """How the copy was trained, and what it gained."""
    ahead = doc.look_ahead
    if ahead is None:
        return "–"
    momentum = f", momentum {ahead.momentum:g}" if ahead.momentum else ""
    stop = ", stopped early" if ahead.stopped_early else ""
    new = f", {ahead.new_classes} new classes" if ahead.new_classes else ""
    if ahead.score_after is not None and ahead.score_before is not None and ahead.score_after >= 0:
        gain = f"validation accuracy {percent(ahead.score_before)} → {percent(ahead.score_after)}"
    else:
        gain = f"validation loss {number(ahead.loss_before)} → {number(ahead.loss_after)}"
    return (
        f"{ahead.optimizer}, lr {number(ahead.lr)}{momentum}, {ahead.steps} steps of "
        f"{ahead.batch_size}{stop}{new}: {gain}"
    )


def findings(doc: RelimpDocument) -> list[tuple[str, str]]:
    """Label and text: shares, agreement, thresholds, the penalty."""
    rows = []
    if doc.shares is not None:
        shares = doc.shares
        rows.append(
            (
                "parameters",
                f"{percent(shares.protected)} protected, {percent(shares.shared)} shared, "
                f"{percent(shares.free)} free (outside the head)",
            )
        )
    if doc.agreement is not None:
        rows.append(("agreement", agreement_text(doc.agreement)))
    penalty = doc.penalty
    if penalty is not None:
        up, down = number(penalty.lambda_up), number(penalty.lambda_down)
        factors = f"λ_up up to {up} above, λ_down {down}"
        rows.append(
            (
                "τ",
                f"{number(penalty.tau)} on average ({_TAUS[doc.estimator.tau_mode]}, by tensor); "
                f"{factors} below; {doc.estimator.multiplier} form",
            )
        )
        how = "searched" if penalty.searched else "not searched"
        bound = (
            ""
            if penalty.ceiling is None
            else f", at most {number(penalty.ceiling)} at lr {number(penalty.learning_rate)}"
        )
        rows.append(("λ", f"{number(penalty.lambda_)} ({how}){bound}"))
    if not doc.complete:
        rows.append(("partial report", "the run was interrupted"))
    return rows


def advice(doc: RelimpDocument) -> str:
    """One sentence: what to do."""
    if doc.penalty is None:
        return "the past is measured; --current measures what it shares with the next task"
    return doc.penalty.advice


def agreement_text(found: AgreementInfo) -> str:
    """Both measures with their intervals."""
    rank = interval(found.rank_correlation, found.rank_low, found.rank_high)
    return f"rank correlation {rank}, top tenths overlap {overlap_text(found)}"


def overlap_text(found: AgreementInfo | None, *, short: bool = False) -> str:
    """``68.8 % (67.9–69.7)``."""
    if found is None or found.overlap is None:
        return "–"
    text = percent(found.overlap)
    if short or found.overlap_low is None or found.overlap_high is None:
        return text
    return f"{text} ({100 * found.overlap_low:.1f}–{100 * found.overlap_high:.1f})"


def rank_text(found: AgreementInfo | None, *, short: bool = False) -> str:
    """``0.82 (0.81–0.83)``."""
    if found is None or found.rank_correlation is None:
        return "–"
    text = f"{found.rank_correlation:.2f}"
    if short or found.rank_low is None or found.rank_high is None:
        return text
    return f"{text} ({found.rank_low:.2f} to {found.rank_high:.2f})"


def share_text(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def quantile_text(layer: RelimpLayer) -> str:
    """α_rel at 5, 50 and 95 %."""
    if layer.quantiles is None:
        return "–"
    return " ".join(f"{layer.quantiles[i]:.2f}" for i in (0, 2, 4))


def trial_text(trial: TrialLike) -> str:
    """A trial in a line, as it is told when it is done."""
    text = f"search: {trial.phase} {trial.number}: lr {number(trial.lr)}"
    if trial.phase != "reference":
        text += f", λ {number(trial.lambda_)}"
    if trial.phase in ("lambda-down", "lambda-up"):
        text += f", λ_down {number(trial.lambda_down)}, m {trial.m:g}"
    if trial.status == "diverged":
        return f"{text}: diverged"
    kept = "" if trial.phase == "reference" else ", acceptable" if trial.acceptable else ", too low"
    return f"{text}: score {number(trial.score)}{kept} ({trial.seconds:.1f} s)"


def trial_mark(search: SearchInfo, place: int) -> str:
    """What a trial is to the recommendation."""
    marks = {search.reference: "reference", search.uniform: "uniform", search.chosen: "chosen"}
    return marks.get(place, "")
