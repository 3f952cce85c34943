"""Options that more than one command has, in groups for `clcurv.cli.options.takes`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from clcurv.cli.options import DATA, GATE, MEASURE, MESSAGES, MODEL, OUTPUT, option

Format = Literal["auto", "table", "json", "markdown", "github"]

AllowGeneratedOption = Annotated[
    bool,
    option(
        "--allow-generated", panel=GATE, help="Let gates judge a measurement made without --data."
    ),
]


class Columns:
    """Of a data set, or a stream of them."""

    split: Annotated[
        str | None, option("--split", panel=DATA, metavar="NAME", help="Split of the data set.")
    ] = None
    image_column: Annotated[
        str | None,
        option("--image-column", panel=DATA, metavar="NAME", help="Column with the images."),
    ] = None
    text_column: Annotated[
        str | None,
        option(
            "--text-column",
            panel=DATA,
            metavar="NAME",
            help="Column with the texts; FIRST,SECOND for pairs.",
        ),
    ] = None
    label_column: Annotated[
        str | None,
        option(
            "--label-column",
            panel=DATA,
            metavar="NAME",
            help="Column with the labels; several, with commas, for a regression or one-hot "
            "labels.",
        ),
    ] = None
    label_map: Annotated[
        Path | None,
        option(
            "--label-map",
            panel=DATA,
            metavar="FILE",
            help="What labels mean: json, yaml, csv or txt, from each label to its class id or "
            "name.",
        ),
    ] = None


class Reading:
    """How an untrusted checkpoint and its data are read."""

    max_length: Annotated[
        int | None,
        option(
            "--max-length",
            panel=DATA,
            min=1,
            metavar="N",
            help="Cut texts at so many tokens. Default: the model's own limit.",
        ),
    ] = None
    batch_fn: Annotated[
        str | None,
        option(
            "--batch-fn",
            panel=DATA,
            metavar="CODE",
            help="file.py:function from a batch to (inputs, targets), where the data are "
            "file.py:function too.",
        ),
    ] = None
    skip_bad: Annotated[
        bool,
        option(
            "--skip-bad",
            panel=DATA,
            help="Leave out samples that cannot be read (they are listed), instead of stopping.",
        ),
    ] = False
    arch: Annotated[
        str | None,
        option(
            "--arch",
            panel=MODEL,
            metavar="NAME",
            help="timm or torchvision model, or package.module:factory of your own code. Default: "
            "found from the checkpoint.",
        ),
    ] = None
    key: Annotated[
        str | None,
        option(
            "--key",
            panel=MODEL,
            metavar="KEY",
            help="Where in the file the weights are, e.g. state_dict or ema.",
        ),
    ] = None
    match_by_order: Annotated[
        bool,
        option(
            "--match-by-order",
            panel=MODEL,
            help="Match tensors by order and shape where the names differ.",
        ),
    ] = False
    trust_code: Annotated[
        bool,
        option(
            "--trust-code",
            panel=MODEL,
            help="Run model code that is not part of an installed library.",
        ),
    ] = False
    max_bytes: Annotated[
        str | None,
        option(
            "--max-bytes",
            panel=MODEL,
            metavar="SIZE",
            help="Refuse checkpoints with more bytes of weights, e.g. 8GB. Default: half of the "
            "machine's memory.",
        ),
    ] = None
    unsafe_pickle: Annotated[
        bool,
        option(
            "--unsafe-pickle",
            panel=MODEL,
            environment=False,
            help="Run the code inside a pickled checkpoint. Only for files that you made yourself.",
        ),
    ] = False
    online: Annotated[
        bool,
        option(
            "--online",
            panel=MODEL,
            help="Allow downloads: a checkpoint hf:ORG/NAME is fetched from the Hugging Face Hub.",
        ),
    ] = False
    loss: Annotated[
        str,
        option(
            "--loss",
            panel=MODEL,
            metavar="LOSS",
            help="The loss: auto (from what the head does), cross-entropy, mse, next-token, "
            "masked-lm, or file.py:function of (output, targets) that gives one loss a sample.",
        ),
    ] = "auto"


class Curvature:
    """What matrix is measured, on how much."""

    samples: Annotated[
        int,
        option(
            "--samples",
            panel=DATA,
            min=1,
            metavar="N",
            help="Size of the class-balanced sample everything is measured on.",
        ),
    ] = 512
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
    ] = None
    operator: Annotated[
        Literal["hessian", "ggn", "fisher", "empirical-fisher"],
        option(
            "--operator",
            panel=MEASURE,
            metavar="MATRIX",
            help="The curvature: hessian (exact), ggn (Gauss-Newton), fisher, empirical-fisher.",
        ),
    ] = "hessian"


class Numerics:
    """Where and how precisely."""

    device: Annotated[
        str | None,
        option(
            "--device",
            panel=MEASURE,
            metavar="DEVICE",
            help="cpu, cuda, cuda:1, mps. Default: a GPU where there is one.",
        ),
    ] = None
    dtype: Annotated[
        Literal["float32", "float64"],
        option("--dtype", panel=MEASURE, metavar="DTYPE", help="float32 or float64."),
    ] = "float32"
    seed: Annotated[
        int,
        option(
            "--seed", panel=MEASURE, min=0, metavar="N", help="Of the sample and of random vectors."
        ),
    ] = 0
    memory: Annotated[
        str | None,
        option(
            "--memory",
            panel=MEASURE,
            metavar="SIZE",
            help="Budget for kept graphs, e.g. 4GB. Default: half of what is free.",
        ),
    ] = None


class Output:
    """Where a document goes."""

    output_format: Annotated[
        Format,
        option(
            "--format",
            panel=OUTPUT,
            metavar="FORMAT",
            help="What stdout carries: auto (a table on a terminal, JSON when piped), table, json, "
            "markdown, or github (annotations).",
        ),
    ] = "auto"
    json_: Annotated[bool, option("--json", panel=OUTPUT, help="Short for --format json.")] = False
    output: Annotated[
        Path | None,
        option(
            "--output",
            "-o",
            panel=OUTPUT,
            metavar="FILE",
            help="Also write the JSON report to FILE, whole or not at all.",
        ),
    ] = None


class Gates:
    """What is drawn of a measurement, and what decides about the exit code."""

    plot: Annotated[
        Path | None,
        option(
            "--plot",
            panel=OUTPUT,
            metavar="FILE",
            help="Draw the figure: .png, .svg or .pdf by its suffix.",
        ),
    ] = None
    fail_on: Annotated[
        list[str] | None,
        option(
            "--fail-on",
            panel=GATE,
            metavar="'FIELD>X'",
            help="Exit 10 when this holds, e.g. 'kappa>200' (of kappa) or 'verdict==collapsed' "
            "(of spectrum). FIELD is any value of the report, by its dotted path. Repeatable.",
        ),
    ] = None
    baseline: Annotated[
        Path | None,
        option("--baseline", panel=GATE, metavar="FILE", help="An earlier report to compare with."),
    ] = None
    fail_on_regression: Annotated[
        str | None,
        option(
            "--fail-on-regression",
            panel=GATE,
            metavar="PERCENT",
            help="Exit 10 when a number is worse than the baseline's by more than PERCENT, e.g. "
            "10%.",
        ),
    ] = None
    inconclusive: Annotated[
        Literal["fail", "pass"],
        option(
            "--inconclusive",
            panel=GATE,
            metavar="VERDICT",
            help="When a gate cannot be decided: fail (exit 11) or pass.",
        ),
    ] = "fail"
    exit_zero: Annotated[
        bool,
        option(
            "--exit-zero",
            panel=GATE,
            help="Report the verdict but exit 0; errors keep their codes.",
        ),
    ] = False


class Talk:
    """What is said on stderr."""

    quiet: Annotated[
        bool, option("--quiet", "-q", panel=MESSAGES, help="Errors only on stderr.")
    ] = False
    verbose: Annotated[
        bool,
        option(
            "--verbose",
            "-v",
            panel=MESSAGES,
            help="Also what the libraries underneath have to say.",
        ),
    ] = False
    debug: Annotated[
        bool, option("--debug", panel=MESSAGES, help="Show the traceback of an error.")
    ] = False
