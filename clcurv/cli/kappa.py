"""``clcurv kappa``: flags -> options -> one library call -> report -> exit code."""

from __future__ import annotations

import math
import re
import shlex
import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from clcurv.cli.chatter import quiet_libraries
from clcurv.cli.config import announce
from clcurv.cli.delivery import DELIVERY_OPTIONS, Delivery
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
    option,
)
from clcurv.cli.plan import show_plan
from clcurv.cli.signals import signals_raise
from clcurv.errors import UsageError

if TYPE_CHECKING:
    from clcurv.report.document import KappaDocument

DATA, MODEL, MEASURE, ADVICE = "Data", "Checkpoint and model", "Measurement", "Advice"

EPILOG = r"""
[bold]Examples[/bold]

  clcurv kappa model.pt --data photos/

  clcurv kappa bert-folder/ --data train.jsonl --label-column intent --plot kappa.svg

  clcurv kappa model.safetensors --arch resnet18 --data set.npz -o kappa.json --fail-on 'kappa>200'

  clcurv kappa model.pt --data photos/ --dry-run

Every option can also be set by CLCURV_ and its name, e.g. CLCURV_MAX_STEPS=60, or in the nearest
pyproject.toml under \[tool.clcurv] or \[tool.clcurv.kappa]; the command line wins, then the
environment.

Exit codes: 0 measured, gates hold · 1 fault of clcurv · 2 usage · 3 input refused · 4 numerical ·
5 memory or disk · 10 a gate failed · 11 inconclusive · 130/143 interrupted.
"""

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY_UNITS = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def parse_bytes(text: str) -> int:
    """Bytes in ``4GB``, ``512 MiB`` or ``2e9``.

    Raises:
        UsageError: Anything else, or less than one byte.
    """
    match = re.fullmatch(r"\s*(\d{1,15}(?:\.\d*)?(?:e\d\d?)?)\s*([kmgt]?i?)b?\s*", text.lower())
    unit = (_UNITS | _BINARY_UNITS).get(match[2]) if match else None
    if match is None or unit is None or (size := int(float(match[1]) * unit)) < 1:
        raise UsageError(f"--memory {text}: not a size", hint="write it like 4GB or 512MiB")
    return size


