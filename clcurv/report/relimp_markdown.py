"""The report of ``clcurv relimp`` as Markdown."""

from __future__ import annotations

from clcurv.report.markdown import closing, code, plain
from clcurv.report.relimp_document import RelimpDocument, RelimpLayer, SearchInfo
from clcurv.report.relimp_summary import (
    advice,
    findings,
    heading,
    overlap_text,
    quantile_text,
    rank_text,
    share_text,
    trial_mark,
)
from clcurv.report.text import count, number, with_error

_COLUMNS = (
    "layer",
    "depth",
    "parameters",
    "protected",
    "shared",
    "free",
    "α_rel at 5, 50, 95 %",
    "rank correlation",
    "overlap",
    "α past",
    "α current",
    "max α'",
)


def relimp_page(doc: RelimpDocument) -> str:
    """A GitHub-flavoured Markdown page; names are code spans, so nothing in them acts."""
    lines = ["### clcurv relimp", ""]
    lines += [f"- **{label}**: {plain(text)}" for label, text in heading(doc)]
    lines += ["", *_table(doc), ""]
    lines += [f"- **{label}**: {plain(text)}" for label, text in findings(doc)]
    lines += ["", f"**{plain(advice(doc))}**"]
    if doc.search is not None:
        lines += ["", *_trials(doc.search)]
    lines += closing(doc)
    return "\n".join(lines) + "\n"


def _table(doc: RelimpDocument) -> list[str]:
    rows = [f"| {' | '.join(map(plain, _COLUMNS))} |", "|---|" + "--:|" * (len(_COLUMNS) - 1)]
    return rows + [f"| {' | '.join(_cells(layer))} |" for layer in doc.layers]


def _cells(layer: RelimpLayer) -> list[str]:
    return [
        code(layer.name),
        str(layer.depth),
        count(layer.numel),
        share_text(layer.protected),
        share_text(layer.shared),
        share_text(layer.free),
        quantile_text(layer),
        rank_text(layer.agreement),
        overlap_text(layer.agreement),
        with_error(layer.past_mean, layer.past_stderr),
        with_error(layer.current_mean, layer.current_stderr),
        number(layer.multiplier_max),
    ]


def _trials(search: SearchInfo) -> list[str]:
    rows = ["| trial | lr | λ | λ\\_down | m | score | |", "|---|--:|--:|--:|--:|--:|---|"]
    for place, trial in enumerate(search.trials):
        score = "diverged" if trial.status == "diverged" else number(trial.score)
        rows.append(
            f"| {trial.phase} {trial.number} | {number(trial.lr)} | {number(trial.lambda_)} | "
            f"{number(trial.lambda_down)} | {trial.m:g} | {score} | {trial_mark(search, place)} |"
        )
    return rows
