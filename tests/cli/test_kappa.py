"""Flags reach the library; the report reaches stdout, files and exit code in that order."""

import json
import os
import signal
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from clcurv.cli.options import parse_bytes
from clcurv.errors import CorruptFileError, NumericalError, ResourceError, UsageError
from clcurv.pipeline.options import KappaOptions
from clcurv.report.kappa_document import KappaDocument


def test_defaults_reach_the_library(program: Any, pipeline: Any) -> None:
    ran = program("kappa", "model.pt")
    assert ran.code == 0, ran.err
    checkpoint, options = pipeline.calls[0]
    assert checkpoint == "model.pt"
    assert callable(options.pop("progress"))
    assert options == {f.name: f.default for f in fields(KappaOptions)}


def test_every_flag_reaches_the_library(program: Any, pipeline: Any) -> None:
    ran = program(
        "kappa", "m", "--data", "d", "--new-data", "n", "--split", "s", "--image-column", "i",
        "--text-column", "t", "--label-column", "l", "--samples", "9", "--batch-size", "3",
        "--skip-bad", "--arch", "a", "--key", "k", "--match-by-order", "--trust-code",
        "--head", "linear-probe", "--loss", "mse", "--layers", r"blocks\.\d+", "--operator", "ggn",
        "--device", "cpu", "--dtype", "float64", "--tol", "1e-3", "--max-steps", "7", "--seed", "5",
        "--memory", "2GB", "--no-lambda-min", "--cross-check", "--include-head",
        "--schedule", "literal", "--lambda", "3.5", "--force",
        "--batch-fn", "b.py:f", "--label-map", "m.json", "--max-length", "6", "--max-bytes", "1GB",
        "--online", "--unsafe-pickle",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    options = pipeline.calls[0][1]
    del options["progress"]
    assert options == {
        "data": "d", "new_data": "n", "split": "s", "image_column": "i", "text_column": "t",
        "label_column": "l", "samples": 9, "batch_size": 3, "skip_bad": True, "arch": "a",
        "key": "k", "match_by_order": True, "trust_code": True, "head": "linear-probe",
        "loss": "mse", "layers": r"blocks\.\d+", "operator": "ggn", "device": "cpu",
        "dtype": "float64", "tol": 1e-3, "max_steps": 7, "seed": 5, "memory": 2 * 10**9,
        "lambda_min": False,
        "cross_check": True, "include_head": True, "schedule": "literal", "lambda_": 3.5,
        "force": True,
        "batch_fn": "b.py:f", "label_map": Path("m.json"), "max_length": 6, "max_bytes": 10**9,
        "online": True, "unsafe_pickle": True,
    }  # fmt: skip


def test_piped_stdout_is_one_json_document(program: Any, pipeline: Any) -> None:
    ran = program("kappa", "model.pt")
    report = json.loads(ran.out)
    assert report["schema"] == "clcurv.schedule"
    assert report["kappa"]["value"] == 40.0
    assert report["command"].startswith("clcurv")
    assert "measuring" in ran.err


@pytest.mark.parametrize(
    ("name", "mark"), [("table", "λ"), ("markdown", "| layer |"), ("github", "::notice")]
)
def test_other_formats(program: Any, pipeline: Any, name: str, mark: str) -> None:
    ran = program("kappa", "model.pt", "--format", name)
    assert ran.code == 0
    assert mark in ran.out
    assert "\x1b" not in ran.out  # neither colours in a pipe nor the hostile layer name


def test_files_are_written(program: Any, pipeline: Any, tmp_path: Path) -> None:
    ran = program("kappa", "model.pt", "-o", "a.json", "--plot", "a.svg", "--format", "table")
    assert ran.code == 0, ran.err
    assert json.loads((tmp_path / "a.json").read_text())["kappa"]["value"] == 40.0
    assert (tmp_path / "a.svg").read_text().lstrip().startswith("<?xml")
    assert {p.name for p in tmp_path.iterdir()} == {"a.json", "a.svg"}


@pytest.mark.parametrize(
    ("gates", "code", "outcome"),
    [
        (["--fail-on", "kappa>200"], 0, "pass"),
        (["--fail-on", "kappa>20"], 10, "fail"),
        (["--fail-on", "kappa>40"], 11, "inconclusive"),
        (["--fail-on", "kappa>40", "--inconclusive", "pass"], 0, "inconclusive"),
        (["--fail-on", "kappa>200", "--fail-on", "kappa>20"], 10, "fail"),
        (["--fail-on", "kappa>20", "--exit-zero"], 0, "fail"),
    ],
)
def test_the_report_with_its_verdict_is_written_whatever_the_exit_code(
    program: Any, pipeline: Any, tmp_path: Path, gates: list[str], code: int, outcome: str
) -> None:
    ran = program("kappa", "model.pt", "-o", "a.json", *gates)
    assert ran.code == code, ran.err
    for text in ((tmp_path / "a.json").read_text(), ran.out):
        assert outcome in {g["outcome"] for g in json.loads(text)["verdict"]["gates"]}
    assert outcome in ran.err


def test_generated_data_decides_nothing_unless_allowed(program: Any, pipeline: Any) -> None:
    data = pipeline.document.data.model_copy(update={"source": "generated"})
    pipeline.document = pipeline.document.model_copy(update={"data": data})
    assert program("kappa", "model.pt", "--fail-on", "kappa>200").code == 11
    assert program("kappa", "model.pt", "--fail-on", "kappa>200", "--allow-generated").code == 0
    assert program("kappa", "model.pt").code == 0  # no gate, no verdict


def test_a_regression_against_a_baseline(
    program: Any, pipeline: Any, document: KappaDocument, tmp_path: Path
) -> None:
    from clcurv.report.document import write_json

    low = document.kappa.model_copy(update={"value": 20.0, "low": 19.5, "high": 20.5})
    write_json(document.model_copy(update={"kappa": low}), tmp_path / "old.json")
    arguments = ("kappa", "m", "--baseline", "old.json", "--fail-on-regression")
    assert program(*arguments, "10%").code == 10
    assert program(*arguments, "300%").code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["-o", "missing/a.json"], 2, "its folder does not exist"),
        (["-o", "."], 2, "is a folder"),
        (["-o", "-"], 2, "is not a file"),
        (["-o", "model.pt"], 2, "would overwrite the input"),
        (["--data", "d.npz", "-o", "d.npz"], 2, "would overwrite the input"),
        (["--new-data", "new", "-o", "new"], 2, "would overwrite the input"),
        (["--data", "d", "--label-map", "l.json", "-o", "l.json"], 2, "would overwrite the input"),
        (["--plot", "a.txt"], 2, "suffix"),
        (["--plot", "a"], 2, "suffix"),
        (["-o", "a.svg", "--plot", "a.svg"], 2, "both name"),
        (["-o", "/proc/a.json"], 5, "cannot write there"),
        (["--json", "--format", "table"], 2, "contradicts"),
        (["-q", "-v"], 2, "contradicts"),
        (["--fail-on", "kappa is high"], 2, "kappa is high"),
        (["--baseline", "old.json"], 2, "--baseline decides nothing alone"),
        (["--fail-on-regression", "10%"], 2, "needs an earlier report"),
        (["--baseline", "old.json", "--fail-on-regression", "10%"], 3, "old.json"),
        (["--tol", "0"], 2, "between 0 and 1"),
        (["--tol", "nan"], 2, "between 0 and 1"),
        (["--lambda", "-1"], 2, "must be positive"),
        (["--memory", "lots"], 2, "not a size"),
        (["--operator", "jacobian"], 2, "jacobian"),
        (["--samples", "0"], 2, "--samples"),
        (["--sampels", "3"], 2, "did you mean --samples"),
        (["extra"], 2, "extra"),
    ],
)
def test_mistakes_are_refused_before_the_work(
    program: Any, pipeline: Any, tmp_path: Path, arguments: list[str], code: int, said: str
) -> None:
    before = set(tmp_path.iterdir())
    ran = program("kappa", "model.pt", *arguments)
    assert (ran.code, ran.out, pipeline.calls) == (code, "", [])
    assert said in ran.err
    first, *hint = ran.err.splitlines()
    assert first.startswith("clcurv: error: ")
    assert len(hint) <= 1
    assert all(line.startswith("hint: ") for line in hint)
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("u", hint="h"), 2),
        (CorruptFileError("c\nd \x1b[31m"), 3),
        (NumericalError("n"), 4),
        (ResourceError("r"), 5),
        (MemoryError(), 5),
        (ZeroDivisionError("z"), 1),
    ],
)
def test_library_errors_are_one_line_each(
    program: Any, pipeline: Any, tmp_path: Path, error: Exception, code: int
) -> None:
    def fail() -> None:
        raise error

    pipeline.action = fail
    ran = program("kappa", "model.pt", "-q", "-o", "a.json")
    assert (ran.code, ran.out) == (code, "")
    assert ran.err.startswith("clcurv: error: ")
    assert "Traceback" not in ran.err
    assert "\x1b" not in ran.err
    assert ran.err.count("\n") <= 2
    assert not (tmp_path / "a.json").exists()
    assert "Traceback" in program("kappa", "model.pt", "--debug").err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_the_partial_report(
    program: Any, pipeline: Any, tmp_path: Path, number: int, code: int
) -> None:
    class Interrupted(KeyboardInterrupt):
        document = pipeline.document

    def stop() -> None:
        try:
            os.kill(os.getpid(), number)
            signal.pause()
        except KeyboardInterrupt as interrupt:
            raise Interrupted from interrupt

    before = signal.getsignal(number)
    pipeline.action = stop
    ran = program("kappa", "model.pt", "-o", "a.json", "--fail-on", "kappa>1")
    assert ran.code == code
    assert "interrupted" in ran.err
    saved = json.loads((tmp_path / "a.json").read_text())
    assert saved["verdict"] is None
    assert json.loads(ran.out) == saved
    assert signal.getsignal(number) is before


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_after_the_measurement_loses_nothing(
    program: Any,
    pipeline: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    code: int,
) -> None:
    from clcurv.report import document

    real = document.write_json

    def slow(*arguments: Any) -> None:
        os.kill(os.getpid(), number)
        real(*arguments)

    monkeypatch.setattr(document, "write_json", slow)
    ran = program("kappa", "model.pt", "-o", "a.json", "--plot", "a.svg")
    assert ran.code == code
    assert "interrupted after the measurement" in ran.err
    assert json.loads((tmp_path / "a.json").read_text()) == json.loads(ran.out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "a.svg"]


