"""The options that only ``clcurv relimp`` has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from clcurv.cli.options import ADVICE, DATA, MEASURE, MODEL, OUTPUT, option

TRAINING, SEARCH = "Look-ahead", "Search"

CheckpointArgument = Annotated[
    str,
    typer.Argument(
        metavar="CHECKPOINT",
        help="The network after the past tasks: a weights file, or a timm or Hugging Face folder.",
    ),
]


class Tasks:
    """The data of the past and of the task to come."""

    past: Annotated[
        str | None,
        option("--past", panel=DATA, metavar="PATH", help="Data of a task the network knows."),
    ] = None
    past_importance: Annotated[
        Path | None,
        option(
            "--past-importance",
            panel=DATA,
            metavar="FILE",
            help="Importance of what it knows, written by --save-importance. Beside --past, of the "
            "tasks before: the two are accumulated.",
        ),
    ] = None
    current: Annotated[
        str | None,
        option(
            "--current",
            panel=DATA,
            metavar="PATH",
            help="Data of the task to come; it may have new classes. Without it only the past is "
            "measured, for --save-importance.",
        ),
    ] = None
    samples: Annotated[
        int,
        option(
            "--samples",
            panel=DATA,
            min=1,
            metavar="N",
            help="Size of the class-balanced sample of each task; the look-ahead trains on the "
            "current one's. Beside an importance file the file's number is taken.",
        ),
    ] = 512
    samples_may_differ: Annotated[
        bool,
        option(
            "--samples-may-differ",
            panel=DATA,
            help="Allow the two importances different sample counts (their noise then differs).",
        ),
    ] = False
    batch_size: Annotated[
        int | None,
        option(
            "--batch-size",
            panel=DATA,
            min=1,
            metavar="N",
            help="Most samples at a time for importances; changes time and memory, not the "
            "numbers, except with --compat, whose batch it is.",
        ),
    ] = None


class Importances:
    """How importance is measured and compared."""

    head: Annotated[
        Literal["model", "linear-probe"],
        option(
            "--head",
            command="relimp",
            panel=MODEL,
            metavar="HEAD",
            help="model (the checkpoint's own head) or linear-probe (fitted on --past in closed "
            "form, for a backbone).",
        ),
    ] = "model"
    estimator: Annotated[
        Literal["mas", "fisher", "fisher-sampled", "fisher-empirical"] | None,
        option(
            "--estimator",
            panel=MEASURE,
            metavar="NAME",
            help="Importance: mas (no labels), fisher (exact), fisher-sampled, fisher-empirical. "
            "Default: what the importance file has, else mas.",
        ),
    ] = None
    compat: Annotated[
        Literal["per-sample", "reference", "facil", "avalanche", "authors"] | None,
        option(
            "--compat",
            panel=MEASURE,
            metavar="NAME",
            help="per-sample, or as other MAS code takes it, for comparison: reference, facil, "
            "avalanche, authors. Default: the importance file's, else per-sample.",
        ),
    ] = None
    accumulate: Annotated[
        Literal["mean", "max"],
        option(
            "--accumulate",
            panel=MEASURE,
            metavar="HOW",
            help="Importances of several past tasks: mean or max.",
        ),
    ] = "mean"
    tau: Annotated[
        Literal["scaled-mean", "fixed", "mean-plus-std"],
        option(
            "--tau",
            panel=MEASURE,
            metavar="MODE",
            help="Threshold on α_rel by tensor: scaled-mean (0.8 × its mean), fixed (0.5), "
            "mean-plus-std.",
        ),
    ] = "scaled-mean"
    layers: Annotated[
        str,
        option(
            "--layers",
            panel=MEASURE,
            metavar="HOW",
            help="Rows of the table: block, module, tensor, or a regular expression.",
        ),
    ] = "block"
    dry_run: Annotated[
        bool,
        option(
            "--dry-run",
            panel=MEASURE,
            help="Print what would be measured and trained, and the predicted memory; do neither.",
        ),
    ] = False


class LookAhead:
    """How the temporary copy is trained."""

    training_config: Annotated[
        Path | None,
        option(
            "--training-config",
            panel=TRAINING,
            metavar="FILE",
            help="YAML or JSON with the training job's own lr, epochs, ...; its section "
            "look_ahead where it has one. The options below win.",
        ),
    ] = None
    optimizer: Annotated[
        Literal["adamw", "sgd"] | None,
        option("--optimizer", panel=TRAINING, metavar="NAME", help="adamw or sgd. Default: adamw."),
    ] = None
    lr: Annotated[
        float | None,
        option(
            "--lr",
            panel=TRAINING,
            metavar="X",
            help="Learning rate; give the training job's own. Default: 1e-4.",
        ),
    ] = None
    epochs: Annotated[
        int | None,
        option("--epochs", panel=TRAINING, min=1, metavar="N", help="Most epochs. Default: 10."),
    ] = None
    train_batch_size: Annotated[
        int | None,
        option(
            "--train-batch-size",
            panel=TRAINING,
            min=1,
            metavar="N",
            help="Samples in a step. Default: 32.",
        ),
    ] = None
    weight_decay: Annotated[
        float | None,
        option("--weight-decay", panel=TRAINING, min=0, metavar="X", help="Default: 0."),
    ] = None
    momentum: Annotated[
        float | None,
        option("--momentum", panel=TRAINING, metavar="X", help="Of sgd. Default: 0.9."),
    ] = None
    patience: Annotated[
        int | None,
        option(
            "--patience",
            panel=TRAINING,
            min=0,
            metavar="N",
            help="Epochs without a better score before it stops; 0 never stops early. Default: 3.",
        ),
    ] = None
    validation: Annotated[
        float | None,
        option(
            "--validation",
            panel=TRAINING,
            metavar="X",
            help="Part of the current task held out for the score. Default: 0.2.",
        ),
    ] = None
    grad_clip: Annotated[
        float | None,
        option(
            "--grad-clip",
            panel=TRAINING,
            min=0,
            metavar="X",
            help="Largest norm of a gradient; 0 does not clip. Default: 0.",
        ),
    ] = None


class Search:
    """How λ and its factors are looked for."""

    search: Annotated[
        bool,
        option(
            "--search",
            panel=SEARCH,
            help="Find λ, λ_down and λ_up by short trainings on the current task alone.",
        ),
    ] = False
    state: Annotated[
        Path | None,
        option(
            "--state",
            panel=SEARCH,
            metavar="FILE",
            help="Keep the search's trials in FILE, and go on from there after an interruption.",
        ),
    ] = None
    allowed_drop: Annotated[
        float,
        option(
            "--allowed-drop",
            panel=SEARCH,
            metavar="X",
            help="Part of the score without penalty that may be lost.",
        ),
    ] = 0.1
    max_trials: Annotated[
        int,
        option("--max-trials", panel=SEARCH, min=1, metavar="N", help="Most trials in a phase."),
    ] = 10
    lambda_decay: Annotated[
        float,
        option(
            "--lambda-decay",
            panel=SEARCH,
            metavar="X",
            help="Factor of λ from trial to trial: ten trials reach 0.39 of the largest λ with "
            "0.9, 0.002 with 0.5.",
        ),
    ] = 0.9


class Penalty:
    """What the penalty is made of, and the files it goes to."""

    multiplier_form: Annotated[
        Literal["paper", "code"],
        option(
            "--multiplier-form",
            panel=ADVICE,
            metavar="FORM",
            help="α' = λ_up·α above τ and λ_down·α below (paper), or that times α_rel (code).",
        ),
    ] = "paper"
    lambda_: Annotated[
        float | None,
        option(
            "--lambda",
            command="relimp",
            panel=ADVICE,
            min=0,
            metavar="X",
            help="Weight of the penalty. Default: 1/(lr·max α'), above which a step overshoots.",
        ),
    ] = None
    lambda_up: Annotated[
        float | None,
        option(
            "--lambda-up",
            panel=ADVICE,
            min=0,
            metavar="X",
            help="Factor above τ. Default: ⌈1/max(τ, 0.05)⌉ by tensor.",
        ),
    ] = None
    lambda_down: Annotated[
        float | None,
        option("--lambda-down", panel=ADVICE, min=0, metavar="X", help="Factor below. Default: 1."),
    ] = None
    schedule: Annotated[
        Path | None,
        option(
            "--schedule",
            command="relimp",
            panel=ADVICE,
            metavar="FILE",
            help="Report of clcurv kappa, whose λ of each layer multiply its α'.",
        ),
    ] = None
    multipliers: Annotated[
        Path | None,
        option(
            "--multipliers",
            panel=OUTPUT,
            metavar="FILE",
            help="Write α' of every parameter (safetensors), for ImportancePenalty.",
        ),
    ] = None
    save_importance: Annotated[
        Path | None,
        option(
            "--save-importance",
            panel=OUTPUT,
            metavar="FILE",
            help="Write the importance for the past (safetensors), as soon as it is known.",
        ),
    ] = None
