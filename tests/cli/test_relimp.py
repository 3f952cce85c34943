"""`clcurv relimp`: flags reach the library; report, figure, side files and verdict come out."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from relimp_results import make_document, make_importance, make_layer, make_search

import clcurv
from clcurv.errors import NumericalError, ResourceError
from clcurv.pipeline.options import RelimpOptions
from clcurv.report.document import write_json

COMMAND = ("relimp", "m.pt", "--past", "old", "--current", "new")
SEARCH = (*COMMAND, "--search")


@dataclass(frozen=True)
class FakePlan:
    arch: str = "timm:vit_tiny"
    bytes_importance: int = 2_000_000
    notes: tuple[str, ...] = ("2 classes are new to the \x1b[31mhead",)


@pytest.fixture(autouse=True)
def library(pipeline: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`clcurv.pipeline` with a `relimp` that returns a made-up report."""
    pipeline.document = make_document()
    pipeline.trials, pipeline.fail_to_save = (), False

    def relimp(checkpoint: str, *, on_past: Any, on_trial: Any, **options: Any) -> SimpleNamespace:
        pipeline.calls.append((checkpoint, options))
        options["progress"]("look-ahead", 1, 2)
        on_past(make_importance([make_layer()]))
        for trial in pipeline.trials:
            on_trial(trial)
        if pipeline.action is not None:
            pipeline.action()

        def save(path: Path) -> None:
            if pipeline.fail_to_save:
                raise ResourceError(f"cannot write '{path}': No space left on device")
            path.write_bytes(b"multipliers")

        return SimpleNamespace(document=pipeline.document, save_multipliers=save)

    def plan_relimp(checkpoint: str, **options: Any) -> FakePlan:
        pipeline.calls.append((checkpoint, options))
        return FakePlan()

    module = sys.modules["clcurv.pipeline"]
    # The options are the real ones.
    monkeypatch.setattr(
        module, "__path__", [str(Path(clcurv.__file__).parent / "pipeline")], raising=False
    )
    module.relimp, module.plan_relimp = relimp, plan_relimp  # type: ignore[attr-defined]
    return pipeline


def test_defaults_reach_the_library_and_are_its_own(program: Any, library: Any) -> None:
    ran = program(*COMMAND)
    assert ran.code == 0, ran.err
    checkpoint, options = library.calls[0]
    assert checkpoint == "m.pt"
    assert callable(options.pop("progress"))
    assert (options.pop("past"), options.pop("current")) == ("old", "new")
    own = {f.name: f.default for f in fields(RelimpOptions) if f.name not in ("past", "current")}
    assert options == own


