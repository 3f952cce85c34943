"""``clcurv kappa``: flags -> options -> one library call -> report -> exit code."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import typer

from clcurv.cli.delivery import DELIVERY_OPTIONS, Delivery
from clcurv.cli.given import begin
from clcurv.cli.measure import measure_and_deliver
from clcurv.cli.messages import Messages
from clcurv.cli.option_groups import (
    AllowGeneratedOption,
    Columns,
    Curvature,
    Gates,
    Numerics,
    Output,
    Reading,
    Talk,
)
from clcurv.cli.options import ADVICE, DATA, MEASURE, MODEL, option, takes
from clcurv.cli.reading import prepare_reading
from clcurv.errors import UsageError

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


@takes(Columns, Reading, Curvature, Numerics, Output, Gates, Talk)
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
            help="The old task: a folder of images by class, npz, csv, jsonl, parquet, arrow, "
            "WebDataset tars, or a saved Hugging Face data set. Without it inputs are generated "
            "from the model.",
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
    head: Annotated[
        Literal["model", "linear-probe"],
        option(
            "--head",
            command="kappa",
            panel=MODEL,
            metavar="HEAD",
            help="model (the checkpoint's own), or linear-probe (a ridge fit on the data, for a "
            "bare backbone).",
        ),
    ] = "model",
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
            command="kappa",
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
            command="kappa",
            panel=ADVICE,
            metavar="X",
            help="Scale λ to this parameter-weighted mean instead of 1.",
        ),
    ] = None,
    force: Annotated[
        bool, option("--force", panel=ADVICE, help="Allow --schedule literal.")
    ] = False,
    allow_generated: AllowGeneratedOption = False,
    **shared: Any,
) -> int:
    """Measure how sensitive each layer is, and recommend a schedule.

    Sensitivity s: the largest eigenvalue of the layer's block of the loss Hessian. κ: max s/min s.
    Schedule: a regularisation weight λ and a learning-rate scale per layer, against forgetting.
    """
    options = locals() | shared
    del options["shared"]
    messages = Messages.create(quiet=options.pop("quiet"), verbose=options.pop("verbose"))
    del options["ctx"], options["checkpoint"], options["debug"]
    begin(ctx, messages)
    prepare_reading(options, messages)
    inputs = (checkpoint, data, new_data, shared["label_map"])
    delivery = Delivery.prepare(
        messages,
        protected=[str(x) for x in inputs if x is not None],
        **{name: options.pop(name) for name in DELIVERY_OPTIONS},
    )
    if not 0 < tol < 1:
        raise UsageError(f"--tol {tol}: must lie between 0 and 1", hint="the default is 1e-2")
    if lambda_ is not None and not 0 < lambda_ < math.inf:
        raise UsageError(f"--lambda {lambda_}: must be positive", hint="leave it out for mean 1")
    options["lambda_min"] = not options.pop("no_lambda_min")
    del options["dry_run"]
    return measure_and_deliver(
        messages=messages,
        delivery=delivery,
        work=lambda pipeline, progress: pipeline.kappa(checkpoint, progress=progress, **options),
        plan=(lambda pipeline, progress: pipeline.plan(checkpoint, progress=progress, **options))
        if dry_run
        else None,
    )
