"""Every kind of document by its schema's name. Each is imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from clcurv.errors import UsageError
from clcurv.report.document import Document

_HOMES = {
    "clcurv.schedule": ("clcurv.report.kappa_document", "KappaDocument"),
    "clcurv.spectrum": ("clcurv.report.spectrum_document", "SpectrumDocument"),
    "clcurv.relimp": ("clcurv.report.relimp_document", "RelimpDocument"),
    "clcurv.inspect": ("clcurv.report.inspect_document", "InspectDocument"),
    "clcurv.l2er": ("clcurv.report.l2er_document", "L2erDocument"),
}
JUDGED = ("clcurv.schedule", "clcurv.spectrum", "clcurv.relimp")
"""Measurements: gates decide on them, and figures show them."""
REPORTS = (*JUDGED, "clcurv.inspect")
"""What can be shown."""


def document_class(schema: str) -> type[Document]:
    """The class behind a schema's name.

    Args:
        schema: ``clcurv.schedule``, or without the ``clcurv.``.

    Raises:
        UsageError: There is no such document.
    """
    home = _HOMES.get(schema) or _HOMES.get(f"clcurv.{schema}")
    if home is None:
        raise UsageError(f"no schema named {schema!r}", hint=f"one of: {', '.join(_HOMES)}")
    found: type[Document] = getattr(import_module(home[0]), home[1])
    return found


def json_schema(name: str) -> dict[str, Any]:
    """JSON Schema of a document, for ``clcurv schema NAME``.

    Raises:
        UsageError: There is no such document.
    """
    return document_class(name).model_json_schema(mode="serialization")
