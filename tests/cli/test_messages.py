"""What a build log is told while something takes long."""

from __future__ import annotations

from typing import Any

import pytest

from clcurv.cli import messages
from clcurv.cli.messages import Messages


@pytest.mark.parametrize(
    ("seconds_per_step", "left"), [(5.0, "75 s left"), (30.0, "8 min left"), (600.0, "2.5 h left")]
)
def test_a_line_every_ten_seconds_says_how_long_it_will_take(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    seconds_per_step: float,
    left: str,
) -> None:
    now = [100.0]
    monkeypatch.setattr(messages.time, "monotonic", lambda: now[0])
    with Messages.create(quiet=False, verbose=False).progress() as tell:
        tell("reading", 0, 0)
        for done in range(1, 7):
            tell("look-ahead", done, 20)
            now[0] += seconds_per_step
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["clcurv: reading", "clcurv: look-ahead 1/20"]
    said = [line for line in lines[2:] if line.startswith("clcurv: look-ahead 5/20")]
    assert said == [f"clcurv: look-ahead 5/20, {left}"]


def test_what_is_quick_or_of_unknown_length_has_no_guess(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(messages.time, "monotonic", lambda: now[0])
    with Messages.create(quiet=False, verbose=False).progress() as tell:
        for done in range(5):
            tell("quick", done, 5)
        for _ in range(3):
            tell("unknown", 0, 0)
            now[0] += 20
    lines: list[Any] = capsys.readouterr().err.splitlines()
    assert lines == ["clcurv: quick", *["clcurv: unknown"] * 3]
