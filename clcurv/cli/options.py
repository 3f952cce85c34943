"""How an option is declared, and those that more than one command has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

ENVIRONMENT_PREFIX = "CLCURV_"


def option(*flags: str, panel: str, **settings: Any) -> Any:
    """A typer option that can also be set by the environment.

    Choices are spelled out in the help text, not in a column of their own: on a narrow
    terminal that column would leave no room for the text.

    Args:
        flags: Long form first: ``--max-steps`` is also read from CLCURV_MAX_STEPS.
        panel: The box of ``--help`` it is shown in.
    """
    long = flags[0].removeprefix("--")
    settings.setdefault("metavar", "")
    return typer.Option(
        *flags,
        envvar=ENVIRONMENT_PREFIX + long.replace("-", "_").upper(),
        show_envvar=False,
        show_choices=False,
        rich_help_panel=panel,
        **settings,
    )


OUTPUT, GATE, MESSAGES = "Output", "Gate", "Messages"

Format = Literal["auto", "table", "json", "markdown", "github"]

FormatOption = Annotated[
    Format,
    option(
        "--format",
        panel=OUTPUT,
        metavar="FORMAT",
        help="What stdout carries: auto (a table on a terminal, JSON when piped), table, json, "
        "markdown, or github (annotations).",
    ),
]
JsonOption = Annotated[bool, option("--json", panel=OUTPUT, help="Short for --format json.")]
OutputOption = Annotated[
    Path | None,
    option(
        "--output",
        "-o",
        panel=OUTPUT,
        metavar="FILE",
        help="Also write the JSON report to FILE, whole or not at all.",
    ),
]
PlotOption = Annotated[
    Path | None,
    option(
        "--plot",
        panel=OUTPUT,
        metavar="FILE",
        help="Draw the figure: .png, .svg or .pdf by its suffix.",
    ),
]
FailOnOption = Annotated[
    list[str] | None,
    option(
        "--fail-on",
        panel=GATE,
        metavar="'FIELD>X'",
        help="Exit 10 when this holds, e.g. 'kappa>200'. FIELD is any number of the report, by "
        "its dotted path. Repeatable.",
    ),
]
BaselineOption = Annotated[
    Path | None,
    option("--baseline", panel=GATE, metavar="FILE", help="An earlier report to compare with."),
]
RegressionOption = Annotated[
    str | None,
    option(
        "--fail-on-regression",
        panel=GATE,
        metavar="PERCENT",
        help="Exit 10 when κ is more than PERCENT above the baseline's, e.g. 10%.",
    ),
]
InconclusiveOption = Annotated[
    Literal["fail", "pass"],
    option(
        "--inconclusive",
        panel=GATE,
        metavar="VERDICT",
        help="When a gate cannot be decided: fail (exit 11) or pass.",
    ),
]
AllowGeneratedOption = Annotated[
    bool,
    option(
        "--allow-generated", panel=GATE, help="Let gates judge a measurement made without --data."
    ),
]
ExitZeroOption = Annotated[
    bool,
    option(
        "--exit-zero", panel=GATE, help="Report the verdict but exit 0; errors keep their codes."
    ),
]
QuietOption = Annotated[
    bool, option("--quiet", "-q", panel=MESSAGES, help="Errors only on stderr.")
]
VerboseOption = Annotated[
    bool,
    option(
        "--verbose", "-v", panel=MESSAGES, help="Also what the libraries underneath have to say."
    ),
]
DebugOption = Annotated[
    bool, option("--debug", panel=MESSAGES, help="Show the traceback of an error.")
]
