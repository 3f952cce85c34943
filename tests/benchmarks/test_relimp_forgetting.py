"""The experiment in small, and its figures on a matrix worked out by hand."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).parent


@pytest.fixture
def experiment(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(HERE)
    return importlib.import_module("relimp_forgetting")


def test_figures_by_hand(monkeypatch):
    monkeypatch.syspath_prepend(HERE)
    summary = importlib.import_module("task_matrix").summary
    found = summary([[0.9, 0.5, 0.0], [0.95, 0.8, 0.1], [0.6, 0.9, 0.7]])
    assert found == pytest.approx(
        {
            "overall.mean_final": (0.6 + 0.9 + 0.7) / 3,
            "overall.mean_incremental": (0.9 + (0.95 + 0.8) / 2 + (0.6 + 0.9 + 0.7) / 3) / 3,
            "learning.mean_diagonal": (0.9 + 0.8 + 0.7) / 3,
            "forgetting.max_excl_last": ((0.95 - 0.6) + (0.8 - 0.9)) / 2,
            "bwt.gem_T": ((0.6 - 0.9) + (0.9 - 0.8)) / 2,
            "bwt.positive": 0.0,
        }
    )
    for wrong in ([[1.0]], [[1.0, 0.0], [1.0]]):
        with pytest.raises(ValueError, match="square"):
            summary(wrong)


@pytest.mark.parametrize("scenario", ["domain", "class"])
def test_two_tasks_and_one_trial_a_phase(experiment, monkeypatch, tmp_path, capsys, scenario):
    path = tmp_path / "r.json"
    monkeypatch.setattr(
        sys, "argv",
        [
            "relimp_forgetting.py", "--scenario", scenario, "--seeds", "1", "--tasks", "2",
            "--epochs", "3", "--lr", "0.05", "--max-trials", "1", "--json", str(path),
        ],
    )  # fmt: skip
    experiment.main()
    text = capsys.readouterr().out
    found = json.loads(path.read_text())["seeds"]["0"]
    assert "forgetting.max_excl_last" in text
    assert set(found) == {"none", "uniform", "relative"}
    first = [found[m]["matrix"][0] for m in found]
    assert first[0] == first[1] == first[2]  # the same network after the first task
    for method, result in found.items():
        assert [len(row) for row in result["matrix"]] == [2, 2]
        assert all(0 <= v <= 1 for row in result["matrix"] for v in row)
        assert result["matrix"][0][0] > 0.9
        assert f"R[i][j], {method}" in text
    assert found["none"]["searches"] == []
    assert found["uniform"]["searches"][0]["lambda"] > 0
    if scenario == "class":
        assert found["none"]["matrix"][0][1] == 0  # no outputs for it yet
        known = found["none"]["known task"]["matrix"]
        assert known[1][0] >= found["none"]["matrix"][1][0]
        assert "Among the classes" in text
