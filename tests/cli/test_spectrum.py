"""`clcurv spectrum`: flags reach the library; report, figure, coefficients and verdict come out."""

import json
import os
import signal
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from spectrum_results import failed_task, make_document, make_l2er_document, make_task

from clcurv.errors import DataError
from clcurv.pipeline.options import SpectrumOptions
from clcurv.report.document import write_json

COMMAND = ("spectrum", "t0.pt", "t1.pt", "--stream", "stream.yaml")
TRAINED = (*COMMAND, "--lr", "0.01", "--steps", "2000")


@pytest.fixture(autouse=True)
def _reports(pipeline: Any) -> None:
    pipeline.document, pipeline.l2er = make_document(), make_l2er_document()


def test_defaults_reach_the_library_and_are_its_own(program: Any, pipeline: Any) -> None:
    ran = program(*COMMAND)
    assert ran.code == 0, ran.err
    checkpoints, options = pipeline.calls[0]
    assert checkpoints == ["t0.pt", "t1.pt"]
    assert callable(options.pop("progress"))
    assert callable(options.pop("note"))
    assert options.pop("stream") == "stream.yaml"
    assert options == {f.name: f.default for f in fields(SpectrumOptions) if f.name != "stream"}


def test_every_flag_reaches_the_library(program: Any, pipeline: Any) -> None:
    ran = program(
        "spectrum", "m", "--stream", "permuted:10", "--data", "d", "--split", "s",
        "--image-column", "i", "--text-column", "t", "--label-column", "l", "--samples", "9",
        "--batch-size", "3", "--skip-bad", "--arch", "a", "--key", "k", "--match-by-order",
        "--trust-code", "--head", "fresh", "--loss", "mse", "--lr", "0.1", "--steps", "70",
        "--momentum", "0.9", "--gamma", "0.05", "--eps", "1e-3", "--reference", "fresh",
        "--layers", "body", "--operator", "ggn", "--method", "gram", "--probes", "4",
        "--lanczos-steps", "30", "--paper-smoothing", "--device", "cpu", "--dtype", "float64",
        "--seed", "5", "--memory", "2GB", "--resume", "state",
        "--batch-fn", "b.py:f", "--label-map", "m.json", "--max-length", "6", "--max-bytes", "1GB",
        "--online", "--unsafe-pickle",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    options = pipeline.calls[0][1]
    del options["progress"], options["note"]
    assert options == {
        "stream": "permuted:10", "data": "d", "split": "s", "image_column": "i",
        "text_column": "t", "label_column": "l", "samples": 9, "batch_size": 3, "skip_bad": True,
        "arch": "a", "key": "k", "match_by_order": True, "trust_code": True, "head": "fresh",
        "loss": "mse", "lr": 0.1, "steps": 70, "momentum": 0.9, "gamma": 0.05, "eps": 1e-3,
        "reference": "fresh", "layers": "body", "operator": "ggn", "method": "gram", "probes": 4,
        "lanczos_steps": 30, "paper_smoothing": True, "device": "cpu", "dtype": "float64",
        "seed": 5, "memory": 2 * 10**9, "resume": "state",
        "batch_fn": "b.py:f", "label_map": Path("m.json"), "max_length": 6, "max_bytes": 10**9,
        "online": True, "unsafe_pickle": True,
    }  # fmt: skip


def test_options_from_the_environment_and_the_nearest_pyproject(
    program: Any, pipeline: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text(
        "[tool.clcurv]\nprobes = 3\nsamples = 7\n[tool.clcurv.spectrum]\nstream = 'file.yaml'\n"
        "lanczos_steps = 12\ngamma = 0.2\n"
    )
    monkeypatch.setenv("CLCURV_GAMMA", "0.3")
    monkeypatch.setenv("CLCURV_LANCZOS_STEPS", "13")
    assert program("spectrum", "m.pt", "--lanczos-steps", "14").code == 0
    options = pipeline.calls[0][1]
    found = {k: options[k] for k in ("stream", "probes", "samples", "gamma", "lanczos_steps")}
    assert found == {
        "stream": "file.yaml", "probes": 3, "samples": 7, "gamma": 0.3, "lanczos_steps": 14,
    }  # fmt: skip


def test_piped_stdout_is_one_json_document(program: Any, pipeline: Any) -> None:
    ran = program(*COMMAND)
    report = json.loads(ran.out)
    assert report["schema"] == "clcurv.spectrum"
    assert report["command"].startswith("clcurv")
    assert "measuring" in ran.err


@pytest.mark.parametrize(
    ("name", "mark"), [("table", "ε-rank"), ("markdown", "| task |"), ("github", "::notice")]
)
def test_other_formats(program: Any, pipeline: Any, name: str, mark: str) -> None:
    pipeline.document = make_document(tasks=[make_task(1, name="\x1b[31mevil[/red]")])
    ran = program(*COMMAND, "--format", name)
    assert ran.code == 0, ran.err
    assert mark in ran.out
    assert "\x1b" not in ran.out


def test_report_figure_and_coefficients_are_written(
    program: Any, pipeline: Any, tmp_path: Path
) -> None:
    ran = program(*COMMAND, "-o", "a.json", "--plot", "a.svg", "--l2er", "l.json")
    assert ran.code == 0, ran.err
    assert json.loads((tmp_path / "a.json").read_text())["schema"] == "clcurv.spectrum"
    assert (tmp_path / "a.svg").read_text().lstrip().startswith("<?xml")
    l2er = json.loads((tmp_path / "l.json").read_text())
    assert (l2er["schema"], l2er["er_every"]) == ("clcurv.l2er", 10)
    assert l2er["command"].startswith("clcurv")
    assert {p.name for p in tmp_path.iterdir()} == {"a.json", "a.svg", "l.json"}
    assert "L2-ER coefficients written to l.json" in ran.err


@pytest.mark.parametrize(
    ("gates", "code"),
    [
        (["verdict==collapsed"], 10),
        (["verdict==healthy"], 0),
        (["tasks[-1].eps_rank.fast.fraction<0.01"], 11),
        (["tasks[-1].eps_rank.fast.fraction<0.001"], 0),
        (["tasks[-1].eps_rank.fast.fraction<0.02", "verdict==healthy"], 10),
    ],
)
def test_gates(program: Any, pipeline: Any, tmp_path: Path, gates: list[str], code: int) -> None:
    words = [word for gate in gates for word in ("--fail-on", gate)]
    ran = program(*TRAINED, "-o", "a.json", *words)
    assert ran.code == code, ran.err
    assert json.loads((tmp_path / "a.json").read_text())["gates"]["exit_code"] == code
    assert program(*TRAINED, *words, "--exit-zero").code == 0


def test_a_regression_against_a_baseline(program: Any, pipeline: Any, tmp_path: Path) -> None:
    write_json(make_document((0.05, 0.05, 0.05)), tmp_path / "old.json")
    arguments = (*COMMAND, "--baseline", "old.json", "--fail-on-regression")
    assert program(*arguments, "10%").code == 10
    assert program(*arguments, "95%").code == 0
    write_json(make_l2er_document(), tmp_path / "other.json")
    assert program(*COMMAND, "--baseline", "other.json", "--fail-on-regression", "1%").code == 3


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--l2er", "missing/a.json"], 2, "its folder does not exist"),
        (["--l2er", "a.json", "-o", "a.json"], 2, "both name"),
        (["--l2er", "t1.pt"], 2, "would overwrite the input"),
        (["-o", "stream.yaml"], 2, "would overwrite the input"),
        (["--label-map", "l.json", "-o", "l.json"], 2, "would overwrite the input"),
        (["-o", "."], 2, "is a folder"),
        (["--plot", "a.txt"], 2, "suffix"),
        (["--lr", "0.1"], 2, "--lr alone"),
        (["--steps", "10"], 2, "--steps alone"),
        (["--lr", "-1", "--steps", "3"], 2, "must be positive"),
        (["--lr", "1", "--steps", "9", "--momentum", "1"], 2, "below 1"),
        (["--lr", "1", "--steps", "9", "--gamma", "1.5"], 2, "between 0 and 1"),
        (["--eps", "nan"], 2, "between 0 and 1"),
        (["--method", "svd"], 2, "svd"),
        (["--head", "linear-probe"], 2, "linear-probe"),
        (["--probes", "0"], 2, "--probes"),
        (["--lanczos-steps", "1"], 2, "--lanczos-steps"),
        (["--fail-on", "tasks[-1].eps_rank.fast.fraction<1"], 2, "which modes are fast"),
        (["--fail-on", "tasks[-1].fast_modes.share<1"], 2, "which modes are fast"),
        (["--fail-on", "kappa>2"], 2, "kappa"),
        (["--fail-on", "verdict is bad"], 2, "verdict is bad"),
        (["--baseline", "old.json", "--fail-on-regression", "10%"], 3, "old.json"),
        (["--layers", "block"], 2, "regular expression"),
        (["--layers", "a("], 2, "regular expression"),
        (["--allow-generated"], 2, "--allow-generated"),
    ],
)
def test_mistakes_are_refused_before_the_work(
    program: Any, pipeline: Any, tmp_path: Path, arguments: list[str], code: int, said: str
) -> None:
    ran = program(*COMMAND, *arguments)
    assert (ran.code, ran.out, pipeline.calls) == (code, "", [])
    assert said in ran.err
    first, *hint = ran.err.splitlines()
    assert first.startswith("clcurv: error: ")
    assert all(line.startswith("hint: ") for line in hint)
    assert list(tmp_path.iterdir()) == []


