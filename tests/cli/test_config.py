"""Options win over CLCURV_*, which wins over [tool.clcurv]; unknown keys are named."""

from pathlib import Path
from typing import Any

import pytest

from clcurv.cli.config import load_defaults, nearest_pyproject
from clcurv.errors import UsageError

COMMANDS = {
    "kappa": {"samples": "samples", "lambda": "lambda_", "trust-code": "trust_code"},
    "show": {"format": "output_format"},
}


def _write(folder: Path, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(text)


def test_the_command_line_wins_over_the_environment_over_the_file(
    program: Any, pipeline: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(
        tmp_path,
        "[tool.clcurv]\nsamples = 11\nseed = 12\n[tool.clcurv.kappa]\ntol = 0.05\n"
        "samples = 13\nfail-on = []\nmax_steps = 14\ncross-check = true\n",
    )
    monkeypatch.setenv("CLCURV_SEED", "21")
    monkeypatch.setenv("CLCURV_MAX_STEPS", "22")
    monkeypatch.setenv("CLCURV_CROSS_CHECK", "0")
    ran = program("kappa", "model.pt", "--max-steps", "31")
    assert ran.code == 0, ran.err
    options = pipeline.calls[0][1]
    assert options["samples"] == 13  # the command's own table
    assert options["tol"] == 0.05
    assert options["seed"] == 21
    assert options["max_steps"] == 31
    assert options["cross_check"] is False
    assert "defaults from" in ran.err


def test_the_nearest_file_counts_even_without_our_table(tmp_path: Path) -> None:
    _write(tmp_path, "[tool.clcurv]\nsamples = 1\n")
    _write(tmp_path / "inner", "[project]\nname = 'x'\n")
    inside = tmp_path / "inner" / "deeper"
    inside.mkdir()
    assert nearest_pyproject(inside) == tmp_path / "inner" / "pyproject.toml"
    assert load_defaults(inside, COMMANDS).values == {}
    assert load_defaults(tmp_path, COMMANDS).values == {"kappa": {"samples": 1}, "show": {}}


def test_flags_are_the_keys_not_parameter_names(tmp_path: Path) -> None:
    _write(tmp_path, "[tool.clcurv]\nformat = 'json'\n[tool.clcurv.kappa]\nlambda = 2.0\n")
    values = load_defaults(tmp_path, COMMANDS).values
    assert values == {"kappa": {"lambda_": 2.0}, "show": {"output_format": "json"}}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tool.clcurv]\nsampels = 3\n", "sampels"),
        ("[tool.clcurv.show]\nsamples = 3\n", "samples"),
        ("[tool.clcurv]\ntrust-code = true\n", "cannot be set in a file"),
        ("[tool]\nclcurv = 3\n", "must be a table"),
        ("[tool.clcurv]\nkappa = 3\n", "must be a table"),
        ("[tool.clcurv\n", "cannot be read"),
        ("tool = 3\n", "cannot be read"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, said: str) -> None:
    _write(tmp_path, text)
    with pytest.raises(UsageError, match=said):
        load_defaults(tmp_path, COMMANDS)


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="cannot be read"):
        load_defaults(tmp_path, COMMANDS)


def test_a_mistake_stops_the_run_but_not_its_help(
    program: Any, pipeline: Any, tmp_path: Path
) -> None:
    _write(tmp_path, "[tool.clcurv.kappa]\nsampels = 3\n")
    ran = program("kappa", "model.pt")
    assert (ran.code, ran.out, pipeline.calls) == (2, "", [])
    assert "sampels" in ran.err
    assert "did you mean samples?" in ran.err
    assert program("kappa", "--help").code == 0


def test_a_value_of_the_wrong_type(program: Any, pipeline: Any, tmp_path: Path) -> None:
    _write(tmp_path, "[tool.clcurv]\nsamples = 'many'\n")
    ran = program("kappa", "model.pt")
    assert ran.code == 2
    assert "--samples" in ran.err
    assert pipeline.calls == []


@pytest.mark.parametrize("key", ["head", "schedule", "lambda"])
def test_what_differs_between_commands_is_set_for_one(tmp_path: Path, key: str) -> None:
    _write(tmp_path, f"[tool.clcurv]\n{key} = 'x'\n")
    flags = {"kappa": {key: "a"}, "relimp": {key: "b"}}
    with pytest.raises(UsageError, match=f"{key} means something else"):
        load_defaults(tmp_path, flags)
    _write(tmp_path, f"[tool.clcurv.kappa]\n{key} = 'x'\n")
    assert load_defaults(tmp_path, flags).values == {"kappa": {"a": "x"}, "relimp": {}}


def test_their_variables_carry_the_commands_name(
    program: Any, pipeline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLCURV_LAMBDA", "7")
    monkeypatch.setenv("CLCURV_RELIMP_LAMBDA", "8")
    monkeypatch.setenv("CLCURV_KAPPA_SCHEDULE", "power")
    assert program("kappa", "model.pt").code == 0
    options = pipeline.calls[0][1]
    assert options["lambda_"] is None
    assert options["schedule"] == "power"
