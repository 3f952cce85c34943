"""The facts around the table, once for every text format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clcurv.report.parts import model_text
from clcurv.report.text import interval, number, percent, printable

if TYPE_CHECKING:
    from clcurv.report.kappa_document import CrossCheckInfo, KappaDocument

OUTCOME_WORDS = {"pass": "holds", "fail": "FAILED", "inconclusive": "inconclusive"}


def heading(doc: KappaDocument) -> list[tuple[str, str]]:
    """Label and text: what was measured on what."""
    model, data, estimator = doc.model, doc.data, doc.estimator
    skill = [] if data.accuracy is None else [f"accuracy {percent(data.accuracy)}"]
    if data.accuracy is not None and data.chance is not None:
        skill[0] += f" (chance {percent(data.chance)})"
    if data.mean_loss is not None:
        skill.append(f"mean loss {number(data.mean_loss)}")
    origin = data.path or {"generated": "generated from the model"}.get(data.source, "given")
    labels = "labels drawn from the model, " if data.label_source == "model" else ""
    work = (
        f", {number(estimator.cost_gradients)} gradients' work" if estimator.cost_gradients else ""
    )
    return [
        (
            "model",
            model_text(model),
        ),
        ("data", f"{printable(origin)}: {data.n_samples} samples, {labels}{', '.join(skill)}"),
        (
            "estimator",
            f"{estimator.operator} of {estimator.loss}, by {printable(estimator.granularity)}, "
            f"{estimator.dtype} on {estimator.device}{work}",
        ),
    ]


def findings(doc: KappaDocument) -> list[tuple[str, str]]:
    """Label and text: κ, direction, γ, regret, PyHessian's numbers."""
    kappa, schedule = doc.kappa, doc.schedule
    rows = []
    if kappa.value is None:
        rows.append(("κ", f"refused: {printable(kappa.reason)}"))
    else:
        text = interval(kappa.value, kappa.low, kappa.high)
        if kappa.p90_p10 is not None:
            text += f", p90/p10 {number(kappa.p90_p10)}"
        if kappa.status != "ok":
            text += f", refused: {printable(kappa.reason)}"
        rows.append(("κ", text))
    rows.append(("direction", direction_text(doc)))
    if schedule.regret_bound is not None:
        regret = f"at most {percent(schedule.regret_bound)}"
        if schedule.regret_measured is not None:
            regret += f", {percent(schedule.regret_measured)} for the new task"
        if schedule.direction == "flat":
            regret += "; without a trend over depth no schedule here saves it"
        rows.append(("cost of uniform λ", regret))
    if doc.cross_check:
        rows.append(("cross-check", "; ".join(map(_both_values, doc.cross_check))))
    return rows


def _both_values(check: CrossCheckInfo) -> str:
    ours, theirs = (
        "–" if s is None else f"{s:.4g}" for s in (check.s, check.s_pyhessian)
    )  # two digits more than elsewhere: they differ there
    text = f"{printable(check.name)} {ours}, PyHessian {theirs}"
    if check.relative_difference is None:
        return text
    return f"{text} ({100 * check.relative_difference:.2f} % apart)"


def direction_text(doc: KappaDocument) -> str:
    """``early (λ falls with depth), γ 0.88 (95 % 0.83 to 0.93)``."""
    schedule = doc.schedule
    words = {
        "early": "early (s falls with depth)",
        "late": "late (s rises with depth)",
        "flat": "flat",
    }[schedule.direction]
    if schedule.gamma is None:
        return words
    level = "" if schedule.level is None else f"{100 * schedule.level:.0f} % "
    text = f"{words}, γ {number(schedule.gamma)}"
    if schedule.gamma_low is not None and schedule.gamma_high is not None:
        text += f" ({level}{number(schedule.gamma_low)} to {number(schedule.gamma_high)})"
    if schedule.r2 is not None:
        text += f", R² {schedule.r2:.2f}"
    if schedule.spearman is not None:
        text += f", Spearman {schedule.spearman:+.2f}"
    return text
