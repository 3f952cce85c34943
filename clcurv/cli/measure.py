"""A measurement from the command line: quiet libraries, progress, interrupts, delivery."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from clcurv.cli.chatter import quiet_libraries
from clcurv.cli.delivery import Delivery, Extra
from clcurv.cli.messages import Messages, ProgressCallback
from clcurv.cli.plan import show_plan
from clcurv.cli.signals import signals_raise, signals_wait
from clcurv.errors import ClcurvError

if TYPE_CHECKING:
    from clcurv.report.document import Document

_Document = TypeVar("_Document", bound="Document")


class Report(Protocol):
    """What a library call returns."""

    @property
    def document(self) -> Document: ...


Work = Callable[[ModuleType, ProgressCallback], Any]


def measure_and_deliver(
    *,
    messages: Messages,
    delivery: Delivery,
    work: Callable[[ModuleType, ProgressCallback], Report],
    plan: Work | None = None,
    extras: Callable[[Any], Sequence[Extra]] = lambda report: (),
) -> int:
    """Run one library call and bring its report out.

    Args:
        messages: Where to talk.
        delivery: Where the report goes.
        work: Called with ``clcurv.pipeline`` and the progress callback. A KeyboardInterrupt
            out of it may carry a partial report as its attribute ``document``.
        plan: For ``--dry-run``: called instead of `work`; what it returns is shown.
        extras: From the finished report: further files and what is in them.

    Returns:
        The exit code.
    """
    report: Report | None = None
    planned: Any = None
    partial: Document | None = None
    interrupted = False
    with quiet_libraries(messages), signals_raise() as received:
        try:
            with messages.progress() as progress:
                progress("loading libraries", 0, 0)
                from clcurv import pipeline

                if plan is not None:
                    planned = plan(pipeline, progress)
                else:
                    report = work(pipeline, progress)
        except KeyboardInterrupt as interrupt:
            interrupted = True
            partial = getattr(interrupt, "document", None)
    if interrupted:
        messages.error("interrupted", hint="the report is partial" if partial else None)
        if partial is not None:
            delivery.without_gates().deliver(with_command(partial))
        return received.exit_code
    if plan is not None:
        show_plan(planned, delivery.output_format)
        return 0
    assert report is not None
    with signals_wait() as received:
        code = delivery.deliver(
            with_command(report.document),
            extras=[
                (path, extra if callable(extra) else with_command(extra), what)
                for path, extra, what in extras(report)
            ],
        )
    if received.number:
        messages.error("interrupted after the measurement: the report is whole")
        return received.exit_code
    failure: ClcurvError | None = getattr(report, "failure", None)
    if failure is None:
        return code
    # A part of the work failed: the report holds the rest, the exit code says so.
    messages.error(str(failure), hint=failure.hint)
    return failure.exit_code


def with_command(document: _Document) -> _Document:
    """The report records how it was asked for, unless the library knew better."""
    if document.command is not None:
        return document
    words = shlex.join(["clcurv", *sys.argv[1:]])
    return document.model_copy(
        update={"command": words.encode("utf-8", "backslashreplace").decode()}
    )
