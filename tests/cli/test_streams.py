"""The program as a process: pipes, terminals, signals, full disks, odd encodings."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clcurv.report.document import write_json
from clcurv.report.kappa_document import KappaDocument

_PROGRAM = """
import os, sys, types
fake = types.ModuleType("clcurv.pipeline")
def kappa(checkpoint, *, progress, **options):
    from clcurv.report.reader import load_document
    progress("measuring", 1, 2)
    exec(os.environ.get("FAKE_ACTION", ""))
    return types.SimpleNamespace(document=load_document(os.environ["FAKE_REPORT"]))
fake.kappa = kappa
sys.modules["clcurv.pipeline"] = fake
import clcurv
clcurv.pipeline = fake
from clcurv.cli.app import run
sys.exit(run(sys.argv[1:]))
"""


@pytest.fixture
def command(tmp_path: Path, document: KappaDocument, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    folder = tmp_path / "fake"
    folder.mkdir()
    write_json(document, folder / "report.json")
    monkeypatch.setenv("FAKE_REPORT", str(folder / "report.json"))
    return [sys.executable, "-c", _PROGRAM, "kappa", "model.pt"]


def _run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
    return subprocess.run(command, timeout=300, check=False, **options)


def test_what_compiled_code_prints_stays_out_of_the_result(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_ACTION", "os.write(1, b'banner'); print('python')")
    ran = _run(command)
    assert json.loads(ran.stdout)["schema"] == "clcurv.schedule"


def test_a_closed_pipe_is_quiet(command: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    ran = _run([*command, "-q"], stdout=writer)
    os.close(writer)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_full_disk_behind_stdout(command: list[str], tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        ran = _run([*command, "-q", "-o", "a.json"], stdout=full)
    assert ran.returncode == 5
    assert ran.stderr.startswith("clcurv: error: cannot write to stdout: No space left")
    assert (tmp_path / "a.json").exists()


@pytest.mark.parametrize("name", ["table", "json", "markdown", "github"])
def test_an_encoding_without_greek(command: list[str], name: str) -> None:
    ran = _run([*command, "--format", name], env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.isascii()


def test_sigterm_while_measuring(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ACTION", "import time; time.sleep(60)")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert any("measuring" in line for line in iter(process.stderr.readline, ""))
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (143, "")
    assert err.endswith("clcurv: error: interrupted\n")
    assert "Traceback" not in err


def _on_a_terminal(command: list[str], **variables: str) -> tuple[int, str]:
    """Exit code and everything that a terminal of 100 columns shows."""
    master, slave = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color"} | variables
    process = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env=environment, close_fds=True
    )
    os.close(slave)
    shown = b""
    while select.select([master], [], [], 30)[0]:
        try:
            chunk = os.read(master, 65536)
        except OSError:  # Linux: the other end is gone
            break
        if not chunk:
            break
        shown += chunk
    os.close(master)
    return process.wait(30), shown.decode()


def test_a_terminal_gets_a_table_in_colour_and_a_moving_bar(command: list[str]) -> None:
    code, shown = _on_a_terminal(command)
    assert code == 0
    assert "lr_scale" in shown
    assert '"schema"' not in shown
    assert "\x1b[1m" in shown or "\x1b[2m" in shown
    assert "\x1b[?25l" in shown  # the bar hides the cursor ...
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")  # ... and brings it back
    assert "\x1b[31mevil" not in shown  # the layer's name does not act


def test_no_color(command: list[str]) -> None:
    _, shown = _on_a_terminal(command, NO_COLOR="1")
    assert "lr_scale" in shown
    assert "\x1b[3" not in shown


def test_a_dumb_terminal_gets_plain_lines(command: list[str]) -> None:
    code, shown = _on_a_terminal(command, TERM="dumb")
    assert code == 0
    assert "\x1b" not in shown
    assert "clcurv: measuring 1/2" in shown


def test_quiet_on_a_terminal(command: list[str]) -> None:
    _, shown = _on_a_terminal([*command, "--quiet"], NO_COLOR="1")
    assert "measuring" not in shown
    assert "lr_scale" in shown


def test_a_log_file_gets_no_animation(command: list[str]) -> None:
    ran = _run(command)
    assert "\x1b" not in ran.stderr
    assert "\r" not in ran.stderr
    assert ran.stderr.splitlines() == ["clcurv: loading libraries", "clcurv: measuring 1/2"]


def test_a_warning_is_shown_once(command: list[str], tmp_path: Path) -> None:
    report = tmp_path / "fake" / "report.json"
    held = json.loads(report.read_text()) | {"warnings": ["accuracy is near chance"]}
    report.write_text(json.dumps(held))
    _, shown = _on_a_terminal(command, NO_COLOR="1")
    assert shown.count("accuracy is near chance") == 1
    piped = _run(command)
    assert piped.stderr.count("accuracy is near chance") == 1
    assert "accuracy is near chance" in piped.stdout


def test_a_closed_stdout_is_no_fault(command: list[str], tmp_path: Path) -> None:
    ran = _run(["sh", "-c", 'exec "$@" >&-', "sh", *command, "-o", "r.json"])
    assert ran.returncode == 0, ran.stderr
    assert json.loads((tmp_path / "r.json").read_text())["schema"] == "clcurv.schedule"


def test_help_into_a_closed_pipe_or_a_full_disk(command: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    ran = _run([*command, "--help"], stdout=writer)
    os.close(writer)
    assert (ran.returncode, ran.stderr) == (0, "")
    if Path("/dev/full").exists():
        with open("/dev/full", "w") as full:
            ran = _run([*command, "--help"], stdout=full)
        assert ran.returncode == 5
        assert ran.stderr.splitlines()[0].startswith("clcurv: error: cannot write")
        assert "Traceback" not in ran.stderr
