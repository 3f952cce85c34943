"""``clcurv schema``: the JSON Schema of a document."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from clcurv.cli.delivery import write_stdout


def schema(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="The document: schedule, spectrum, l2er, relimp or inspect."
        ),
    ],
) -> int:
    """Print the JSON Schema of a document."""
    from clcurv.report.registry import json_schema

    write_stdout(json.dumps(json_schema(name), indent=2, ensure_ascii=False) + "\n")
    return 0
