"""``clcurv show``: a saved report, rendered and judged again. Nothing is measured."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from clcurv.cli.delivery import DELIVERY_OPTIONS, Delivery
from clcurv.cli.given import begin
from clcurv.cli.messages import Messages
from clcurv.cli.option_groups import AllowGeneratedOption, Gates, Output, Talk
from clcurv.cli.options import takes

EPILOG = """
[bold]Examples[/bold]

  clcurv show kappa.json

  clcurv show kappa.json --format markdown > kappa.md

  clcurv show kappa.json --plot kappa.pdf --baseline last.json --fail-on-regression 10%
"""


@takes(Output, Gates, Talk)
def show(
    ctx: typer.Context,
    report: Annotated[
        str, typer.Argument(metavar="REPORT", help="JSON written by clcurv; - reads stdin.")
    ],
    allow_generated: AllowGeneratedOption = False,
    **shared: Any,
) -> int:
    """Show a saved report again, as a table, Markdown or a figure, and judge it by new gates."""
    asked = {name: shared[name] for name in DELIVERY_OPTIONS if name in shared}
    messages = Messages.create(quiet=shared["quiet"], verbose=shared["verbose"])
    begin(ctx, messages)

    from clcurv.report.reader import load_report

    document = load_report(report)
    delivery = Delivery.prepare(
        messages,
        protected=[report],
        schema=document.schema_,
        allow_generated=allow_generated,
        **asked,
    )
    return delivery.deliver(document)
