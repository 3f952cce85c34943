"""``clcurv inspect``: forms of the report, exit codes, and names that would like to act."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from hostile import HOSTILE, TINY, tiny_state
from program import SAMPLES, process
from program import program as on_a_terminal

from clcurv.cli.app import app
from clcurv.report.inspect_document import InspectDocument

PROGRAM = typer.main.get_command(app)
EVIL = "\x1b[31m\x9b2J\u202e[/red]`|$\n"


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound checkpoint, all of whose names would do harm to a terminal or a page."""
    path = tmp_path_factory.mktemp("evil") / "no\x1b[2J\n[red]$x|`.pt"
    content = {
        "arch": TINY,
        "state_dict": tiny_state() | {f"head.{EVIL}": torch.zeros(2)},
        EVIL: EVIL,
        "args": {EVIL: {EVIL: 1.0}},
    }
    torch.save(content, path.with_name("plain.pt"))  # the archive's own names follow the file's
    path.with_name("plain.pt").rename(path)
    return path


@pytest.fixture(scope="module")
def unknown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("unknown") / "mine.pt"
    torch.save({f"{EVIL}.{i}.weight": torch.zeros(3, 2) for i in range(30)}, path)
    return path


def test_json_in_a_pipe_and_in_a_file(program: Any, tmp_path: Path) -> None:
    ran = program("inspect", str(SAMPLES / "digits_vit.pt"), "-o", "i.json")
    assert ran.code == 0, ran.err
    assert (tmp_path / "i.json").read_text() == ran.out
    document = InspectDocument.model_validate_json(ran.out, strict=True)
    assert document.schema_ == "clcurv.inspect"
    assert document.command is not None
    shown = program("show", "i.json", "--format", "table")
    assert shown.code == 0, shown.err
    assert "timm:vit_tiny_patch16_224" in shown.out
    assert program("show", "i.json", "--fail-on", "file.size_bytes>3").code == 2


def test_the_schema_describes_it(program: Any) -> None:
    schema = json.loads(program("schema", "inspect").out)
    assert {"file", "weights", "match", "layers", "next", "refusal"} <= set(schema["properties"])


def test_every_command_shown_is_one_that_the_program_takes(program: Any) -> None:
    folder = str(SAMPLES / "intent_bert")
    report = json.loads(program("inspect", folder).out)
    commands = [shlex.split(step["command"]) for step in report["next"]]
    assert [words[:3] for words in commands] == [
        ["clcurv", name, folder] for name in ("kappa", "relimp", "spectrum")
    ]
    for _, name, *words in commands:
        with PROGRAM.commands[name].make_context(name, words):
            pass


@pytest.mark.parametrize("width", [40, 60, 120, 200])
def test_the_table_fits_the_terminal(program: Any, monkeypatch: Any, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    ran = program("inspect", str(SAMPLES / "digits_vit.pt"), "--format", "table")
    table, commands = ran.out.split(" next\n")
    assert all(len(line) <= width for line in table.splitlines())
    assert "vit_tiny_patch16_224" in table.replace("\n", "")
    # A command is one line, however narrow the terminal: it is there to be copied.
    assert f"   clcurv kappa {SAMPLES / 'digits_vit.pt'} --data DATA\n" in commands
    others = [x for x in commands.splitlines() if not x.startswith("   clcurv ")]
    assert all(line.startswith("   # ") and len(line) <= width for line in others)


@pytest.mark.parametrize("form", ["table", "json", "markdown", "github"])
def test_names_do_not_act(program: Any, evil: Path, unknown: Path, form: str) -> None:
    for path in (evil, unknown):
        ran = program("inspect", str(path), "--format", form)
        assert ran.code == (3 if path is unknown else 0), ran.err
        for text in (ran.out, ran.err):
            assert not {"\x1b", "\x9b", "\u202e", "\r"} & set(text)
        assert "[/red]" in ran.out.replace("\\", "")  # shown, not taken for markup
        if form == "json":
            InspectDocument.model_validate_json(ran.out)
    if form == "markdown":
        rows = [line for line in ran.out.splitlines() if line.startswith("| `")]
        assert len(rows) == 1  # thirty names, one pattern
        assert all(line.replace("\\|", "").count("|") == 5 for line in rows)


def test_a_command_for_an_odd_name_reads_it_back(program: Any, evil: Path) -> None:
    import subprocess

    report = json.loads(program("inspect", str(evil)).out)
    words = report["next"][0]["command"].removeprefix("clcurv kappa ")
    done = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {words}"], capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\0")[0] == str(evil)


