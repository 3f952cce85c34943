"""The ``clcurv`` program: its commands, its defaults, and the one place where errors end."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from clcurv.cli import inspect, kappa, relimp, schema, show, spectrum, stream
from clcurv.cli.config import load_defaults
from clcurv.cli.delivery import give_up_stdout
from clcurv.cli.given import source_of
from clcurv.cli.messages import Messages
from clcurv.errors import ClcurvError, InputError, ResourceError, UsageError

app = typer.Typer(
    name="clcurv",
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("inspect", epilog=inspect.EPILOG)(inspect.inspect)
app.command("kappa", epilog=kappa.EPILOG)(kappa.kappa)
app.command("spectrum", epilog=spectrum.EPILOG)(spectrum.spectrum)
app.command("relimp", epilog=relimp.EPILOG)(relimp.relimp)
app.command("stream", epilog=stream.EPILOG)(stream.stream)
app.command("show", epilog=show.EPILOG)(show.show)
app.command("schema")(schema.schema)

# typer re-exports this one of its usage errors; the base class has moved between versions.
_CommandLineError = cast(type[Exception], typer.BadParameter.__mro__[2])


def _print_version(wanted: bool) -> None:
    if wanted:
        from clcurv import __version__

        typer.echo(f"clcurv {__version__}")
        raise typer.Exit


@app.callback()
def clcurv(
    ctx: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Measure the loss curvature that decides what a network forgets."""
    commands: dict[str, dict[str, str]] = {
        name: {
            flag.removeprefix("--"): parameter.name
            for parameter in command.params
            for flag in parameter.opts
            if flag.startswith("--") and flag != "--help"
        }
        for name, command in ctx.command.commands.items()  # type: ignore[attr-defined]
    }
    try:
        defaults = load_defaults(Path.cwd(), commands)
    except ClcurvError as error:
        ctx.obj = error
    else:
        ctx.obj = defaults
        ctx.default_map = dict(defaults.values)


def run(arguments: Sequence[str]) -> int:
    """Run the program and return its exit code; every error ends here as one line on stderr."""
    for name in ("stdout", "stderr"):  # a shell closes them with >&-
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    for output in (sys.stdout, sys.stderr):
        if hasattr(output, "reconfigure"):  # a Latin-1 terminal shows \u2113 instead of failing
            output.reconfigure(errors="backslashreplace")
    debug = "--debug" in arguments or bool(os.environ.get("CLCURV_DEBUG"))
    messages = Messages()
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        messages.error("interrupted")
        return 130
    except SystemExit as error:  # never ours: the user's code leaves this way, and the parser
        if isinstance(error.__context__, BrokenPipeError):  # ... where `--help | head` closed
            give_up_stdout()
            return 0
        if debug:
            traceback.print_exc()
        told = "" if error.code is None else repr(error.code)
        messages.error(
            f"code that was run called sys.exit({told}): nothing was measured",
            hint="look at --arch, --loss, --data and --batch-fn; --debug shows where",
        )
        return InputError.exit_code
    except Exception as error:
        if debug:
            traceback.print_exc()
        known = _as_ours(error)
        if isinstance(error, OSError):
            give_up_stdout()
        messages.error(str(known), hint=known.hint)
        return known.exit_code


def _as_ours(error: Exception) -> ClcurvError:
    """Anything else than our own errors is a fault of ours: never a verdict's exit code."""
    if isinstance(error, ClcurvError):
        return error
    if isinstance(error, MemoryError):
        return ResourceError("out of memory", hint="lower --batch-size or --memory")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ResourceError(f"cannot write: {error.strerror}", hint="free some disk space")
    return ClcurvError(
        f"unexpected {type(error).__name__}: {error}",
        hint="run again with --debug and report the traceback; this is a fault of clcurv",
    )


def _run(arguments: Sequence[str]) -> int:
    try:
        result: Any = app(list(arguments), standalone_mode=False, prog_name="clcurv")
    except _CommandLineError as error:
        raise _usage_error(error) from error
    return result if isinstance(result, int) else 0


def _usage_error(error: Exception) -> UsageError:
    """The parser's complaint in our form: one line, and one thing to try."""
    close = getattr(error, "possibilities", None)
    message = error.message if close else error.format_message()  # type: ignore[attr-defined]
    message = message.replace("Value error, ", "").rstrip(".")
    message = message[:1].lower() + message[1:]
    ctx, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    if ctx is not None and parameter is not None:
        origins = {"ENVIRONMENT": parameter.envvar, "DEFAULT_MAP": "pyproject.toml"}
        origin = origins.get(source_of(ctx, parameter.name))
        message = f"{origin}: {message}" if origin else message
    command = ctx.command_path if ctx is not None else "clcurv"
    return UsageError(
        message,
        hint=f"did you mean {' or '.join(close)}?" if close else f"{command} --help",
    )
