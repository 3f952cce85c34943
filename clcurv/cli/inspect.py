"""``clcurv inspect``: what a checkpoint is and what to run on it. Nothing is measured."""

from __future__ import annotations

import sys
import traceback
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clcurv.cli.delivery import DELIVERY_OPTIONS, Delivery
from clcurv.cli.given import begin
from clcurv.cli.measure import measure_and_deliver
from clcurv.cli.messages import Messages, ProgressCallback
from clcurv.cli.option_groups import Columns, Output, Reading, Talk
from clcurv.cli.options import DATA, MODEL, option, takes
from clcurv.cli.reading import prepare_reading

if TYPE_CHECKING:
    from clcurv.pipeline.inspect_run import InspectReport

EPILOG = r"""
[bold]Examples[/bold]

  clcurv inspect model.pt

  clcurv inspect model.pt --data photos/

  clcurv inspect training.ckpt --key state_dict_ema --json | jq .architecture

The file is read as the other commands read it: nothing in it is executed. Where they would refuse
it, the report says what is known, and the exit code is theirs.

Exit codes: 0 the commands take it · 2 usage · 3 refused · 4 weights not finite · 5 memory.
"""


@takes(Columns, Reading, Output, Talk)
def inspect(
    ctx: typer.Context,
    checkpoint: Annotated[
        str,
        typer.Argument(metavar="FILE", help="A weights file, or a timm or Hugging Face folder."),
    ],
    data: Annotated[
        str | None,
        option(
            "--data",
            panel=DATA,
            metavar="PATH",
            help="Labelled data: choose among architectures that fit, and show the accuracy.",
        ),
    ] = None,
    samples: Annotated[
        int,
        option("--samples", panel=DATA, min=1, metavar="N", help="How many of them to look at."),
    ] = 128,
    layers: Annotated[
        str,
        option(
            "--layers",
            panel=MODEL,
            metavar="HOW",
            help="What counts as one layer: block, module, tensor, or a regular expression.",
        ),
    ] = "block",
    **shared: Any,
) -> int:
    """Tell what a checkpoint is, and what the other commands make of it.

    Format, weights inside, architecture and evidence, tensors that match and that do not, layers,
    metadata, checksums, and the commands to run next.
    """
    options = locals() | shared
    del options["shared"]
    messages = Messages.create(quiet=options.pop("quiet"), verbose=options.pop("verbose"))
    del options["ctx"], options["checkpoint"], options["debug"]
    begin(ctx, messages)
    prepare_reading(options, messages)
    asked: dict[str, Any] = dict.fromkeys(DELIVERY_OPTIONS)
    asked |= {"inconclusive": "fail", "allow_generated": False, "exit_zero": False}
    asked |= {name: options.pop(name) for name in ("output_format", "json_", "output")}
    protected = [str(x) for x in (checkpoint, data, shared["label_map"]) if x is not None]
    delivery = Delivery.prepare(messages, protected=protected, schema="clcurv.inspect", **asked)
    found: list[InspectReport] = []

    def work(pipeline: ModuleType, progress: ProgressCallback) -> InspectReport:
        report: InspectReport = pipeline.inspect(checkpoint, progress=progress, **options)
        found.append(report)
        return report

    code = measure_and_deliver(messages=messages, delivery=delivery, work=work)
    refusal = found[0].refusal if found else None
    if code or refusal is None:
        return code
    if shared["debug"]:
        traceback.print_exception(refusal)
    on_screen = sys.stdout.isatty() and sys.stderr.isatty()
    if not (delivery.output_format == "table" and on_screen):  # the table has just said it
        messages.error(str(refusal), hint=refusal.hint)
    return refusal.exit_code
