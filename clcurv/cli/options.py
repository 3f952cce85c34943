"""How an option is declared, and how commands share groups of them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, get_type_hints

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
