"""``clcurv show``: a saved report, rendered and judged again. Nothing is measured."""

from __future__ import annotations

from typing import Annotated

import typer

from clcurv.cli.delivery import DELIVERY_OPTIONS, Delivery
from clcurv.cli.given import begin
from clcurv.cli.messages import Messages
from clcurv.cli.options import (
    AllowGeneratedOption,
    BaselineOption,
    DebugOption,
    ExitZeroOption,
    FailOnOption,
    FormatOption,
    InconclusiveOption,
    JsonOption,
    OutputOption,
    PlotOption,
    QuietOption,
    RegressionOption,
    VerboseOption,
)

EPILOG = """
[bold]Examples[/bold]

  clcurv show kappa.json

  clcurv show kappa.json --format markdown > kappa.md

  clcurv show kappa.json --plot kappa.pdf --baseline last.json --fail-on-regression 10%
"""


def show(
    ctx: typer.Context,
    report: Annotated[
        str, typer.Argument(metavar="REPORT", help="JSON written by clcurv; - reads stdin.")
    ],
    output_format: FormatOption = "auto",
    json_: JsonOption = False,
    output: OutputOption = None,
    plot: PlotOption = None,
    fail_on: FailOnOption = None,
    baseline: BaselineOption = None,
    fail_on_regression: RegressionOption = None,
    inconclusive: InconclusiveOption = "fail",
    allow_generated: AllowGeneratedOption = False,
    exit_zero: ExitZeroOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    debug: DebugOption = False,
) -> int:
    """Show a saved report again, as a table, Markdown or a figure, and judge it by new gates."""
    asked = {name: value for name, value in locals().items() if name in DELIVERY_OPTIONS}
    messages = Messages.create(quiet=quiet, verbose=verbose)
    begin(ctx, messages)

    from clcurv.report.reader import load_report

    document = load_report(report)
    delivery = Delivery.prepare(messages, protected=[report], schema=document.schema_, **asked)
    return delivery.deliver(document)
