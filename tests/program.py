"""Runs the program: in this process with its streams caught, or as a process of its own."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from clcurv.cli.app import run

ROOT = Path(__file__).parents[1]
SAMPLES = ROOT / "sample_checkpoints"
RESNET = (str(SAMPLES / "digits_resnet"), "--data", str(SAMPLES / "digits_images"))
VIT = (str(SAMPLES / "digits_vit.pt"), "--data", str(SAMPLES / "digits_held_out.npz"))
BERT = (str(SAMPLES / "intent_bert"), "--data", str(SAMPLES / "intents.jsonl"))


@dataclass(frozen=True)
class Ran:
    """What a run left behind."""

    code: int
    out: str
    err: str

    @property
    def report(self) -> dict[str, Any]:
        """stdout as the one JSON document that it must be."""
        report: dict[str, Any] = json.loads(self.out)
        return report


class _Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def program(*arguments: object, terminal: bool = False) -> Ran:
    """Runs ``clcurv ARGUMENTS`` in this process.

    Args:
        arguments: Words of the command line.
        terminal: Whether stdout claims to be one.
    """
    out, err = _Terminal() if terminal else io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run([str(word) for word in arguments])
    return Ran(code, out.getvalue(), err.getvalue())


def command(*arguments: object) -> list[str]:
    """Words that start the program as a process."""
    return [sys.executable, "-m", "clcurv", *map(str, arguments)]


def environment(**variables: str) -> dict[str, str]:
    """For a process: this checkout's package, one thread, none of the user's settings."""
    mine = {k: v for k, v in os.environ.items() if not k.startswith(("CLCURV_", "GITHUB_"))}
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return mine | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "120"} | variables


def process(*arguments: object, folder: Path, **options: Any) -> Ran:
    """Runs ``python -m clcurv ARGUMENTS`` in a folder."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
    done = subprocess.run(
        command(*arguments), cwd=folder, env=environment(), timeout=300, check=False, **options
    )
    return Ran(done.returncode, done.stdout or "", done.stderr or "")


@contextmanager
def quiet_surroundings() -> Iterator[None]:
    """One thread, and no setting of the user's reaches the program; all comes back after."""
    before, threads = dict(os.environ), torch.get_num_threads()
    for name in before:
        if name.startswith(("CLCURV_", "GITHUB_")) or name in {"FORCE_COLOR", "NO_COLOR"}:
            del os.environ[name]
    os.environ |= {"COLUMNS": "120", "HF_HUB_OFFLINE": "1"}
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        os.environ.clear()
        os.environ.update(before)
