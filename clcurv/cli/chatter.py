"""Keeps what libraries print away from the result, and from people unless they ask."""

from __future__ import annotations

import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from typing import TextIO

from clcurv.cli.messages import Messages

# Read by the libraries when they are first imported; a user's own setting wins.
_QUIET_ENVIRONMENT = {
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "DATASETS_VERBOSITY": "error",
    "HF_HUB_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TQDM_DISABLE": "1",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}


class _Forward(io.TextIOBase):
    """Stands in for sys.stdout and sys.stderr and hands whole lines to `Messages.detail`."""

    def __init__(self, messages: Messages) -> None:
        self._messages = messages
        self._rest = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).replace("\r", "\n").split("\n")
        for line in lines:
            if line.strip():
                self._messages.detail(line.rstrip())
        return len(text)


@contextmanager
def quiet_libraries(messages: Messages) -> Iterator[None]:
    """Nothing but clcurv reaches stdout or stderr inside; with ``-v`` all of it is shown.

    Covers warnings, logging, prints to the Python streams, and what compiled code
    writes to file descriptor 1.
    """
    verbose = messages.verbosity >= 1
    for name, value in ({} if verbose else _QUIET_ENVIRONMENT).items():
        os.environ.setdefault(name, value)
    with ExitStack() as stack:
        stack.enter_context(_descriptor_1_elsewhere())
        stack.enter_context(redirect_stdout(_Forward(messages)))
        stack.enter_context(redirect_stderr(_Forward(messages)))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("default" if verbose else "ignore")
        warnings.showwarning = _to_stderr  # sys.stderr is ours now; a host's recorder is not
        if not verbose:
            stack.callback(logging.disable, logging.root.manager.disable)
            logging.disable(logging.CRITICAL)
        yield


def _to_stderr(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    print(f"{category.__name__}: {message} ({filename}:{lineno})", file=file or sys.stderr)


@contextmanager
def _descriptor_1_elsewhere() -> Iterator[None]:
    """Point file descriptor 1 at stderr; only when sys.stdout is really it."""
    try:
        ours = sys.stdout.fileno() == 1
    except (AttributeError, OSError, ValueError):
        ours = False
    if not ours:
        yield
        return
    sys.stdout.flush()
    saved = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)
