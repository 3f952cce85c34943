"""SIGINT and SIGTERM as exceptions, so that one handler writes the partial report for both."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


class Terminated(KeyboardInterrupt):
    """SIGTERM, raised like Ctrl-C: the library need know only KeyboardInterrupt."""


@dataclass
class Received:
    """The signal that came, if one did."""

    number: int = signal.SIGINT

    @property
    def exit_code(self) -> int:
        """128 + the signal's number: 130 for SIGINT, 143 for SIGTERM."""
        return 128 + self.number


@contextmanager
def signals_raise() -> Iterator[Received]:
    """Inside, SIGINT raises KeyboardInterrupt and SIGTERM raises `Terminated`, once each run.

    After the first, both have their default effect again: a second Ctrl-C ends a
    process that does not come to its end. Ignored signals (``nohup``) stay ignored.
    """
    received = Received()
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    handled = [
        number
        for number in (signal.SIGINT, signal.SIGTERM)
        if signal.getsignal(number) is not signal.SIG_IGN
    ]

    def once(number: int, frame: FrameType | None) -> None:
        received.number = number
        for each in handled:
            signal.signal(each, signal.SIG_DFL)
        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    before = {number: signal.signal(number, once) for number in handled}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