def test_every_flag_reaches_the_library(program: Any, library: Any, tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text("epochs: 7\n")
    ran = program(
        *COMMAND, "--past-importance", "i.safetensors", "--split", "s", "--image-column", "i",
        "--text-column", "t", "--label-column", "l", "--samples", "9", "--samples-may-differ",
        "--batch-size", "3", "--skip-bad", "--arch", "a", "--key", "k", "--match-by-order",
        "--trust-code", "--head", "linear-probe", "--loss", "mse", "--estimator", "fisher",
        "--compat", "per-sample", "--accumulate", "max", "--tau", "fixed", "--layers", "module",
        "--device", "cpu", "--dtype", "float64", "--seed", "5", "--memory", "2GB",
        "--training-config", "train.yaml", "--optimizer", "sgd", "--lr", "0.1", "--epochs", "4",
        "--train-batch-size", "8", "--weight-decay", "0.01", "--momentum", "0.5", "--patience",
        "0", "--validation", "0.3", "--grad-clip", "1", "--multiplier-form", "code",
        "--lambda", "3",
        "--lambda-up", "4", "--lambda-down", "0.5", "--schedule", "k.json",
        "--batch-fn", "b.py:f", "--label-map", "m.json",
        "--max-length", "6", "--max-bytes", "1GB", "--online", "--unsafe-pickle",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    options = library.calls[0][1]
    del options["progress"]
    assert options == {
        "past": "old", "current": "new", "past_importance": "i.safetensors", "split": "s",
        "image_column": "i", "text_column": "t", "label_column": "l", "samples": 9,
        "samples_may_differ": True, "batch_size": 3, "skip_bad": True, "arch": "a", "key": "k",
        "match_by_order": True, "trust_code": True, "head": "linear-probe", "loss": "mse",
        "estimator": "fisher", "compat": "per-sample", "accumulate": "max", "tau": "fixed",
        "layers": "module", "device": "cpu", "dtype": "float64", "seed": 5, "memory": 2 * 10**9,
        "training_config": "train.yaml", "optimizer": "sgd", "lr": 0.1, "epochs": 4,
        "train_batch_size": 8, "weight_decay": 0.01, "momentum": 0.5, "patience": 0,
        "validation": 0.3, "grad_clip": 1.0, "search": False, "state": None, "allowed_drop": 0.1,
        "max_trials": 10, "lambda_decay": 0.9, "batch_fn": "b.py:f", "multiplier_form": "code",
        "lambda_": 3.0, "lambda_up": 4.0, "lambda_down": 0.5, "schedule": "k.json",
        "label_map": Path("m.json"), "max_length": 6, "max_bytes": 10**9, "online": True,
        "unsafe_pickle": True,
    }  # fmt: skip


def test_flags_of_the_search_reach_the_library(program: Any, library: Any) -> None:
    ran = program(
        *COMMAND, "--search", "--state", "s.json", "--allowed-drop", "0.2", "--max-trials", "4",
        "--lambda-decay", "0.5",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    options = library.calls[0][1]
    found = [options[k] for k in ("search", "state", "allowed_drop", "max_trials", "lambda_decay")]
    assert found == [True, "s.json", 0.2, 4, 0.5]


def test_options_from_the_environment_and_the_nearest_pyproject(
    program: Any, library: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text(
        "[tool.clcurv]\nsamples = 7\n[tool.clcurv.relimp]\nepochs = 3\nestimator = 'fisher'\n"
    )
    monkeypatch.setenv("CLCURV_EPOCHS", "4")
    assert program(*COMMAND, "--lr", "0.5").code == 0
    options = library.calls[0][1]
    found = {k: options[k] for k in ("samples", "epochs", "estimator", "lr")}
    assert found == {"samples": 7, "epochs": 4, "estimator": "fisher", "lr": 0.5}


def test_piped_stdout_is_one_json_document(program: Any) -> None:
    ran = program(*COMMAND)
    report = json.loads(ran.out)
    assert report["schema"] == "clcurv.relimp"
    assert report["command"].startswith("clcurv")
    assert "look-ahead" in ran.err


@pytest.mark.parametrize(
    ("name", "mark"), [("table", "protected"), ("markdown", "| layer |"), ("github", "::notice")]
)
def test_other_formats(program: Any, library: Any, name: str, mark: str) -> None:
    library.document = make_document([make_layer("\x1b[31mevil[/red]")])
    ran = program(*COMMAND, "--format", name)
    assert ran.code == 0, ran.err
    assert mark in ran.out
    assert "\x1b" not in ran.out


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux only")
def test_a_full_disk_for_the_importance_loses_nothing_else(program: Any, tmp_path: Path) -> None:
    ran = program(
        *COMMAND, "-o", "a.json", "--multipliers", "a.safetensors", "--save-importance", "/dev/full"
    )
    assert ran.code == 5
    assert "error: cannot write '/dev/full': No space left on device" in ran.err
    assert json.loads((tmp_path / "a.json").read_text()) == json.loads(ran.out)
    assert (tmp_path / "a.safetensors").exists()


def test_every_file_is_written(program: Any, tmp_path: Path) -> None:
    ran = program(
        *COMMAND, "-o", "a.json", "--plot", "a.svg", "--multipliers", "a.safetensors",
        "--save-importance", "i.safetensors",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert json.loads((tmp_path / "a.json").read_text())["schema"] == "clcurv.relimp"
    assert (tmp_path / "a.svg").read_text().lstrip().startswith("<?xml")
    assert (tmp_path / "a.safetensors").read_bytes() == b"multipliers"
    assert b"clcurv.importance" in (tmp_path / "i.safetensors").read_bytes()
    assert "multipliers written to a.safetensors" in ran.err
    assert "importance of the past written to i.safetensors" in ran.err


def test_trials_are_told_as_they_are_done(program: Any, library: Any) -> None:
    library.trials = make_search().trials
    ran = program(*SEARCH, "--state", "s.json")
    assert ran.code == 0, ran.err
    lines = [line for line in ran.err.splitlines() if "search: " in line]
    assert len(lines) == 5
    assert lines[1].startswith("clcurv: search: uniform 1: lr 0.0100, λ 7.20: score 0.600")
    assert library.calls[0][1]["state"] == "s.json"


@pytest.mark.parametrize(
    ("gates", "code"),
    [
        (["shares.shared>0.2"], 10),
        (["shares.shared>0.5"], 0),
        (["agreement.rank_correlation>0.5"], 11),
        (["agreement.rank_correlation>0.5", "penalty.lambda>1"], 10),
    ],
)
def test_gates(program: Any, tmp_path: Path, gates: list[str], code: int) -> None:
    words = [word for gate in gates for word in ("--fail-on", gate)]
    ran = program(*COMMAND, "-o", "a.json", *words)
    assert ran.code == code, ran.err
    assert json.loads((tmp_path / "a.json").read_text())["verdict"]["exit_code"] == code
    assert program(*COMMAND, *words, "--exit-zero").code == 0


def test_a_regression_against_a_baseline(program: Any, tmp_path: Path) -> None:
    write_json(make_document([make_layer(shared=0.05)]), tmp_path / "old.json")
    write_json(make_document(), tmp_path / "same.json")
    ran = program(*COMMAND, "--baseline", "same.json", "--fail-on-regression", "10%")
    assert ran.code == 0, ran.err
    assert program(*COMMAND, "--baseline", "old.json", "--fail-on-regression", "10%").code == 11


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--multipliers", "missing/a.st"], 2, "its folder does not exist"),
        (["--multipliers", "a.st", "--save-importance", "a.st"], 2, "both name"),
        (["--multipliers", "m.pt"], 2, "would overwrite the input"),
        (["--save-importance", "i.st", "--past-importance", "i.st"], 2, "would overwrite"),
        (["-o", "new"], 2, "would overwrite the input"),
        (["--label-map", "l.json", "--state", "l.json", "--search"], 2, "would overwrite"),
        (["--plot", "a.txt"], 2, "suffix"),
        (["--lr", "-1"], 2, "lr must be a number above 0"),
        (["--momentum", "1"], 2, "momentum"),
        (["--validation", "1.5"], 2, "validation"),
        (["--epochs", "0"], 2, "--epochs"),
        (["--optimizer", "lion"], 2, "lion"),
        (["--estimator", "ewc"], 2, "ewc"),
        (["--tau", "mean"], 2, "mean"),
        (["--allowed-drop", "1"], 2, "--allowed-drop"),
        (["--state", "s.json"], 2, "--state keeps"),
        (["--search", "--lambda", "3"], 2, "--search finds --lambda itself"),
        (["--search", "--validation", "0"], 2, "held out"),
        (["--training-config", "none.yaml"], 3, "cannot be read"),
        (["--fail-on", "kappa>2"], 2, "kappa"),
        (["--baseline", "old.json", "--fail-on-regression", "10%"], 3, "old.json"),
        (["--allow-generated"], 2, "--allow-generated"),
    ],
)
def test_mistakes_are_refused_before_the_work(
    program: Any, library: Any, tmp_path: Path, arguments: list[str], code: int, said: str
) -> None:
    ran = program(*COMMAND, *arguments)
    assert (ran.code, ran.out, library.calls) == (code, "", [])
    assert said in ran.err
    first, *hint = ran.err.splitlines()
    assert first.startswith("clcurv: error: ")
    assert all(line.startswith("hint: ") for line in hint)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--current", "new"], "what the network knows"),
        (["--past", "old"], "--current is missing"),
        (["--past-importance", "i.st"], "leaves nothing to do"),
        (["--past", "old", "--multipliers", "a.st"], "without the current task"),
        (["--past", "old", "--save-importance", "i.st", "--search"], "--search needs"),
        (["--past", "old", "--save-importance", "i.st", "--fail-on", "shares.shared>0"],
         "needs --current"),
    ],
)  # fmt: skip
def test_both_tasks_are_needed(program: Any, library: Any, arguments: list[str], said: str) -> None:
    ran = program("relimp", "m.pt", *arguments)
    assert (ran.code, library.calls) == (2, [])
    assert said in ran.err


def test_the_past_alone_can_be_kept(program: Any, library: Any, tmp_path: Path) -> None:
    library.document = make_document(past_only=True)
    ran = program("relimp", "m.pt", "--past", "old", "--save-importance", "i.st", "--fail-on",
                  "past.accuracy<0.5")  # fmt: skip
    assert ran.code == 0, ran.err
    assert (tmp_path / "i.st").exists()


def test_a_failed_look_ahead_leaves_the_importance_only(
    program: Any, library: Any, tmp_path: Path
) -> None:
    def fail() -> None:
        raise NumericalError("look-ahead diverged: the loss is nan", hint="a smaller learning rate")

    library.action = fail
    ran = program(
        *COMMAND, "-o", "a.json", "--multipliers", "a.st", "--save-importance", "i.st", "-q"
    )
    assert (ran.code, ran.out) == (4, "")
    assert ran.err.splitlines()[0] == "clcurv: error: look-ahead diverged: the loss is nan"
    assert [p.name for p in tmp_path.iterdir()] == ["i.st"]


def test_a_full_disk_under_the_side_file_still_delivers_the_report(
    program: Any, library: Any, tmp_path: Path
) -> None:
    library.fail_to_save = True
    ran = program(*COMMAND, "-o", "a.json", "--multipliers", "a.st")
    assert ran.code == 5
    assert "No space left" in ran.err
    assert json.loads(ran.out) == json.loads((tmp_path / "a.json").read_text())
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_what_is_known(
    program: Any, library: Any, tmp_path: Path, number: int, code: int
) -> None:
    partial = make_document(past_only=True, document={"complete": False})

    class Interrupted(KeyboardInterrupt):
        document = partial

    def stop() -> None:
        try:
            os.kill(os.getpid(), number)
            signal.pause()
        except KeyboardInterrupt as interrupt:
            raise Interrupted from interrupt

    library.action = stop
    ran = program(*COMMAND, "-o", "a.json", "--multipliers", "a.st", "--fail-on", "penalty>1")
    assert ran.code == 2  # penalty is a section
    ran = program(*COMMAND, "-o", "a.json", "--multipliers", "a.st", "--fail-on", "past.accuracy<1")
    assert ran.code == code
    saved = json.loads((tmp_path / "a.json").read_text())
    assert (saved["complete"], saved["penalty"], saved["verdict"]) == (False, None, None)
    assert not (tmp_path / "a.st").exists()


def test_a_dry_run(program: Any, tmp_path: Path) -> None:
    ran = program(*COMMAND, "--dry-run", "-o", "a.json", "--format", "table")
    assert ran.code == 0, ran.err
    assert "2.0 MB" in ran.out
    assert "2 classes are new to the \\x1b[31mhead" in ran.out
    assert json.loads(program(*COMMAND, "--dry-run").out)["arch"] == "timm:vit_tiny"
    assert list(tmp_path.iterdir()) == []


def test_a_saved_report_is_shown_and_judged_again(program: Any, tmp_path: Path) -> None:
    write_json(make_document(), tmp_path / "s.json")
    ran = program("show", "s.json")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == (tmp_path / "s.json").read_text()
    assert program("show", "s.json", "--fail-on", "shares.shared>0.2").code == 10
    assert "| layer |" in program("show", "s.json", "--format", "markdown").out
    assert program("show", "s.json", "--plot", "s.pdf").code == 0
    assert (tmp_path / "s.pdf").read_bytes().startswith(b"%PDF")
    assert program("show", "s.json", "--fail-on", "kappa>2").code == 2


def test_the_schema(program: Any) -> None:
    ran = program("schema", "relimp")
    assert json.loads(ran.out)["properties"]["schema"]["const"] == "clcurv.relimp"
