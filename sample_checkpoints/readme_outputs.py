"""Runs the README's commands on the samples and puts what they print into it.

    python sample_checkpoints/readme_outputs.py [--only relimp]

Each block between ``<!-- output NAME -->`` and ``<!-- /output NAME -->`` is what the last of its
commands shows in a terminal of the README's width, from a given line on.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
README = HERE.parent / "README.md"


@dataclass(frozen=True)
class Output:
    """Command lines without ``clcurv``; the block starts at the line that begins with `start`."""

    commands: tuple[str, ...]
    folder: Path = HERE
    width: int = 80
    start: str = ""
    stop: str = ""


OUTPUTS = {
    "resnet": Output(
        ("kappa sample_checkpoints/digits_resnet --data sample_checkpoints/digits_images",),
        folder=HERE.parent,
        stop=" note",
    ),
    "vit": Output(
        ("kappa digits_vit.pt --data digits_held_out.npz --new-data digits_rotated.npz",),
        start="  layer",
        stop=" head:",
    ),
    "inspect": Output(("inspect digits_vit.pt --data digits_held_out.npz",), width=100),
    "stream": Output(
        (
            "spectrum {sgd} --stream permuted_digits/stream.yaml --arch "
            "permuted_digits/mlp.py:digits_mlp --trust-code --lr 0.1 --steps 112 --operator ggn "
            "--samples 100",
        ),
        width=100,
        start="     task",
        stop=" weight_decay",
    ),
    "relimp": Output(
        (
            "relimp digits_vit.pt --past digits_held_out.npz --samples 200 "
            "--save-importance {tmp}/past.safetensors",
            "relimp digits_vit.pt --past-importance {tmp}/past.safetensors --current "
            "digits_rotated.npz --lr 1e-3 --epochs 20 --samples 200",
        ),
        start="  layer",
    ),
}


def printed(output: Output) -> str:
    """What the block holds."""
    environment = {**os.environ, "COLUMNS": str(output.width), "NO_COLOR": "1"}
    text = ""
    with tempfile.TemporaryDirectory() as tmp:
        for line in output.commands:
            sgd = sorted(str(p.relative_to(HERE)) for p in HERE.glob("permuted_digits/sgd/*.pt"))
            words = shlex.split(line.format(tmp=tmp, sgd=shlex.join(sgd)))
            command = [sys.executable, "-m", "clcurv", *words, "--format", "table", "--quiet"]
            run = subprocess.run(
                command,
                cwd=output.folder,
                env=environment | {"PYTHONPATH": str(HERE.parent)},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            text = run.stdout.replace(f"{tmp}/", "")
    lines = [line.rstrip() for line in text.splitlines()]
    first = next(i for i, line in enumerate(lines) if line.startswith(output.start))
    last = len(lines)
    if output.stop:
        last = next((i for i, line in enumerate(lines) if line.startswith(output.stop)), last)
    return "```text\n" + "\n".join(lines[first:last]).rstrip() + "\n```"


def main() -> None:
    from make import write_block

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=OUTPUTS, help="this block only")
    chosen = parser.parse_args()
    for name in [chosen.only] if chosen.only else OUTPUTS:
        text = printed(OUTPUTS[name])
        print(f"{name}:\n{text}\n")
        write_block(README, f"output {name}", text)


if __name__ == "__main__":
    main()
