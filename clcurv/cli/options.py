"""How an option is declared, and those that more than one command has, in groups."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer

from clcurv.errors import UsageError

ENVIRONMENT_PREFIX = "CLCURV_"
# They mean different things to different commands: none can be set for all of them at once.
PER_COMMAND = frozenset({"head", "schedule", "lambda"})


def option(
    *flags: str, panel: str, environment: bool = True, command: str = "", **settings: Any
) -> Any:
    """A typer option that can also be set by the environment.

    Choices are spelled out in the help text, not in a column of their own: on a narrow
    terminal that column would leave no room for the text.

    Args:
        flags: Long form first: ``--max-steps`` is also read from CLCURV_MAX_STEPS.
        panel: The box of ``--help`` it is shown in.
        environment: Whether a variable may set it.
        command: Of an option in `PER_COMMAND`: ``--head`` of kappa is CLCURV_KAPPA_HEAD.
    """
    long = flags[0].removeprefix("--")
    variable = f"{ENVIRONMENT_PREFIX}{command}_" if command else ENVIRONMENT_PREFIX
    variable += long
    settings.setdefault("metavar", "")
    return typer.Option(
        *flags,
        envvar=variable.replace("-", "_").upper() if environment else None,
        show_envvar=False,
        show_choices=False,
        rich_help_panel=panel,
        **settings,
    )


def takes(*groups: type) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Give a command the options that it shares with others, behind its own.

    The command gets them by name in its ``**shared``; an option that it declares itself under a
    group's name takes the group's place.

    Args:
        groups: Classes whose annotated attributes are options, with their defaults.
    """

    def give(command: Callable[..., int]) -> Callable[..., int]:
        signature = inspect.signature(command, eval_str=True)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        found = {p.name: p for p in own}
        for group in groups:
            for name, annotation in get_type_hints(group, include_extras=True).items():
                shared = inspect.Parameter(
                    name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=getattr(group, name),
                    annotation=annotation,
                )
                found.setdefault(name, shared)
        command.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=list(found.values())
        )
        return command

    return give


_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY_UNITS = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def parse_bytes(text: str, *, flag: str = "--memory") -> int:
    """Bytes in ``4GB``, ``512 MiB`` or ``2e9``.

    Raises:
        UsageError: Anything else, or less than one byte.
    """
    match = re.fullmatch(r"\s*(\d{1,15}(?:\.\d*)?(?:e\d\d?)?)\s*([kmgt]?i?)b?\s*", text.lower())
    unit = (_UNITS | _BINARY_UNITS).get(match[2]) if match else None
    if match is None or unit is None or (size := int(float(match[1]) * unit)) < 1:
        raise UsageError(f"{flag} {text}: not a size", hint="write it like 4GB or 512MiB")
    return size


DATA, MODEL, MEASURE, ADVICE = "Data", "Checkpoint and model", "Measurement", "Advice"
OUTPUT, GATE, MESSAGES = "Output", "Gate", "Messages"


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