def test_a_closed_terminal_leaves_the_partial_report(
    program: Any, pipeline: Any, tmp_path: Path
) -> None:
    class Interrupted(KeyboardInterrupt):
        document = pipeline.document

    def stop() -> None:
        try:
            signal.raise_signal(signal.SIGHUP)
        except KeyboardInterrupt as interrupt:
            raise Interrupted from interrupt

    pipeline.action = stop
    assert program("kappa", "model.pt", "-o", "a.json").code == 129
    assert (tmp_path / "a.json").exists()


def test_a_signal_before_there_is_anything_to_report(
    program: Any, pipeline: Any, tmp_path: Path
) -> None:
    pipeline.action = lambda: signal.raise_signal(signal.SIGTERM)
    ran = program("kappa", "model.pt", "-o", "a.json")
    assert (ran.code, ran.out) == (143, "")
    assert list(tmp_path.iterdir()) == []


def test_library_chatter_is_shown_only_when_asked_for(program: Any, pipeline: Any) -> None:
    def talk() -> None:
        import logging
        import sys
        import warnings

        print("printed")
        print("to stderr", file=sys.stderr)
        warnings.warn("warned", stacklevel=1)
        logging.getLogger("library").warning("logged")

    pipeline.action = talk
    quiet = program("kappa", "model.pt")
    json.loads(quiet.out)
    verbose = program("kappa", "model.pt", "-v")
    json.loads(verbose.out)
    for word in ("printed", "to stderr", "warned"):
        assert word not in quiet.err
        assert word in verbose.err


