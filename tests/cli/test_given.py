"""Options that would do nothing are refused; variables are reported by their own names."""

from typing import Any

import pytest


@pytest.mark.parametrize(
    ("command", "flag", "hint"),
    [
        ("kappa model.pt --split test", "--split", "--data"),
        ("kappa model.pt --label-column y", "--label-column", "--data"),
        ("inspect model.pt --samples 3", "--samples", "--data"),
        ("inspect model.pt --skip-bad", "--skip-bad", "--data"),
        ("spectrum model.pt --stream s.yaml --momentum 0.9", "--momentum", "--lr"),
        ("spectrum model.pt --stream s.yaml --gamma 0.2", "--gamma", "--lr"),
        ("relimp model.pt --past a --current b --max-trials 3", "--max-trials", "--search"),
        ("relimp model.pt --past a --current b --lambda-decay 0.5", "--lambda-decay", "--search"),
        ("relimp model.pt --past a --current b --allowed-drop 0.2", "--allowed-drop", "--search"),
        ("relimp model.pt --past a --current b --accumulate max", "--accumulate", "--past-imp"),
        ("relimp model.pt --past a --save-importance i.st --epochs 3", "--epochs", "--current"),
        ("relimp model.pt --past a --save-importance i.st --lambda 3", "--lambda", "--current"),
    ],
)
def test_an_option_without_effect_is_refused(
    program: Any, pipeline: Any, command: str, flag: str, hint: str
) -> None:
    ran = program(*command.split())
    assert ran.code == 2
    assert f"{flag} does nothing here" in ran.err
    assert hint in ran.err.split("hint: ")[1]
    assert not pipeline.calls


@pytest.mark.parametrize("given", ["--data d --split test", "--new-data d --split test"])
def test_with_what_it_needs_it_runs(program: Any, pipeline: Any, given: str) -> None:
    ran = program("kappa", "model.pt", *given.split())
    assert ran.code == 0, ran.err
    assert pipeline.calls[0][1]["split"] == "test"


def test_defaults_without_effect_are_no_error(
    program: Any, pipeline: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("CLCURV_SPLIT", "test")
    (tmp_path / "pyproject.toml").write_text("[tool.clcurv]\nlabel-column = 'y'\n")
    ran = program("kappa", "model.pt")
    assert ran.code == 0, ran.err
    assert pipeline.calls[0][1]["label_column"] == "y"


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("CLCURV_SAMPELS", "did you mean CLCURV_SAMPLES?"),
        ("CLCURV_SCHEDULE", "CLCURV_KAPPA_SCHEDULE"),
        ("CLCURV_WHATEVER_ELSE_THERE_IS", "--help"),
    ],
)
def test_unknown_variables_are_named(
    program: Any, pipeline: Any, monkeypatch: pytest.MonkeyPatch, variable: str, meant: str
) -> None:
    monkeypatch.setenv(variable, "3")
    ran = program("kappa", "model.pt")
    assert ran.code == 0
    told = [line for line in ran.err.splitlines() if variable in line]
    assert len(told) == 1
    assert "warning" in told[0]
    assert meant in told[0]


def test_known_variables_of_any_command_are_not(
    program: Any, pipeline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("CLCURV_PROBES", "CLCURV_DEBUG", "CLCURV_RELIMP_SCHEDULE"):
        monkeypatch.setenv(variable, "1")
    assert "CLCURV_" not in program("kappa", "model.pt").err


def test_a_bad_value_is_reported_under_the_name_of_its_origin(
    program: Any, pipeline: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    assert program("kappa", "m.pt", "--samples", "x").err.startswith(
        "clcurv: error: invalid value for '--samples'"
    )
    monkeypatch.setenv("CLCURV_SAMPLES", "many")
    ran = program("kappa", "model.pt")
    assert ran.code == 2
    assert "error: CLCURV_SAMPLES: invalid value" in ran.err
    monkeypatch.delenv("CLCURV_SAMPLES")
    (tmp_path / "pyproject.toml").write_text("[tool.clcurv]\nsamples = 'many'\n")
    ran = program("kappa", "model.pt")
    assert ran.code == 2
    assert "error: pyproject.toml: invalid value" in ran.err
