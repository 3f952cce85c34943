"""The report of ``clcurv inspect`` as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clcurv.report.inspect_summary import heading, notes, outline, refusal
from clcurv.report.markdown import closing, code, plain
from clcurv.report.text import count, number, percent, printable

if TYPE_CHECKING:
    from clcurv.report.inspect_document import InspectDocument


def inspect_page(doc: InspectDocument) -> str:
    """A GitHub-flavoured Markdown page; names are code spans, so nothing in them acts."""
    lines = ["### clcurv inspect", ""]
    lines += [f"- **{label}**: {plain(text)}" for label, text in (*heading(doc), *refusal(doc))]
    if len(doc.candidates) > 1 or (doc.candidates and doc.architecture is None):
        lines += ["", "| candidate | mean loss | evidence |", "|---|--:|---|"]
        lines += [
            f"| {code(c.name)} | {number(c.mean_loss)} | {plain(f'{c.status}: {c.evidence}')} |"
            for c in doc.candidates
        ]
    if doc.layers:
        total = sum(x.numel for x in doc.layers) or 1
        lines += ["", "| layer | params | share | tensors |", "|---|--:|--:|--:|"]
        lines += [
            f"| {code(x.name)}{' (head)' * x.is_head} | {count(x.numel)} "
            f"| {percent(x.numel / total)} | {len(x.param_names)} |"
            for x in doc.layers
        ]
    elif not doc.candidates and doc.tensors:
        lines += ["", "| tensors | how many | elements | shape |", "|---|--:|--:|---|"]
        lines += [
            f"| {code(x.pattern)} | {x.n} | {count(x.elements)} | {plain(x.shape)} |"
            for x in outline(doc.tensors)
        ]
    if notes(doc):
        lines += ["", *(f"- {plain(note)}" for note in notes(doc))]
    if doc.next:
        commands = [
            line for step in doc.next for line in (f"# {step.purpose}", printable(step.command))
        ]
        # A fence longer than any run of backticks inside.
        fence = "`" * max(3, 1 + max(map(_ticks, commands)))
        lines += ["", f"{fence}sh", *commands, fence]
    return "\n".join([*lines, *closing(doc)]) + "\n"


def _ticks(text: str) -> int:
    longest = run = 0
    for char in text:
        run = run + 1 if char == "`" else 0
        longest = max(longest, run)
    return longest