def test_a_stream_is_needed(program: Any, pipeline: Any) -> None:
    ran = program("spectrum", "m.pt")
    assert ran.code == 2
    assert "--stream" in ran.err


def test_library_errors_leave_nothing(program: Any, pipeline: Any, tmp_path: Path) -> None:
    def fail() -> None:
        raise DataError("task 3 of the stream has no data", hint="clcurv stream resolve S")

    pipeline.action = fail
    ran = program(*COMMAND, "-q", "-o", "a.json", "--l2er", "l.json")
    assert (ran.code, ran.out) == (3, "")
    assert ran.err.splitlines()[0] == "clcurv: error: task 3 of the stream has no data"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_the_finished_tasks(
    program: Any, pipeline: Any, tmp_path: Path, number: int, code: int
) -> None:
    partial = make_document((0.05,), document={"complete": False, "advice": None})

    class Interrupted(KeyboardInterrupt):
        document = partial

    def stop() -> None:
        try:
            os.kill(os.getpid(), number)
            signal.pause()
        except KeyboardInterrupt as interrupt:
            raise Interrupted from interrupt

    pipeline.action = stop
    ran = program(*TRAINED, "-o", "a.json", "--l2er", "l.json", "--fail-on", "verdict==collapsed")
    assert ran.code == code
    saved = json.loads((tmp_path / "a.json").read_text())
    assert (saved["complete"], len(saved["tasks"]), saved["gates"]) == (False, 1, None)
    assert not (tmp_path / "l.json").exists()  # no advice from half a stream


