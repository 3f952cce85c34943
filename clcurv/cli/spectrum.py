"""``clcurv spectrum``: flags -> options -> one library call -> report -> exit code."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from clcurv.cli.delivery import DELIVERY_OPTIONS, Delivery, Extra
from clcurv.cli.given import begin
from clcurv.cli.measure import measure_and_deliver
from clcurv.cli.messages import Messages
from clcurv.cli.option_groups import Columns, Curvature, Gates, Numerics, Output, Reading, Talk
from clcurv.cli.options import DATA, MEASURE, MODEL, OUTPUT, option, takes
from clcurv.cli.reading import prepare_reading
from clcurv.errors import UsageError

TRAINING, REFERENCE = "Training to come", "Reference"

EPILOG = r"""
[bold]Examples[/bold]

  clcurv spectrum ckpt/task-*.pt --stream stream.yaml --lr 0.01 --steps 2000

  clcurv spectrum model.pt --stream permuted:10 --data digits/ --plot spectrum.svg

  clcurv spectrum ckpt/*.pt --stream stream.yaml --lr 0.01 --steps 2000 --l2er l2er.json

  clcurv spectrum ckpt/*.pt --stream stream.yaml --fail-on 'verdict==collapsed'

One checkpoint meets every task; several meet one task each, in their natural order.

Every option can also be set by CLCURV_ and its name, e.g. CLCURV_PROBES=16, or in the nearest
pyproject.toml under \[tool.clcurv] or \[tool.clcurv.spectrum]; the command line wins, then the
environment.

Exit codes: 0 measured, gates hold · 1 fault of clcurv · 2 usage · 3 input refused · 4 numerical ·
5 memory or disk · 10 a gate failed · 11 inconclusive · 130/143 interrupted.
"""


@takes(Columns, Reading, Curvature, Numerics, Output, Gates, Talk)
def spectrum(
    ctx: typer.Context,
    checkpoints: Annotated[
        list[str],
        typer.Argument(
            metavar="CHECKPOINT...",
            help="Weights files, or timm or Hugging Face folders: one for the whole stream, or "
            "one per task (the network that meets it).",
        ),
    ],
    stream: Annotated[
        str,
        option(
            "--stream",
            panel=DATA,
            metavar="STREAM",
            help="The tasks: a manifest (yaml, json), a PILOT json, an npz with x, y, t, a folder "
            "with a sub-folder per task, or permuted:K, split:K (split:K:sorted in "
            "the order of the classes), label-shuffle:K over --data.",
        ),
    ],
    data: Annotated[
        str | None,
        option(
            "--data",
            panel=DATA,
            metavar="PATH",
            help="The data set behind a generated stream or a PILOT json.",
        ),
    ] = None,
    head: Annotated[
        Literal["keep", "fresh"],
        option(
            "--head",
            command="spectrum",
            panel=MODEL,
            metavar="HEAD",
            help="keep (the checkpoint's own head) or fresh (drawn anew for every task).",
        ),
    ] = "keep",
    lr: Annotated[
        float | None,
        option(
            "--lr",
            panel=TRAINING,
            metavar="X",
            help="Learning rate on a task; with --steps it decides which modes are fast.",
        ),
    ] = None,
    steps: Annotated[
        int | None,
        option("--steps", panel=TRAINING, min=1, metavar="N", help="Gradient steps on a task."),
    ] = None,
    momentum: Annotated[
        float, option("--momentum", panel=TRAINING, metavar="X", help="Of SGD, from 0 to below 1.")
    ] = 0.0,
    gamma: Annotated[
        float,
        option(
            "--gamma",
            panel=TRAINING,
            metavar="X",
            help="A mode is fast when the steps leave at most this part of its residual.",
        ),
    ] = 0.1,
    reference: Annotated[
        str,
        option(
            "--reference",
            panel=REFERENCE,
            metavar="WHAT",
            help="What the trend is measured against: first-task, fresh (new weights in the same "
            "architecture), or a checkpoint.",
        ),
    ] = "first-task",
    layers: Annotated[
        str | None,
        option(
            "--layers",
            panel=MEASURE,
            metavar="REGEX",
            help="Only parameters whose name it matches. Default: the whole network.",
        ),
    ] = None,
    method: Annotated[
        Literal["auto", "lanczos", "dense", "gram"],
        option(
            "--method",
            panel=MEASURE,
            metavar="METHOD",
            help="lanczos (stochastic quadrature), dense or gram (exact, for few parameters or few "
            "samples times classes), auto (exact where it is cheap).",
        ),
    ] = "auto",
    eps: Annotated[
        float,
        option(
            "--eps",
            panel=MEASURE,
            metavar="X",
            help="ε relative to the largest |λ|, for the ε-rank that needs no learning rate.",
        ),
    ] = 1e-2,
    probes: Annotated[
        int,
        option(
            "--probes",
            panel=MEASURE,
            min=1,
            metavar="N",
            help="Random vectors; two or more give intervals.",
        ),
    ] = 8,
    lanczos_steps: Annotated[
        int,
        option(
            "--lanczos-steps", panel=MEASURE, min=2, metavar="N", help="Steps per random vector."
        ),
    ] = 80,
    paper_smoothing: Annotated[
        bool,
        option(
            "--paper-smoothing",
            panel=MEASURE,
            help="Also the ε-rank by the published pipeline's smoothed density, which says "
            "kernel-limited where its kernel is wider than ε.",
        ),
    ] = False,
    resume: Annotated[
        Path | None,
        option(
            "--resume",
            panel=MEASURE,
            metavar="DIR",
            help="Keep finished tasks in DIR, and take them from there after an interruption.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        option(
            "--dry-run",
            panel=MEASURE,
            help="Print the resolved stream, which checkpoint meets which task, and the predicted "
            "memory; measure nothing.",
        ),
    ] = False,
    l2er: Annotated[
        Path | None,
        option(
            "--l2er",
            panel=OUTPUT,
            metavar="FILE",
            help="Write the L2-ER coefficients as JSON, for clcurv.training.L2ER.",
        ),
    ] = None,
    **shared: Any,
) -> int:
    """Measure whether a network is losing the ability to learn the next task.

    For each task of a stream: the loss curvature's spectrum at the network that meets the task,
    its ε-rank, the part of the error that training will reach, the features' effective rank. Then a
    verdict over the stream, and L2-ER coefficients against a collapse.
    """
    options = locals() | shared
    del options["shared"]
    messages = Messages.create(quiet=options.pop("quiet"), verbose=options.pop("verbose"))
    for name in ("ctx", "checkpoints", "debug", "l2er", "dry_run"):
        del options[name]
    begin(ctx, messages)
    prepare_reading(options, messages)
    asked = {name: options.pop(name) for name in DELIVERY_OPTIONS if name in options}
    inputs = (*checkpoints, stream, data, reference, shared["label_map"])
    delivery = Delivery.prepare(
        messages,
        protected=[str(x) for x in inputs if x is not None],
        schema="clcurv.spectrum",
        extra_files={"--l2er": l2er},
        allow_generated=False,
        **asked,
    )
    _check(options, gates=[gate.path.text for gate in delivery.gates])
    options["resume"] = None if resume is None else str(resume)

    def documents(report: Any) -> list[Extra]:
        if l2er is not None and report.l2er is None:
            messages.warning(f"no L2-ER coefficients to write to {l2er}")
        return [(l2er, report.l2er, "L2-ER coefficients")] if l2er and report.l2er else []

    return measure_and_deliver(
        messages=messages,
        delivery=delivery,
        work=lambda pipeline, progress: pipeline.spectrum(
            checkpoints, progress=progress, note=messages.note, **options
        ),
        plan=(
            lambda pipeline, progress: pipeline.plan_spectrum(
                checkpoints, progress=progress, **options
            )
        )
        if dry_run
        else None,
        extras=documents,
    )


def _check(options: dict[str, Any], *, gates: list[str]) -> None:
    """Refuse before the work what cannot be.

    Raises:
        UsageError: A number out of its range, half of a training, a gate on what will be null.
    """
    lr, steps = options["lr"], options["steps"]
    if lr is not None and not 0 < lr < math.inf:
        raise UsageError(f"--lr {lr}: must be positive", hint="--lr 0.01")
    if (lr is None) != (steps is None):
        given, other = ("--lr", "--steps 2000") if steps is None else ("--steps", "--lr 0.01")
        raise UsageError(f"{given} alone does not say which modes are fast", hint=f"add {other}")
    if not 0 <= options["momentum"] < 1:
        raise UsageError(
            f"--momentum {options['momentum']}: must be at least 0 and below 1",
            hint="--momentum 0.9",
        )
    for name, default in (("gamma", "0.1"), ("eps", "1e-2")):
        if not 0 < options[name] < 1:
            raise UsageError(
                f"--{name} {options[name]}: must lie between 0 and 1",
                hint=f"the default is {default}",
            )
    layers = options["layers"]
    if layers in {"block", "module", "tensor"}:
        raise UsageError(
            f"--layers {layers}: here it is a regular expression that parameters must match",
            hint="leave it out for the whole network, or write it like 'layer4|fc'",
        )
    if layers is not None:
        try:
            re.compile(layers)
        except re.error as error:
            raise UsageError(
                f"--layers {layers}: not a regular expression: {error}", hint="--layers 'layer4|fc'"
            ) from None
    for path in gates:
        if lr is None and (".fast" in path):
            raise UsageError(
                f"the gate on {path} needs to know which modes are fast",
                hint="add --lr 0.01 --steps 2000, or take eps_rank.relative",
            )
