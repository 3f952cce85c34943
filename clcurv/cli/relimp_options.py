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
PastOption = Annotated[
    str | None,
    option("--past", panel=DATA, metavar="PATH", help="Data of a task the network knows."),
]
PastImportanceOption = Annotated[
    Path | None,
    option(
        "--past-importance",
        panel=DATA,
        metavar="FILE",
        help="Importance of what it knows, written by --save-importance. Beside --past, of the "
        "tasks before: the two are accumulated.",
    ),
]
CurrentOption = Annotated[
    str | None,
    option(
        "--current",
        panel=DATA,
        metavar="PATH",
        help="Data of the task to come; it may have new classes. Without it only the past is "
        "measured, for --save-importance.",
    ),
]
SamplesOption = Annotated[
    int,
    option(
        "--samples",
        panel=DATA,
        min=1,
        metavar="N",
        help="Size of the class-balanced sample of each task; the look-ahead trains on the "
        "current one's. Beside an importance file the file's number is taken.",
    ),
]
SamplesMayDifferOption = Annotated[
    bool,
    option(
        "--samples-may-differ",
        panel=DATA,
        help="Allow the two importances different sample counts (their noise then differs).",
    ),
]
BatchSizeOption = Annotated[
    int | None,
    option(
        "--batch-size",
        panel=DATA,
        min=1,
        metavar="N",
        help="Most samples at a time for importances; changes time and memory, not the "
        "numbers, except with --compat, whose batch it is.",
    ),
]
HeadOption = Annotated[
    Literal["model", "linear-probe"],
    option(
        "--head",
        command="relimp",
        panel=MODEL,
        metavar="HEAD",
        help="model (the checkpoint's own head) or linear-probe (fitted on --past in closed "
        "form, for a backbone).",
    ),
]
EstimatorOption = Annotated[
    Literal["mas", "fisher", "fisher-sampled", "fisher-empirical"] | None,
    option(
        "--estimator",
        panel=MEASURE,
        metavar="NAME",
        help="Importance: mas (no labels), fisher (exact), fisher-sampled, fisher-empirical. "
        "Default: what the importance file has, else mas.",
    ),
]
CompatOption = Annotated[
    Literal["per-sample", "reference", "facil", "avalanche", "authors"] | None,
    option(
        "--compat",
        panel=MEASURE,
        metavar="NAME",
        help="per-sample, or as other MAS code takes it, for comparison: reference, facil, "
        "avalanche, authors. Default: the importance file's, else per-sample.",
    ),
]
AccumulateOption = Annotated[
    Literal["mean", "max"],
    option(
        "--accumulate",
        panel=MEASURE,
        metavar="HOW",
        help="Importances of several past tasks: mean or max.",
    ),
]
TauOption = Annotated[
    Literal["scaled-mean", "fixed", "mean-plus-std"],
    option(
        "--tau",
        panel=MEASURE,
        metavar="MODE",
        help="Threshold on α_rel by tensor: scaled-mean (0.8 × its mean), fixed (0.5), "
        "mean-plus-std.",
    ),
]
LayersOption = Annotated[
    str,
    option(
        "--layers",
        panel=MEASURE,
        metavar="HOW",
        help="Rows of the table: block, module, tensor, or a regular expression.",
    ),
]
DryRunOption = Annotated[
    bool,
    option(
        "--dry-run",
        panel=MEASURE,
        help="Print what would be measured and trained, and the predicted memory; do neither.",
    ),
]
TrainingConfigOption = Annotated[
    Path | None,
    option(
        "--training-config",
        panel=TRAINING,
        metavar="FILE",
        help="YAML or JSON with the training job's own lr, epochs, ...; its section "
        "look_ahead where it has one. The options below win.",
    ),
]
OptimizerOption = Annotated[
    Literal["adamw", "sgd"] | None,
    option("--optimizer", panel=TRAINING, metavar="NAME", help="adamw or sgd. Default: adamw."),
]
LrOption = Annotated[
    float | None,
    option(
        "--lr",
        panel=TRAINING,
        metavar="X",
        help="Learning rate; give the training job's own. Default: 1e-4.",
    ),
]
EpochsOption = Annotated[
    int | None,
    option("--epochs", panel=TRAINING, min=1, metavar="N", help="Most epochs. Default: 10."),
]
TrainBatchSizeOption = Annotated[
    int | None,
    option(
        "--train-batch-size",
        panel=TRAINING,
        min=1,
        metavar="N",
        help="Samples in a step. Default: 32.",
    ),
]
WeightDecayOption = Annotated[
    float | None,
    option("--weight-decay", panel=TRAINING, min=0, metavar="X", help="Default: 0."),
]
MomentumOption = Annotated[
    float | None,
    option("--momentum", panel=TRAINING, metavar="X", help="Of sgd. Default: 0.9."),
]
PatienceOption = Annotated[
    int | None,
    option(
        "--patience",
        panel=TRAINING,
        min=0,
        metavar="N",
        help="Epochs without a better score before it stops; 0 never stops early. Default: 3.",
    ),
]
ValidationOption = Annotated[
    float | None,
    option(
        "--validation",
        panel=TRAINING,
        metavar="X",
        help="Part of the current task held out for the score. Default: 0.2.",
    ),
]
GradClipOption = Annotated[
    float | None,
    option(
        "--grad-clip",
        panel=TRAINING,
        min=0,
        metavar="X",
        help="Largest norm of a gradient; 0 does not clip. Default: 0.",
    ),
]
SearchOption = Annotated[
    bool,
    option(
        "--search",
        panel=SEARCH,
        help="Find λ, λ_down and λ_up by short trainings on the current task alone.",
    ),
]
StateOption = Annotated[
    Path | None,
    option(
        "--state",
        panel=SEARCH,
        metavar="FILE",
        help="Keep the search's trials in FILE, and go on from there after an interruption.",
    ),
]
AllowedDropOption = Annotated[
    float,
    option(
        "--allowed-drop",
        panel=SEARCH,
        metavar="X",
        help="Part of the score without penalty that may be lost.",
    ),
]
LambdaDecayOption = Annotated[
    float,
    option(
        "--lambda-decay",
        panel=SEARCH,
        metavar="X",
        help="Factor of λ from trial to trial: ten trials reach 0.39 of the largest λ with 0.9, "
        "0.002 with 0.5.",
    ),
]
MaxTrialsOption = Annotated[
    int,
    option("--max-trials", panel=SEARCH, min=1, metavar="N", help="Most trials in a phase."),
]
MultiplierFormOption = Annotated[
    Literal["paper", "code"],
    option(
        "--multiplier-form",
        panel=ADVICE,
        metavar="FORM",
        help="α' = λ_up·α above τ and λ_down·α below (paper), or that times α_rel (code).",
    ),
]
LambdaOption = Annotated[
    float | None,
    option(
        "--lambda",
        command="relimp",
        panel=ADVICE,
        min=0,
        metavar="X",
        help="Weight of the penalty. Default: 1/(lr·max α'), above which a step overshoots.",
    ),
]
LambdaUpOption = Annotated[
    float | None,
    option(
        "--lambda-up",
        panel=ADVICE,
        min=0,
        metavar="X",
        help="Factor above τ. Default: ⌈1/max(τ, 0.05)⌉ by tensor.",
    ),
]
LambdaDownOption = Annotated[
    float | None,
    option("--lambda-down", panel=ADVICE, min=0, metavar="X", help="Factor below. Default: 1."),
]
ScheduleOption = Annotated[
    Path | None,
    option(
        "--schedule",
        command="relimp",
        panel=ADVICE,
        metavar="FILE",
        help="Report of clcurv kappa, whose λ of each layer multiply its α'.",
    ),
]
MultipliersOption = Annotated[
    Path | None,
    option(
        "--multipliers",
        panel=OUTPUT,
        metavar="FILE",
        help="Write α' of every parameter (safetensors), for ImportancePenalty.",
    ),
]
SaveImportanceOption = Annotated[
    Path | None,
    option(
        "--save-importance",
        panel=OUTPUT,
        metavar="FILE",
        help="Write the importance for the past (safetensors), as soon as it is known.",
    ),
]
