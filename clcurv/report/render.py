"""Any report as a table, Markdown, annotations or a figure. Renderers are imported when used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from clcurv.report.document import Document
from clcurv.report.inspect_document import InspectDocument
from clcurv.report.kappa_document import KappaDocument
from clcurv.report.relimp_document import RelimpDocument
from clcurv.report.spectrum_document import SpectrumDocument

if TYPE_CHECKING:
    from rich.console import Console


def print_table(doc: Document, console: Console) -> None:
    """Print the whole report; the console's width decides which columns are shown."""
    unicode_bars = console.encoding.lower().startswith("utf")
    if isinstance(doc, KappaDocument):
        from clcurv.report.table import kappa_view

        console.print(kappa_view(doc, width=console.width, unicode_bars=unicode_bars))
    elif isinstance(doc, SpectrumDocument):
        from clcurv.report.spectrum_table import spectrum_view

        console.print(spectrum_view(doc, width=console.width, unicode_bars=unicode_bars))
    elif isinstance(doc, RelimpDocument):
        from clcurv.report.relimp_table import relimp_view

        console.print(relimp_view(doc, width=console.width, unicode_bars=unicode_bars))
    elif isinstance(doc, InspectDocument):
        from clcurv.report.inspect_table import print_inspect

        print_inspect(doc, console)
    else:
        raise _unknown(doc)


def render_markdown(doc: Document) -> str:
    """A GitHub-flavoured Markdown page; nothing in the report's texts acts."""
    if isinstance(doc, KappaDocument):
        from clcurv.report.markdown import kappa_page

        return kappa_page(doc)
    if isinstance(doc, SpectrumDocument):
        from clcurv.report.spectrum_markdown import spectrum_page

        return spectrum_page(doc)
    if isinstance(doc, RelimpDocument):
        from clcurv.report.relimp_markdown import relimp_page

        return relimp_page(doc)
    if isinstance(doc, InspectDocument):
        from clcurv.report.inspect_markdown import inspect_page

        return inspect_page(doc)
    raise _unknown(doc)


def render_annotations(doc: Document) -> str:
    """GitHub workflow commands: errors for failed gates, warnings, one notice of advice."""
    from clcurv.report.markdown import annotate

    if isinstance(doc, KappaDocument):
        return annotate(doc, doc.schedule.advice)
    if isinstance(doc, SpectrumDocument):
        from clcurv.report.spectrum_summary import advice

        return annotate(doc, advice(doc))
    if isinstance(doc, RelimpDocument):
        from clcurv.report import relimp_summary

        return annotate(doc, relimp_summary.advice(doc))
    if isinstance(doc, InspectDocument):
        from clcurv.report import inspect_summary

        return annotate(doc, inspect_summary.advice(doc))
    raise _unknown(doc)


def render_github(doc: Document) -> str:
    """Annotations, then the Markdown for the job's log.

    The Markdown alone belongs into the file named by ``GITHUB_STEP_SUMMARY``.
    """
    return render_annotations(doc) + "\n" + render_markdown(doc)


def render_plot(doc: Document, path: str | Path) -> None:
    """Draw the report.

    Raises:
        UsageError: The suffix is not .png, .svg or .pdf, or the path cannot be written.
        ResourceError: The disk is full.
    """
    if isinstance(doc, KappaDocument):
        from clcurv.report.plots import plot_kappa

        plot_kappa(doc, path)
    elif isinstance(doc, SpectrumDocument):
        from clcurv.report.spectrum_plots import plot_spectrum

        plot_spectrum(doc, path)
    elif isinstance(doc, RelimpDocument):
        from clcurv.report.relimp_plots import plot_relimp

        plot_relimp(doc, path)
    else:
        raise _unknown(doc)


def _unknown(doc: Document) -> TypeError:
    return TypeError(f"{type(doc).__name__} is not a report to look at")
