"""Every bad checkpoint in a process of its own, with little memory and little time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hostile import EXIT_CODE, HOSTILE
from limited import MIB, Server, available
from program import quiet_surroundings

pytestmark = pytest.mark.skipif(not available(), reason="needs fork and /proc")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with quiet_surroundings():
        yield Server()


@pytest.mark.parametrize("name", HOSTILE)
def test_refused_in_little_memory_and_time(name: str, server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    path = HOSTILE[name](folder)
    before = sorted(tmp_path.rglob("*"))
    ran, added = server("kappa", path, "-q", folder=tmp_path, mib=512, seconds=30)
    assert ran.code == EXIT_CODE[name], ran.err
    assert ran.out == ""
    first, *hint = ran.err.splitlines()
    assert first.startswith("clcurv: error: ")
    assert [line[:6] for line in hint] in ([], ["hint: "])
    assert "Traceback" not in ran.err
    assert added < 256 * MIB
    assert sorted(tmp_path.rglob("*")) == before  # no canary, nothing written


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_inspect_says_what_it_is(name: str, server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    path = HOSTILE[name](folder)
    before = sorted(tmp_path.rglob("*"))
    ran, added = server("inspect", path, "-q", "--json", folder=tmp_path, mib=512, seconds=30)
    assert ran.code == EXIT_CODE[name], ran.err
    (line, *_) = ran.err.splitlines()
    assert line.startswith("clcurv: error: ")
    assert "Traceback" not in ran.err
    if ran.out:  # nothing, of what is not there or cannot be opened
        assert ran.report["refusal"]["message"]
    assert added < 256 * MIB
    assert sorted(tmp_path.rglob("*")) == before
