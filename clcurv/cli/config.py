"""Defaults from the nearest pyproject.toml: ``[tool.clcurv]`` and ``[tool.clcurv.COMMAND]``."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clcurv.cli.messages import Messages
from clcurv.cli.options import PER_COMMAND
from clcurv.errors import UsageError

# A cloned repository must not be able to lower a guard behind the user's back.
COMMAND_LINE_ONLY = frozenset(
    (
        *("trust-code", "unsafe-pickle", "online"),
        *("force", "exit-zero", "allow-generated", "dry-run"),
    )
)


@dataclass(frozen=True)
class Defaults:
    """Values for options, as found in one file.

    Attributes:
        path: The pyproject.toml they come from; None when none has a clcurv table.
        values: Command -> parameter name -> value.
    """

    path: Path | None = None
    values: Mapping[str, dict[str, Any]] = field(default_factory=dict)


def nearest_pyproject(start: Path) -> Path | None:
    """The pyproject.toml in `start` or the closest folder above it."""
    folders = (start, *start.parents)
    return next((f / "pyproject.toml" for f in folders if (f / "pyproject.toml").is_file()), None)


def load_defaults(start: Path, commands: Mapping[str, Mapping[str, str]]) -> Defaults:
    """Read the clcurv tables that hold for folder `start`.

    Args:
        start: Where the search begins, upwards.
        commands: Command -> its options' long flags without dashes -> parameter names.

    Keys are the flags, ``max-steps`` or ``max_steps``. A key of ``[tool.clcurv]`` goes to
    every command that has it; the command's own table wins.

    Raises:
        UsageError: A file that is not TOML, or a key that no command knows.
    """
    path = nearest_pyproject(start)
    if path is None:
        return Defaults()
    try:
        with path.open("rb") as file:
            table = tomllib.load(file).get("tool", {}).get("clcurv", {})
    except (OSError, ValueError, AttributeError) as error:
        raise UsageError(f"{path} cannot be read: {error}", hint="correct the file") from error
    if not table:
        return Defaults()
    if not isinstance(table, dict):
        raise UsageError(f"{path}: tool.clcurv must be a table")

    values: dict[str, dict[str, Any]] = {command: {} for command in commands}
    every_flag = {flag for flags in commands.values() for flag in flags}
    for key, value in table.items():
        if key not in commands:
            flag = _known(key, every_flag, f"{path}: [tool.clcurv]")
            if flag in PER_COMMAND:
                raise UsageError(
                    f"{path}: [tool.clcurv]: {key} means something else to every command",
                    hint=f"set it in a command's own table, like [tool.clcurv.kappa] {key} = ...",
                )
            for command, flags in commands.items():
                if flag in flags:
                    values[command][flags[flag]] = value
    for command, flags in commands.items():
        own = table.get(command, {})
        if not isinstance(own, dict):
            raise UsageError(f"{path}: tool.clcurv.{command} must be a table")
        for key, value in own.items():
            flag = _known(key, flags, f"{path}: [tool.clcurv.{command}]")
            values[command][flags[flag]] = value
    return Defaults(path, values)


def _known(key: str, flags: Collection[str], where: str) -> str:
    flag = key.replace("_", "-")
    if flag in COMMAND_LINE_ONLY:
        raise UsageError(
            f"{where}: {key} cannot be set in a file",
            hint=f"pass --{flag} on the command line",
        )
    if flag not in flags:
        close = difflib.get_close_matches(flag, flags, n=1)
        raise UsageError(
            f"{where}: unknown key {key!r}",
            hint=f"did you mean {close[0]}?"
            if close
            else f"known keys: {', '.join(sorted(flags))}",
        )
    return flag


def announce(defaults: Defaults | UsageError, messages: Messages) -> None:
    """Say which file supplied defaults; called by a command once its options are parsed.

    Raises:
        UsageError: What was wrong with the file, held back so that ``--help`` still works.
    """
    if isinstance(defaults, UsageError):
        raise defaults
    if defaults.path is not None:
        messages.note(f"defaults from {defaults.path}")
