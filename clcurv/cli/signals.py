"""SIGINT, SIGTERM and SIGHUP as exceptions: one handler writes the partial report for all."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP, raised like Ctrl-C: the library need know only KeyboardInterrupt."""


@dataclass
class Received:
    """The signal that came, if one did."""

    number: int = 0

    @property
    def exit_code(self) -> int:
        """128 + the signal's number: 130 for SIGINT, 143 for SIGTERM, 129 for SIGHUP."""
        return 128 + (self.number or signal.SIGINT)


@contextmanager
def signals_raise() -> Iterator[Received]:
    """Inside, SIGINT raises KeyboardInterrupt, SIGTERM and SIGHUP raise `Terminated`, once a run.

    After the first, all have their default effect again: a second Ctrl-C ends a
    process that does not come to its end. Ignored signals (``nohup``) stay ignored.
    """

    def stop(number: int) -> None:
        raise KeyboardInterrupt if number == signal.SIGINT else Terminated

    with _handled(stop) as received:
        yield received


@contextmanager
def signals_wait() -> Iterator[Received]:
    """Inside, the first signal is only noted: what takes seconds is brought to its end."""
    with _handled(lambda number: None) as received:
        yield received


@contextmanager
def _handled(effect: Callable[[int], None]) -> Iterator[Received]:
    received = Received()
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    handled = [n for n in _SIGNALS if signal.getsignal(n) is not signal.SIG_IGN]

    def once(number: int, frame: FrameType | None) -> None:
        received.number = number
        for each in handled:
            signal.signal(each, signal.SIG_DFL)
        effect(number)

    before = {number: signal.signal(number, once) for number in handled}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
