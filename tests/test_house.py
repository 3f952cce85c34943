"""Imports point one way: inputs, curvature, diagnostics, recommend, report."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "clcurv"
ROOMS = ("inputs", "curvature", "diagnostics", "recommend", "report")


def imported(module: Path) -> set[str]:
    """Rooms that a module imports from, inside functions too, types apart."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    names = [n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module]
    names += [a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names]
    return {name.split(".")[1] for name in names if name.startswith("clcurv.")}


@pytest.mark.parametrize("room", ROOMS)
def test_no_room_looks_to_the_right(room: str) -> None:
    later = {*ROOMS[ROOMS.index(room) + 1 :], "pipeline", "cli"}
    found = {
        str(path.relative_to(PACKAGE)): right
        for path in sorted((PACKAGE / room).glob("*.py"))
        if (right := imported(path) & later)
    }
    assert not found


def test_the_command_line_computes_nothing() -> None:
    allowed = {"errors", "cli", "pipeline", "report", "runtime", "inputs", "diagnostics"}
    for path in sorted((PACKAGE / "cli").glob("*.py")):
        assert imported(path) <= allowed, path.name
