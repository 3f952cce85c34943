"""The report of ``clcurv kappa`` as Markdown; what Markdown and annotations are made of."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from clcurv.report.summary import OUTCOME_WORDS, findings, heading
from clcurv.report.text import count, number, printable, with_error

if TYPE_CHECKING:
    from clcurv.report.document import Document
    from clcurv.report.kappa_document import KappaDocument

_COLUMNS = ("layer", "depth", "parameters", "s", "λ_min ≤", "steps", "λ", "lr_scale", "reason")
_LEVELS = {"fail": "error", "inconclusive": "warning", "pass": "notice"}


def kappa_page(doc: KappaDocument) -> str:
    """A GitHub-flavoured Markdown page; names are code spans, so nothing in them acts."""
    lines = ["### clcurv kappa", ""]
    lines += [f"- **{label}**: {plain(text)}" for label, text in heading(doc)]
    lines += ["", *_table(doc), ""]
    lines += [f"- **{label}**: {plain(text)}" for label, text in findings(doc)]
    lines += ["", f"**{plain(doc.schedule.advice)}**"]
    lines += closing(doc)
    return "\n".join(lines) + "\n"


def annotate(doc: Document, advice: str) -> str:
    """GitHub workflow commands: errors for failed gates, warnings, one notice of advice."""
    lines = []
    if doc.judged:
        lines += [
            _command(_LEVELS[g.outcome], f"clcurv {g.expression}", f"{g.outcome}: {g.reason}")
            for g in doc.judged.gates
        ]
    lines += [_command("warning", "clcurv", warning) for warning in doc.warnings]
    lines.append(_command("notice", "clcurv", advice))
    return "\n".join(lines) + "\n"


def closing(doc: Document) -> list[str]:
    """Lines with the warnings and the gates."""
    lines = ["", *(f"- ⚠ {plain(w)}" for w in doc.warnings)] if doc.warnings else []
    if doc.judged:
        lines += ["", "| gate | outcome | why |", "|---|---|---|"]
        lines += [
            f"| {code(g.expression)} | {OUTCOME_WORDS[g.outcome]} | {plain(g.reason)} |"
            for g in doc.judged.gates
        ]
    return lines


def _table(doc: KappaDocument) -> list[str]:
    rows = [f"| {' | '.join(_COLUMNS)} |", "|---|" + "--:|" * (len(_COLUMNS) - 2) + "---|"]
    for g in doc.groups:
        value = with_error(g.s, g.s_stderr) if g.status == "ok" else f"{number(g.s)} {g.status}"
        cells = (
            code(g.name),
            str(g.depth),
            count(g.numel),
            value,
            number(g.lambda_min),
            str(g.steps),
            number(g.lambda_),
            number(g.lr_scale),
            plain(g.reason),
        )
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def plain(text: str) -> str:
    """Text in which no character is Markdown or HTML."""
    safe = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace("@", "@<!-- -->")
    return re.sub(r"([\\`*_\[\]|$~#])", r"\\\1", safe)


def code(text: str) -> str:
    """A code span that holds any text; the pipe must be escaped even there in a table."""
    safe = printable(text)
    fence = "`" * (1 + max((len(x) for x in re.findall("`+", safe)), default=0))
    pad = " " if safe.startswith("`") or safe.endswith("`") else ""
    return f"{fence}{pad}{safe}{pad}{fence}".replace("|", "\\|")


def _command(level: str, title: str, message: str) -> str:
    # docs.github.com, "Workflow commands": data escapes % CR LF, properties also : and ,
    body = printable(message).replace("%", "%25")
    name = printable(title).replace("%", "%25").replace(":", "%3A").replace(",", "%2C")
    return f"::{level} title={name}::{body}"
