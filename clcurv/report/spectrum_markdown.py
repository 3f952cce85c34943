"""The report of ``clcurv spectrum`` as Markdown."""

from __future__ import annotations

from clcurv.report.markdown import closing, code, plain
from clcurv.report.spectrum_document import SpectrumDocument, TaskInfo
from clcurv.report.spectrum_summary import (
    accuracy_text,
    erank_text,
    findings,
    heading,
    lambda_min_text,
    rank_text,
    share_text,
    trace_text,
)
from clcurv.report.spectrum_table import sparklines
from clcurv.report.text import number

_COLUMNS = (
    "",
    "task",
    "checkpoint",
    "n",
    "loss",
    "accuracy",
    "λ_max",
    "λ_min",
    "trace",
    "ε-rank fast",
    "ε-rank relative",
    "fast share",
    "effective rank",
    "spectrum",
)


def spectrum_page(doc: SpectrumDocument) -> str:
    """A GitHub-flavoured Markdown page; names are code spans, so nothing in them acts."""
    lines = ["### clcurv spectrum", ""]
    lines += [f"- **{label}**: {plain(text)}" for label, text in heading(doc)]
    sparks, caption = sparklines(doc, 12)
    lines += ["", *_table(doc, sparks)]
    lines += ["", plain(caption)] if caption else []
    (label, verdict), *rest = findings(doc)
    lines += ["", f"- **{label}**: **{plain(verdict)}**"]
    lines += [f"- **{name}**: {plain(text)}" for name, text in rest]
    if doc.l2er is not None and doc.l2er.er_lr:
        lines += ["", plain(doc.l2er.derivation)]
    lines += closing(doc)
    return "\n".join(lines) + "\n"


def _table(doc: SpectrumDocument, sparks: dict[int, str]) -> list[str]:
    rows = [f"| {' | '.join(_COLUMNS)} |", "|--:|---|---|" + "--:|" * (len(_COLUMNS) - 4) + "---|"]
    rows += [f"| {' | '.join(_cells(task, sparks.get(task.index, '')))} |" for task in doc.tasks]
    return rows


def _cells(task: TaskInfo, spark: str) -> list[str]:
    first = [str(task.index), code(task.name), code(task.checkpoint), str(task.n_samples)]
    if task.status == "failed" or task.spectrum is None or task.eps_rank is None:
        return [*first, f"failed: {plain(task.reason)}", *["–"] * (len(_COLUMNS) - 5)]
    return [
        *first,
        number(task.mean_loss),
        accuracy_text(task),
        number(task.spectrum.lambda_max),
        lambda_min_text(task.spectrum),
        trace_text(task.spectrum),
        rank_text(task.eps_rank.fast),
        rank_text(task.eps_rank.relative),
        share_text(task.fast_modes),
        erank_text(task),
        code(spark) if spark.strip() else "",
    ]
