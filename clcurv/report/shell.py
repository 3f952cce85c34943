"""Command lines that can be copied into a shell, whatever the names in them hold."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from clcurv.report.text import printable


def quoted(word: str) -> str:
    r"""A word as a POSIX shell reads it back.

    Names with characters that act on a terminal, or that are no valid UTF-8, are spelled out in
    bash's and zsh's ``$'\x1b'`` form, byte by byte: what is shown is what is run.
    """
    if printable(word) == word:
        return shlex.quote(word)
    return "$'" + "".join(_spelled(byte) for byte in os.fsencode(word)) + "'"


def command_line(words: Sequence[str]) -> str:
    """The words as one line for a shell."""
    return " ".join(quoted(word) for word in words)


def _spelled(byte: int) -> str:
    char = chr(byte)
    if char in "\\'":
        return f"\\{char}"
    # Two octal digits could be followed by a third; three hold nothing back.
    return char if 0x20 <= byte < 0x7F else f"\\{byte:03o}"
