"""What the user gave: options that would do nothing are refused, unknown variables named."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Sequence
from typing import Any

import typer

from clcurv.cli.config import announce
from clcurv.cli.messages import Messages
from clcurv.cli.options import ENVIRONMENT_PREFIX, PER_COMMAND
from clcurv.errors import UsageError

_COLUMNS = ("split", "image_column", "text_column", "label_column", "label_map")
_READ = (*_COLUMNS, "max_length", "batch_fn", "skip_bad")
_LOOK_AHEAD = (
    *("optimizer", "lr", "epochs", "train_batch_size", "weight_decay", "momentum", "patience"),
    *("validation", "grad_clip", "training_config"),
)
_PENALTY = ("tau", "multiplier_form", "lambda_", "lambda_up", "lambda_down", "schedule")
# Command -> (options, parameters of which one must be there, what to do).
_NEEDS: dict[str, tuple[tuple[Sequence[str], Sequence[str], str], ...]] = {
    "kappa": ((_READ, ("data", "new_data"), "add --data PATH"),),
    "inspect": (((*_READ, "samples"), ("data",), "add --data PATH"),),
    "spectrum": ((("momentum", "gamma"), ("lr",), "add --lr 0.01 --steps 2000"),),
    "relimp": (
        ((*_LOOK_AHEAD, *_PENALTY, "samples_may_differ"), ("current",), "add --current DATA"),
        (("allowed_drop", "max_trials", "lambda_decay"), ("search",), "add --search"),
        (
            ("accumulate",),
            ("past_importance",),
            "it joins a file with the data of another task: --past DATA --past-importance FILE",
        ),
    ),
}


def begin(ctx: typer.Context, messages: Messages) -> None:
    """Settle where the options come from, before anything is done with them.

    Raises:
        UsageError: A faulty pyproject.toml, or an option on the command line that would do
            nothing beside the others; defaults of files and variables may.
    """
    announce(ctx.obj, messages)
    for variable, hint in unknown_variables(ctx):
        messages.warning(f"{variable} sets no option of clcurv: {hint}")
    for names, needed, hint in _NEEDS.get(ctx.command.name or "", ()):
        if any(ctx.params.get(name) for name in needed):
            continue
        for name in names:
            if source_of(ctx, name) == "COMMANDLINE":
                raise UsageError(f"{flag_of(ctx, name)} does nothing here", hint=hint)


def source_of(ctx: Any, name: str) -> str:
    """Where an option's value comes from: ``COMMANDLINE``, ``ENVIRONMENT``, ``DEFAULT_MAP``, ..."""
    source = ctx.get_parameter_source(name)
    return "" if source is None else str(source.name)


def flag_of(ctx: Any, name: str) -> str:
    """The long flag of a parameter."""
    return str(next(p.opts[0] for p in ctx.command.params if p.name == name))


def unknown_variables(ctx: Any) -> Iterator[tuple[str, str]]:
    """CLCURV_ variables that no command reads, each with what was probably meant."""
    commands = ctx.find_root().command.commands
    known = {str(p.envvar) for c in commands.values() for p in c.params if p.envvar}
    for variable in sorted(os.environ):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in known:
            continue
        flag = variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace("_", "-")
        if flag in PER_COMMAND:
            yield variable, f"it is set per command, as {ENVIRONMENT_PREFIX}KAPPA_{flag.upper()}"
            continue
        close = difflib.get_close_matches(variable, known, n=1)
        yield variable, f"did you mean {close[0]}?" if close else "unset it, or look at --help"