def test_a_dry_run_shows_which_checkpoint_meets_which_task(
    program: Any, pipeline: Any, tmp_path: Path
) -> None:
    ran = program(*COMMAND, "--dry-run", "-o", "a.json", "--format", "table")
    assert ran.code == 0, ran.err
    for shown in ("one\\x1b[31m", "two[/red]", "task-1.pt", "2.0 MB", "2: 256, 3: 256", "2, 3"):
        assert shown in ran.out
    plan = json.loads(program(*COMMAND, "--dry-run").out)
    assert [t["checkpoint"] for t in plan["tasks"]] == ["task-0.pt", "task-1.pt"]
    assert list(tmp_path.iterdir()) == []


def test_a_failed_task_is_told(program: Any, pipeline: Any) -> None:
    pipeline.document = make_document(tasks=[make_task(1), failed_task(2)])
    ran = program(*COMMAND)
    assert ran.code == 0
    assert "clcurv: warning: task 2 (task-2) failed: NaN in batch 3" in ran.err


def test_a_saved_report_is_shown_and_judged_again(
    program: Any, pipeline: Any, tmp_path: Path
) -> None:
    write_json(make_document(), tmp_path / "s.json")
    ran = program("show", "s.json")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == (tmp_path / "s.json").read_text()
    assert program("show", "s.json", "--fail-on", "verdict==collapsed").code == 10
    assert "| task |" in program("show", "s.json", "--format", "markdown").out
    assert program("show", "s.json", "--plot", "s.pdf").code == 0
    assert (tmp_path / "s.pdf").read_bytes().startswith(b"%PDF")
    assert program("show", "s.json", "--fail-on", "kappa>2").code == 2


@pytest.mark.parametrize(
    ("name", "schema"), [("spectrum", "clcurv.spectrum"), ("clcurv.l2er", "clcurv.l2er")]
)
def test_schemas(program: Any, name: str, schema: str) -> None:
    ran = program("schema", name)
    assert json.loads(ran.out)["properties"]["schema"]["const"] == schema