@pytest.mark.parametrize("name", ["torchscript", "html", "shard_outside", "pickle_payload"])
def test_a_refusal_is_reported_and_then_told(program: Any, tmp_path: Path, name: str) -> None:
    (tmp_path / "in").mkdir()
    path = HOSTILE[name](tmp_path / "in")
    ran = program("inspect", str(path), "-q", "-o", "i.json")
    assert ran.code == 3
    report = json.loads(ran.out)
    assert report == json.loads((tmp_path / "i.json").read_text())
    first, *hint = ran.err.splitlines()
    assert first == f"clcurv: error: {report['refusal']['message']}"
    assert hint == [f"hint: {report['refusal']['hint']}"]
    assert report["refusal"]["exit_code"] == 3
    assert not list(tmp_path.rglob("canary"))
    ran = program("inspect", str(path), "-q", "--debug")
    assert "Traceback" in ran.err


def test_a_terminal_shows_a_refusal_once(tmp_path: Path, monkeypatch: Any) -> None:
    path = HOSTILE["html"](tmp_path)
    ran = on_a_terminal("inspect", path, "-q", terminal=True)
    assert ran.code == 3
    assert "refused" in ran.out
    assert ran.err.startswith("clcurv: error: ")  # stderr is no terminal: somebody logs it


def test_refused_and_piped_as_a_process(tmp_path: Path) -> None:
    path = HOSTILE["remote_code"](tmp_path)
    ran = process("inspect", path, "--json", "-q", folder=tmp_path)
    assert ran.code == 3
    assert ran.report["weights"]["n_tensors"] == 1
    assert len(ran.err.splitlines()) <= 2
    assert not list(tmp_path.rglob("canary"))


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["nothing.pt"], 3, "does not exist"),
        ([str(SAMPLES / "digits_vit.pt"), "--json", "--format", "table"], 2, "contradicts"),
        ([str(SAMPLES / "digits_vit.pt"), "-o", str(SAMPLES / "digits_vit.pt")], 2, "overwrite"),
        ([str(SAMPLES / "digits_vit.pt"), "--match-by-order"], 2, "--arch"),
        ([str(SAMPLES / "digits_vit.pt"), "--arch", "resnet18x"], 3, "no model"),
        ([str(SAMPLES / "digits_vit.pt"), "--key", "nowhere"], 3, "no weights under"),
        ([str(SAMPLES / "digits_vit.pt"), "--layers", "("], 2, "regular expression"),
    ],
)
def test_errors(program: Any, words: list[str], code: int, message: str) -> None:
    ran = program("inspect", *words, "-q")
    assert ran.code == code
    first = ran.err.splitlines()[0]
    assert first.startswith("clcurv: error: ")
    assert message in first


def test_the_readme_shows_what_it_prints(program: Any, monkeypatch: Any) -> None:
    page = (SAMPLES.parent / "README.md").read_text(encoding="utf-8")
    shown = page.split("<!-- output inspect -->\n```text\n")[1].split("```")[0]
    monkeypatch.chdir(SAMPLES)
    ran = program("inspect", "digits_vit.pt", "--data", "digits_held_out.npz", "--format", "table")
    printed = "".join(f"{line.rstrip()}\n" for line in ran.out.splitlines())
    assert printed == shown
