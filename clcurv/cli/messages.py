"""What people read on stderr: notes, warnings, errors and progress. Never stdout."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.text import Text

from clcurv.errors import UsageError
from clcurv.report.text import printable

ProgressCallback = Callable[[str, int, int], None]

_SECONDS_BETWEEN_LINES = 10.0


def is_animated(stream_is_terminal: bool) -> bool:
    """Whether a moving progress bar suits the terminal behind stderr."""
    return stream_is_terminal and os.environ.get("TERM", "") not in {"dumb", ""}


@dataclass(frozen=True)
class Messages:
    """The one writer to stderr.

    Attributes:
        verbosity: -1 errors only (``--quiet``), 0 the default, 1 everything that the
            libraries have to say as well (``--verbose``).
        console: Bound to the stderr found at creation, so that a later redirection of
            ``sys.stderr`` catches other people's output and not ours.
    """

    verbosity: int = 0
    console: Console = field(
        default_factory=lambda: Console(
            file=sys.stderr, markup=False, highlight=False, emoji=False, soft_wrap=True
        )
    )

    @classmethod
    def create(cls, *, quiet: bool, verbose: bool) -> Messages:
        """From the flags.

        Raises:
            UsageError: Both were given.
        """
        if quiet and verbose:
            raise UsageError("--quiet contradicts --verbose", hint="give one of them")
        return cls(verbosity=int(verbose) - int(quiet))

    def error(self, message: str, *, hint: str | None = None) -> None:
        self._line("clcurv: error: ", message, "bold red")
        if hint:
            self._line("hint: ", hint, "bold")

    def warning(self, message: str, *, loud: bool = False) -> None:
        if loud or self.verbosity >= 0:
            self._line("clcurv: warning: ", message, "bold yellow")

    def note(self, message: str) -> None:
        if self.verbosity >= 0:
            self._line("clcurv: ", message, "dim")

    def detail(self, message: str) -> None:
        if self.verbosity >= 1:
            self._line("clcurv: ", message, "dim")

    def _line(self, prefix: str, message: str, style: str) -> None:
        one_line = " ".join(message.split()) if "\n" in message else message
        self.console.print(Text.assemble((prefix, style), printable(one_line)))

    @contextmanager
    def progress(self) -> Iterator[ProgressCallback]:
        """A callback ``(stage, done, total)`` for the library's long loops.

        A bar on a terminal; on anything else a line when a stage begins and then one
        every ten seconds, which is what a build log wants; with ``--quiet`` nothing.
        `total` 0 means that the end is not known.
        """
        if self.verbosity < 0:
            yield lambda stage, done, total: None
        elif is_animated(self.console.is_terminal):
            with self._bar() as callback:
                yield callback
        else:
            yield self._lines()

    @contextmanager
    def _bar(self) -> Iterator[ProgressCallback]:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(compact=True),
            console=self.console,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        with bar:
            task = bar.add_task("", total=None)
            current = ""

            def update(stage: str, done: int, total: int) -> None:
                nonlocal current
                if stage != current:
                    current = stage
                    bar.reset(task, description=printable(stage))
                bar.update(task, completed=done, total=total or None)

            yield update

    def _lines(self) -> ProgressCallback:
        current, spoken, began, first = "", 0.0, 0.0, 0

        def update(stage: str, done: int, total: int) -> None:
            nonlocal current, spoken, began, first
            now = time.monotonic()
            if stage == current and now - spoken < _SECONDS_BETWEEN_LINES:
                return
            if stage != current:
                began, first = now, done
            text = f"{stage} {done}/{total}" if done and total else stage
            if first < done < total:
                text += f", {_duration((now - began) * (total - done) / (done - first))} left"
            self.note(text)
            current, spoken = stage, now

        return update


def _duration(seconds: float) -> str:
    """``40 s``, ``12 min``, ``3.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
