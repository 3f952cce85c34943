"""``clcurv stream resolve``: a manifest on stdout or in a file, errors with their exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest


@pytest.fixture
def data(tmp_path: Path) -> Path:
    x = np.arange(80, dtype=np.float32).reshape(20, 4)
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(20) % 4, t=np.arange(20) % 2)
    return tmp_path


def test_json_on_stdout_and_in_a_file(program: Any, data: Path) -> None:
    ran = program("stream", "resolve", "split:2:sorted", "--data", "a.npz", "-o", "s.json")
    assert ran.code == 0, ran.err
    resolved = json.loads(ran.out)
    assert (data / "s.json").read_text() == ran.out
    assert resolved["schema"] == "clcurv.stream"
    assert [task["classes"] for task in resolved["tasks"]] == [[0, 1], [2, 3]]
    assert resolved["tasks"][0]["label_histogram"] == {"0": 5, "1": 5}
    again = program("stream", "resolve", "s.json", "--json")
    assert json.loads(again.out)["tasks"] == resolved["tasks"]


def test_a_table_for_people(program: Any, data: Path) -> None:
    ran = program("stream", "resolve", "a.npz", "--format", "table")
    assert ran.code == 0, ran.err
    assert "t=0" in ran.out
    assert "digest" in ran.out


def test_names_do_not_act_on_the_terminal(program: Any, data: Path) -> None:
    (data / "stream.json").write_text(
        json.dumps(
            {
                "schema": "clcurv.stream",
                "tasks": [{"name": "\x1b[31m[/red]\x7f\u202e", "train": "a.npz"}],
            }
        )
    )
    for form in ("table", "json"):
        out = program("stream", "resolve", "stream.json", "--format", form).out
        assert not {"\x1b", "\x7f", "\u202e"} & set(out)
        assert "[/red]" in out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["resolve", "split:5", "--data", "a.npz"], 2, "4 classes, too few for 5 tasks"),
        (["resolve", "permuted:0", "--data", "a.npz"], 2, "K is not a number"),
        (["resolve", "permuted:2"], 2, "none is given"),
        (["resolve", "nothing.yaml"], 3, "no such file"),
        (["resolve", "bad.yaml"], 3, "unknown key"),
        (["resolve", "a.npz", "-o", "a.npz"], 2, "would overwrite"),
        (["resolve", "a.npz", "--label-map", "l.json", "-o", "l.json"], 2, "would overwrite"),
        (["resolve", "a.npz", "-o", "no/s.json"], 2, "folder does not exist"),
        (["resolve", "a.npz", "--json", "--format", "table"], 2, "contradicts"),
        (["inspect", "a.npz"], 2, "inspect"),
    ],
)
def test_errors(program: Any, data: Path, arguments: list[str], code: int, message: str) -> None:
    (data / "bad.yaml").write_text("schema: clcurv.stream\ntasks: [{trian: a.npz}]\n")
    ran = program("stream", *arguments, "-q")
    assert (ran.code, ran.out) == (code, "")
    errors = [line for line in ran.err.splitlines() if line.startswith("clcurv: error: ")]
    assert len(errors) == 1
    assert message in errors[0]
    assert not (data / "no").exists()


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys\nfrom clcurv.cli.app import run\nrun(['stream', '--help'])\n"
        "print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True
    )
    imported = set(ran.stderr.split())
    assert "STREAM" in ran.stdout
    assert "typer" in imported
    assert not {"torch", "numpy", "datasets", "transformers"} & imported
