"""`clcurv.inspect` and the commands refuse the same files in the same words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hostile import EXIT_CODE, HOSTILE
from program import VIT, program

import clcurv
from clcurv.errors import ClcurvError, InputError
from clcurv.report.text import printable


def told(line: str) -> str:
    """safetensors names either of two tensors that lie over each other, now this, now that."""
    return re.sub("tensor `.*`", "tensor", line)


@pytest.mark.parametrize("name", HOSTILE)
def test_it_refuses_what_the_commands_refuse_in_the_same_words(name: str, tmp_path: Path) -> None:
    path = HOSTILE[name](tmp_path)
    ran = program("kappa", path, "--data", VIT[2], "-q")
    try:
        report = clcurv.inspect(path)
    except InputError as error:  # there is nothing that could be looked at
        assert name in ("wrong_path", "long_name", "pipe")
        refusal: ClcurvError | None = error
    else:
        refusal = report.refusal
        assert report.document.refusal is not None
        assert report.document.refusal.message == str(refusal)
    assert refusal is not None
    assert refusal.exit_code == ran.code == EXIT_CODE[name]
    assert told(ran.err.splitlines()[0]) == told(f"clcurv: error: {printable(str(refusal))}")
    assert not list(tmp_path.rglob("canary"))
