"""Asking for help is quick: nothing heavy is imported on that path."""

import resource
import subprocess
import sys

import pytest

HEAVY = {"torch", "torchvision", "timm", "transformers", "datasets", "matplotlib", "scipy",
         "numpy", "pyhessian"}  # fmt: skip

_REPORT_IMPORTS = """
import sys
{before}
from clcurv.cli.app import run
code = run({arguments!r})
print("IMPORTED", *sorted({{name.partition(".")[0] for name in sys.modules}}), file=sys.stderr)
sys.exit(code)
"""


def _imported(*arguments: str, before: str = "") -> tuple[int, set[str]]:
    script = _REPORT_IMPORTS.format(arguments=list(arguments), before=before)
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False
    )
    last = ran.stderr.splitlines()[-1]
    assert last.startswith("IMPORTED ")
    return ran.returncode, set(last.split()[1:])


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], 0),
        (["kappa", "--help"], 0),
        (["spectrum", "--help"], 0),
        (["relimp", "--help"], 0),
        (["inspect", "--help"], 0),
        (["show", "--help"], 0),
        (["--version"], 0),
        (["schema", "clcurv.schedule"], 0),
        (["schema", "spectrum"], 0),
        (["schema", "relimp"], 0),
        (["schema", "inspect"], 0),
        (["kappa", "model.pt", "--sampels", "3"], 2),
        (["kappa", "model.pt", "--fail-on", "nonsense"], 2),
        (["inspect", "model.pt", "--json", "--format", "table"], 2),
        (["spectrum", "m.pt", "--stream", "s", "--fail-on", "nonsense"], 2),
        (["relimp", "m.pt", "--past", "a", "--current", "b", "--lr", "-1"], 2),
    ],
)
def test_nothing_heavy_is_imported(arguments: list[str], code: int) -> None:
    returned, names = _imported(*arguments)
    assert returned == code
    assert "typer" in names
    assert not names & HEAVY


def test_that_the_test_above_can_fail() -> None:
    _, names = _imported("--help", before="import numpy")
    assert names & HEAVY == {"numpy"}


def test_help_is_quick() -> None:
    """Processor time, which a busy machine stretches less than the clock; 0.25 s on an idle one."""
    assert min(_processor_seconds("--help") for _ in range(3)) < 0.8


def _processor_seconds(*arguments: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "clcurv", *arguments], capture_output=True, timeout=300, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
