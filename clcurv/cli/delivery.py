"""Where a report goes and what it decides: checked before the work, carried out after it."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console

from clcurv.cli.chatter import quiet_libraries
from clcurv.cli.messages import Messages
from clcurv.errors import ResourceError, UsageError

if TYPE_CHECKING:
    from clcurv.report.document import Document
    from clcurv.report.gate import Gate

DELIVERY_OPTIONS = (
    "output_format",
    "json_",
    "output",
    "plot",
    "fail_on",
    "baseline",
    "fail_on_regression",
    "inconclusive",
    "allow_generated",
    "exit_zero",
)
PLOT_SUFFIXES = (".png", ".svg", ".pdf")


Extra = tuple[Path, "Document | Callable[[Path], None]", str]
"""A further file: where, the document in it or what writes it, and its name for people."""


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """Everything asked for about the output, already known to be possible.

    Attributes:
        messages: Where verdicts and write failures are told.
        output_format: ``table`` | ``json`` | ``markdown`` | ``github``; ``auto`` is settled.
        output: JSON file to write.
        plot: Figure to write.
        gates: Parsed ``--fail-on`` expressions.
        baseline: The earlier report.
        regression: Allowed rise over the baseline, as a fraction.
        inconclusive: ``fail`` | ``pass``.
        allow_generated: Gates may judge generated data.
        exit_zero: Verdicts do not reach the exit code.
    """

    messages: Messages
    output_format: str
    output: Path | None
    plot: Path | None
    gates: tuple[Gate, ...]
    baseline: Document | None
    regression: float | None
    inconclusive: Literal["fail", "pass"]
    allow_generated: bool
    exit_zero: bool

    @classmethod
    def prepare(
        cls,
        messages: Messages,
        *,
        protected: Sequence[str],
        schema: str = "clcurv.schedule",
        extra_files: Mapping[str, Path | None] | None = None,
        **asked: Any,
    ) -> Delivery:
        """Refuse now what would otherwise fail after the measurement.

        Args:
            messages: Where to talk.
            protected: The inputs; no output may overwrite them.
            schema: What kind of report will be delivered.
            extra_files: Flag -> file of further documents, which must be writable, too.
            asked: The `DELIVERY_OPTIONS` as parsed.

        Raises:
            UsageError: Options that contradict each other, a gate that does not parse, a
                figure's suffix, a destination that cannot be a file.
            ResourceError: A destination that cannot be written.
            InputError: A baseline that is no report.
        """
        if asked["json_"] and asked["output_format"] not in {"auto", "json"}:
            raise UsageError(
                f"--json contradicts --format {asked['output_format']}", hint="give one of them"
            )
        output_format = "json" if asked["json_"] else asked["output_format"]
        if output_format == "auto":
            output_format = "table" if sys.stdout.isatty() else "json"
        _refuse_unmeasured(schema, asked)
        output, plot = asked["output"], asked["plot"]
        if plot is not None and plot.suffix.lower() not in PLOT_SUFFIXES:
            raise UsageError(
                f"--plot {plot}: the suffix must be one of {', '.join(PLOT_SUFFIXES)}",
                hint=f"--plot {plot.with_suffix('.svg')}" if plot.name else None,
            )
        files = {"--output": output, "--plot": plot, **(extra_files or {})}
        wanted = [(flag, path) for flag, path in files.items() if path is not None]
        for (flag, path), (other_flag, other) in combinations(wanted, 2):
            if _same_file(path, other):
                raise UsageError(f"{flag} and {other_flag} both name {path}", hint="name two files")
        for flag, path in wanted:
            _check_destination(flag, path, protected, schema)

        if asked["baseline"] is not None and asked["fail_on_regression"] is None:
            raise UsageError(
                "--baseline decides nothing alone", hint="add --fail-on-regression 10%"
            )
        if asked["fail_on_regression"] is not None and asked["baseline"] is None:
            raise UsageError(
                "--fail-on-regression needs an earlier report", hint="add --baseline old.json"
            )
        gates: tuple[Gate, ...] = ()
        baseline = None
        regression = None
        if asked["fail_on"] or asked["baseline"] is not None:
            from clcurv.report import gate
            from clcurv.report.reader import load_document
            from clcurv.report.registry import document_class

            kind = document_class(schema)
            gates = tuple(gate.parse_gate(x, document=kind) for x in asked["fail_on"] or ())
            if asked["baseline"] is not None:
                baseline = load_document(asked["baseline"], kind)
                regression = gate.parse_regression(asked["fail_on_regression"])
        return cls(
            messages=messages,
            output_format=output_format,
            output=output,
            plot=plot,
            gates=gates,
            baseline=baseline,
            regression=regression,
            inconclusive=asked["inconclusive"],
            allow_generated=asked["allow_generated"],
            exit_zero=asked["exit_zero"],
        )

    def without_gates(self) -> Delivery:
        """For a partial report, on which no verdict may rest."""
        return replace(self, gates=(), baseline=None)

    def deliver(self, document: Document, *, extras: Sequence[Extra] = ()) -> int:
        """Write and show the report, then judge it.

        Args:
            document: The report.
            extras: Further files to write.

        Returns:
            0, or the verdict's exit code.

        Raises:
            Exception: The first thing that could not be written or judged; what could be
                delivered has been by then: the measurement may have taken hours.
        """
        faults: list[Exception] = []
        exit_code = 0
        if self.gates or self.baseline is not None:
            try:
                document, exit_code = self._judge(document)
            except Exception as error:
                faults.append(error)
        writes: list[Callable[[], None]] = [
            partial(self._write_output, document),
            *(partial(self._write, path, extra, what) for path, extra, what in extras),
            partial(self._show, document),
            partial(self._write_plot, document),
        ]
        for write in writes:
            try:
                write()
            except Exception as error:
                faults.append(error)
        if not sys.stdout.isatty():  # a terminal has just shown them
            self._tell(document)
        if faults:
            for later in faults[1:]:
                self.messages.error(str(later), hint=getattr(later, "hint", None))
            raise faults[0]
        return 0 if self.exit_zero else exit_code

    def _judge(self, document: Document) -> tuple[Document, int]:
        from clcurv.report import gate

        verdict = gate.evaluate(
            self.gates,
            document,
            baseline=self.baseline,
            regression=self.regression,
            inconclusive=self.inconclusive,
            allow_generated=self.allow_generated,
        )
        return document.with_verdict(verdict), verdict.exit_code

    def _write_output(self, document: Document) -> None:
        if self.output is not None:
            self._write(self.output, document, "report")

    def _write(self, path: Path, content: Document | Callable[[Path], None], what: str) -> None:
        if callable(content):
            content(path)
        else:
            from clcurv.report.document import write_json

            write_json(content, path)
        self.messages.note(f"{what} written to {path}")

    def _write_plot(self, document: Document) -> None:
        if self.plot is not None:
            with quiet_libraries(self.messages):
                from clcurv.report import render

                render.render_plot(document, self.plot)
            self.messages.note(f"figure written to {self.plot}")

    def _show(self, document: Document) -> None:
        from clcurv.report import render

        if self.output_format == "json":
            from clcurv.report.document import to_json

            write_stdout(to_json(document))
        elif self.output_format == "table":
            with stdout_errors():
                render.print_table(document, result_console())
                sys.stdout.flush()
        elif self.output_format == "markdown":
            write_stdout(render.render_markdown(document))
        else:
            write_stdout(render.render_github(document))

    def _tell(self, document: Document) -> None:
        if self.output_format == "table" and sys.stdout.isatty() and sys.stderr.isatty():
            return  # one pair of eyes reads both, and the table has said it all
        for warning in document.warnings:
            self.messages.warning(warning)
        if document.judged is None:
            return
        for outcome in document.judged.gates:
            line = f"gate {outcome.expression}: {outcome.outcome}"
            line += f" ({outcome.reason})" if outcome.reason else ""
            if outcome.outcome == "pass":
                self.messages.note(line)
            else:
                self.messages.warning(line)


def result_console() -> Console:
    """The console for a result; names in it are text, never markup."""
    return Console(file=sys.stdout, markup=False, highlight=False, emoji=False)


def write_stdout(text: str) -> None:
    """The result, flushed.

    Raises:
        ResourceError: stdout cannot take it (a full disk); a closed pipe is no error.
    """
    with stdout_errors():
        sys.stdout.write(text)
        sys.stdout.flush()


@contextmanager
def stdout_errors() -> Iterator[None]:
    """A reader that went away (``| head``) has what it wants; anything else is told."""
    try:
        yield
    except BrokenPipeError:
        give_up_stdout()
    except OSError as error:
        give_up_stdout()
        raise ResourceError(
            f"cannot write to stdout: {error.strerror}", hint="write the report with -o FILE"
        ) from error


def give_up_stdout() -> None:
    """What is still buffered would fail again when the interpreter closes stdout."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refuse_unmeasured(schema: str, asked: Mapping[str, Any]) -> None:
    """A report without measurements has nothing to judge or to draw."""
    from clcurv.report.registry import JUDGED

    flags = {"fail_on": "--fail-on", "baseline": "--baseline", "plot": "--plot"}
    given = [flag for name, flag in flags.items() if asked[name]]
    if given and schema not in JUDGED:
        raise UsageError(
            f"{given[0]}: {schema} reports hold no measurement",
            hint="give a report of kappa, spectrum or relimp",
        )


def _same_file(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _check_destination(flag: str, path: Path, protected: Sequence[str], schema: str) -> None:
    if path.name == "-" or path == Path("-"):
        raise UsageError(f"{flag} - is not a file", hint="--json prints the report on stdout")
    if any(_same_file(path, Path(x)) for x in protected):
        raise UsageError(f"{flag} {path} would overwrite the input", hint="name another file")
    if path.is_dir():
        name = f"{schema.rpartition('.')[2]}.json"
        raise UsageError(f"{flag} {path} is a folder", hint=f"{flag} {path / name}")
    folder = Path(os.path.realpath(path)).parent
    if not folder.is_dir():
        raise UsageError(
            f"{flag} {path}: its folder does not exist", hint=f"mkdir -p {shlex.quote(str(folder))}"
        )
    if path.exists() and not path.is_file():
        return  # a device or a named pipe is written in place
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ResourceError(
            f"{flag} {path}: cannot write there: {error.strerror}", hint="write elsewhere"
        ) from error
