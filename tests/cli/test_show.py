"""A saved report is rendered and judged again; the schema is printed."""

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clcurv.report.document import to_json, write_json
from clcurv.report.kappa_document import KappaDocument


@pytest.fixture
def saved(document: KappaDocument, tmp_path: Path) -> Path:
    write_json(document, tmp_path / "kappa.json")
    return tmp_path / "kappa.json"


def test_the_same_report_comes_back(program: Any, saved: Path) -> None:
    ran = program("show", "kappa.json")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == saved.read_text()


def test_as_table_and_markdown_and_figure(program: Any, saved: Path, tmp_path: Path) -> None:
    assert "lr_scale" in program("show", "kappa.json", "--format", "table").out
    assert "| layer |" in program("show", "kappa.json", "--format", "markdown").out
    assert program("show", "kappa.json", "--plot", "k.png").code == 0
    assert (tmp_path / "k.png").read_bytes().startswith(b"\x89PNG")


def test_new_gates(program: Any, saved: Path) -> None:
    assert program("show", "kappa.json", "--fail-on", "kappa>20").code == 10
    assert program("show", "kappa.json", "--fail-on", "kappa>200").code == 0


def test_from_stdin(program: Any, document: KappaDocument, monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = SimpleNamespace(buffer=io.BytesIO(to_json(document).encode()))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert json.loads(program("show", "-").out)["kappa"]["value"] == 40.0


@pytest.mark.parametrize("content", [None, "", "{}", "[1]", '{"schema": "clcurv.schedule"}'])
def test_what_is_no_report(program: Any, tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "x.json").write_text(content)
    ran = program("show", "x.json")
    assert (ran.code, ran.out) == (3, "")
    assert ran.err.startswith("clcurv: error: ")


def test_the_report_read_is_not_overwritten(program: Any, saved: Path) -> None:
    assert program("show", "kappa.json", "-o", "kappa.json").code == 2


def test_schema(program: Any) -> None:
    ran = program("schema", "clcurv.schedule")
    assert json.loads(ran.out)["properties"]["schema"]["const"] == "clcurv.schedule"
    assert ran.err == ""
    unknown = program("schema", "nope")
    assert (unknown.code, unknown.out) == (2, "")
    assert "clcurv.schedule" in unknown.err