def kappa(
    ctx: typer.Context,
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT", help="A weights file, or a timm or Hugging Face folder."
        ),
    ],
    data: Annotated[
        str | None,
        option(
            "--data",
            panel=DATA,
            metavar="PATH",
            help="The old task: a folder of images by class, npz, csv, jsonl, parquet, arrow, or a "
            "saved Hugging Face data set. Without it inputs are generated from the model.",
        ),
    ] = None,
    new_data: Annotated[
        str | None,
        option(
            "--new-data",
            panel=DATA,
            metavar="PATH",
            help="The task to be learned next, for the measured cost of a uniform schedule.",
        ),
    ] = None,
    split: Annotated[
        str | None, option("--split", panel=DATA, metavar="NAME", help="Split of the data set.")
    ] = None,
    image_column: Annotated[
        str | None,
        option("--image-column", panel=DATA, metavar="NAME", help="Column with the images."),
    ] = None,
    text_column: Annotated[
        str | None,
        option("--text-column", panel=DATA, metavar="NAME", help="Column with the texts."),
    ] = None,
    label_column: Annotated[
        str | None,
        option("--label-column", panel=DATA, metavar="NAME", help="Column with the labels."),
    ] = None,
    samples: Annotated[
        int,
        option(
            "--samples",
            panel=DATA,
            min=1,
            metavar="N",
            help="Size of the class-balanced sample everything is measured on.",
        ),
    ] = 512,
    batch_size: Annotated[
        int | None,
        option(
            "--batch-size",
            panel=DATA,
            min=1,
            metavar="N",
            help="Samples per micro-batch; changes time and memory, not the numbers. Default: "
            "chosen from the memory.",
        ),
    ] = None,
    skip_bad: Annotated[
        bool,
        option(
            "--skip-bad",
            panel=DATA,
            help="Leave out samples that cannot be read (they are listed), instead of stopping.",
        ),
    ] = False,
    arch: Annotated[
        str | None,
        option(
            "--arch",
            panel=MODEL,
            metavar="NAME",
            help="timm or torchvision model, or package.module:factory of your own code. Default: "
            "found from the checkpoint.",
        ),
    ] = None,
    key: Annotated[
        str | None,
        option(
            "--key",
            panel=MODEL,
            metavar="KEY",
            help="Where in the file the weights are, e.g. state_dict or ema.",
        ),
    ] = None,
    match_by_order: Annotated[
        bool,
        option(
            "--match-by-order",
            panel=MODEL,
            help="Match tensors by order and shape where the names differ.",
        ),
    ] = False,
    trust_code: Annotated[
        bool,
        option(
            "--trust-code",
            panel=MODEL,
            help="Run model code that is not part of an installed library.",
        ),
    ] = False,
    head: Annotated[
        Literal["model", "linear-probe"],
        option(
            "--head",
            panel=MODEL,
            metavar="HEAD",
            help="model (the checkpoint's own), or linear-probe (a ridge fit on the data, for a "
            "bare backbone).",
        ),
    ] = "model",
    loss: Annotated[
        Literal["auto", "cross-entropy", "mse", "next-token", "masked-lm"],
        option(
            "--loss",
            panel=MODEL,
            metavar="LOSS",
            help="The old task's loss: auto (from what the head does), cross-entropy, mse, "
            "next-token, masked-lm.",
        ),
    ] = "auto",
    layers: Annotated[
        str,
        option(
            "--layers",
            panel=MEASURE,
            metavar="HOW",
            help="What counts as one layer: block, module, tensor, or a regular expression that "
            "groups parameters by what it matches.",
        ),
    ] = "block",
    operator: Annotated[
        Literal["hessian", "ggn", "fisher", "empirical-fisher"],
        option(
            "--operator",
            panel=MEASURE,
            metavar="MATRIX",
            help="The curvature: hessian (exact), ggn (Gauss-Newton), fisher, empirical-fisher.",
        ),
    ] = "hessian",
    device: Annotated[
        str | None,
        option(
            "--device",
            panel=MEASURE,
            metavar="DEVICE",
            help="cpu, cuda, cuda:1, mps. Default: a GPU where there is one.",
        ),
    ] = None,
    dtype: Annotated[
        Literal["float32", "float64"],
        option("--dtype", panel=MEASURE, metavar="DTYPE", help="float32 or float64."),
    ] = "float32",
    tol: Annotated[
        float,
        option("--tol", panel=MEASURE, metavar="X", help="Relative error allowed on every s."),
    ] = 1e-2,
    max_steps: Annotated[
        int | None,
        option(
            "--max-steps",
            panel=MEASURE,
            min=1,
            metavar="N",
            help="Lanczos steps before a layer is reported as unconverged. Default: 60.",
        ),
    ] = None,
    seed: Annotated[
        int, option("--seed", panel=MEASURE, min=0, metavar="N", help="Of the sample and starts.")
    ] = 0,
    memory: Annotated[
        str | None,
        option(
            "--memory",
            panel=MEASURE,
            metavar="SIZE",
            help="Budget for kept graphs, e.g. 4GB. Default: half of what is free.",
        ),
    ] = None,
    no_lambda_min: Annotated[
        bool,
        option(
            "--no-lambda-min",
            panel=MEASURE,
            help="Do not pursue the smallest eigenvalues: fewer passes.",
        ),
    ] = False,
    cross_check: Annotated[
        bool,
        option(
            "--cross-check",
            panel=MEASURE,
            help="Measure the three most and the three least sensitive layers with PyHessian too.",
        ),
    ] = False,
    include_head: Annotated[
        bool,
        option(
            "--include-head",
            panel=MEASURE,
            help="Count the head in κ and in the fit.",
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        option(
            "--dry-run",
            panel=MEASURE,
            help="Print the resolved model, layers, data and predicted memory; measure nothing.",
        ),
    ] = False,
    schedule: Annotated[
        Literal["geometric", "power", "literal", "isotonic", "uniform"],
        option(
            "--schedule",
            panel=ADVICE,
            metavar="MODE",
            help="How λ follows from s: geometric (smooth in depth), power (λ ∝ √s), isotonic "
            "(monotone), uniform, or literal (λ ∝ s: loses accuracy, needs --force).",
        ),
    ] = "geometric",
    lambda_: Annotated[
        float | None,
        option(
            "--lambda",
            panel=ADVICE,
            metavar="X",
            help="Scale λ to this parameter-weighted mean instead of 1.",
        ),
    ] = None,
    force: Annotated[
        bool, option("--force", panel=ADVICE, help="Allow --schedule literal.")
    ] = False,
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
    """Measure how sensitive each layer is, and recommend a schedule.

    Sensitivity s: the largest eigenvalue of the layer's block of the loss Hessian. κ: max s/min s.
    Schedule: a regularisation weight λ and a learning-rate scale per layer, against forgetting.
    """
    options = dict(locals())
    messages = Messages.create(quiet=options.pop("quiet"), verbose=options.pop("verbose"))
    del options["ctx"], options["checkpoint"], options["debug"]
    announce(ctx.obj, messages)
    delivery = Delivery.prepare(
        messages, protected=checkpoint, **{name: options.pop(name) for name in DELIVERY_OPTIONS}
    )
    if not 0 < tol < 1:
        raise UsageError(f"--tol {tol}: must lie between 0 and 1", hint="the default is 1e-2")
    if lambda_ is not None and not 0 < lambda_ < math.inf:
        raise UsageError(f"--lambda {lambda_}: must be positive", hint="leave it out for mean 1")
    options["lambda_min"] = not options.pop("no_lambda_min")
    if memory is not None:
        options["memory"] = parse_bytes(memory)
    return _measure(checkpoint, options, messages, delivery)


def _measure(
    checkpoint: str, options: dict[str, Any], messages: Messages, delivery: Delivery
) -> int:
    dry_run = options.pop("dry_run")
    document: KappaDocument | None = None
    interrupted = False
    with quiet_libraries(messages), signals_raise() as received:
        try:
            with messages.progress() as progress:
                progress("loading libraries", 0, 0)
                from clcurv import pipeline

                if dry_run:
                    plan = pipeline.plan(checkpoint, progress=progress, **options)
                else:
                    document = pipeline.kappa(checkpoint, progress=progress, **options).document
        except KeyboardInterrupt as interrupt:
            interrupted = True
            document = getattr(interrupt, "document", None)
    if interrupted:
        messages.error("interrupted", hint="the report is partial" if document else None)
        if document is not None:
            delivery.without_gates().deliver(_with_command(document))
        return received.exit_code
    if dry_run:
        show_plan(plan, delivery.output_format)
        return 0
    assert document is not None
    return delivery.deliver(_with_command(document))


def _with_command(document: KappaDocument) -> KappaDocument:
    """The report records how it was asked for, unless the library knew better."""
    if document.command is not None:
        return document
    words = shlex.join(["clcurv", *sys.argv[1:]])
    return document.model_copy(
        update={"command": words.encode("utf-8", "backslashreplace").decode()}
    )
