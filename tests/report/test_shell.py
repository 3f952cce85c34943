"""Commands that are shown are the commands that a shell runs."""

import os
import subprocess

import pytest

from clcurv.report.shell import command_line, quoted
from clcurv.report.text import printable

WORDS = [
    "plain.pt",
    "with space.pt",
    "it's.pt",
    'double"quote.pt',
    "back\\slash",
    "dollar$HOME`date`",
    "*?[a]{b}~",
    "",
    "é – ü.pt",
    "escape\x1b[31m.pt",
    "newline\nand tab\t.pt",
    "bell\x07" + "7",
    "quote'and\x1bescape\\",
    "bidi\u202e.pt",
    os.fsdecode(b"no utf-8 \xff\xfe.pt"),
]


@pytest.mark.parametrize("word", WORDS, ids=ascii)
def test_bash_reads_every_word_back(word: str) -> None:
    script = f"printf %s {quoted(word)}"
    done = subprocess.run(["bash", "-c", os.fsencode(script)], capture_output=True, check=True)
    assert done.stdout == os.fsencode(word)


@pytest.mark.parametrize("word", WORDS, ids=ascii)
def test_nothing_in_a_quoted_word_acts_on_a_terminal(word: str) -> None:
    assert printable(quoted(word)) == quoted(word)


def test_plain_words_stay_plain() -> None:
    assert command_line(["clcurv", "kappa", "a.pt", "--data", "my photos"]) == (
        "clcurv kappa a.pt --data 'my photos'"
    )