def test_quiet_says_nothing_when_all_is_well(program: Any, pipeline: Any) -> None:
    assert program("kappa", "model.pt", "-q", "-o", "a.json").err == ""


def test_warnings_of_the_report_reach_stderr_beside_json(program: Any, pipeline: Any) -> None:
    pipeline.document = pipeline.document.model_copy(update={"warnings": ("near chance",)})
    assert "clcurv: warning: near chance" in program("kappa", "model.pt").err


def test_the_result_is_shown_even_if_a_file_cannot_be_written(
    program: Any, pipeline: Any, tmp_path: Path
) -> None:
    (tmp_path / "sub").mkdir()
    pipeline.action = lambda: (tmp_path / "sub").rmdir()
    ran = program("kappa", "model.pt", "-o", "sub/a.json")
    assert ran.code == 2
    assert json.loads(ran.out)["kappa"]["value"] == 40.0


def test_a_dry_run_shows_the_plan_and_writes_nothing(
    program: Any, pipeline: Any, tmp_path: Path
) -> None:
    arguments = ("kappa", "m.pt", "--dry-run", "--samples", "9", "-o", "a.json")
    ran = program(*arguments, "--format", "table")
    assert ran.code == 0, ran.err
    for shown in ("timm:resnet18", "11,000,000", "1.5 GB", "stem[/red]", "fc (head)", r"\x1b["):
        assert shown in ran.out
    assert "None" not in ran.out
    plan = json.loads(program(*arguments).out)
    assert plan["bytes_at_peak"] == 1_500_000_000
    assert plan["layers"][1] == {"name": "fc", "numel": 5000, "is_head": True}
    assert list(tmp_path.iterdir()) == []
    options = pipeline.calls[0][1]
    assert options["samples"] == 9
    assert "dry_run" not in options


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("4GB", 4 * 10**9),
        ("4 gb", 4 * 10**9),
        ("1.5k", 1500),
        ("2MiB", 2 * 2**20),
        ("2e9", 2 * 10**9),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "0", "4 XB", "nan", "1e999", "1ib"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(UsageError):
        parse_bytes(text)
