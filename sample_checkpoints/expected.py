"""Measures the sample checkpoints and writes the numbers to expect.

    python sample_checkpoints/expected.py            # writes README.md and expected.json
    python sample_checkpoints/expected.py --check    # compares, exit 1 on a difference

Each sample goes through the command line with its default options, as a user runs it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
EXPECTED = HERE / "expected.json"
COMMANDS = {
    "digits_resnet": ("digits_resnet", "--data", "digits_images"),
    "digits_vit": ("digits_vit.pt", "--data", "digits_held_out.npz"),
    "intent_bert": ("intent_bert", "--data", "intents.jsonl"),
}
TOLERANCE = 0.02  # other CPUs and library versions round differently


def measure(name: str) -> dict[str, Any]:
    """The report of ``clcurv kappa`` on one sample, run in this folder."""
    command = [sys.executable, "-m", "clcurv", "kappa", *COMMANDS[name], "--json", "--quiet"]
    run = subprocess.run(command, cwd=HERE, stdout=subprocess.PIPE, text=True, check=True)
    report: dict[str, Any] = json.loads(run.stdout)
    return report


def numbers(report: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a report for comparing."""
    return {
        "accuracy": report["data"]["accuracy"],
        "mean_loss": report["data"]["mean_loss"],
        "kappa": report["kappa"]["value"],
        "direction": report["schedule"]["direction"],
        "s": {group["name"]: group["s"] for group in report["groups"]},
    }


def table(report: dict[str, Any]) -> str:
    """The report as Markdown: κ and the advice, then one row a layer."""

    def digits(value: float | None) -> str:
        return "" if value is None else f"{value:.4g}"

    kappa, schedule = report["kappa"], report["schedule"]
    lines = [
        f"κ = {digits(kappa['value'])} "
        f"(95 % interval {digits(kappa['low'])} to {digits(kappa['high'])}), "
        f"direction {schedule['direction']}, γ = {digits(schedule['gamma'])}, "
        f"{report['data']['n_samples']} samples, mean loss {digits(report['data']['mean_loss'])}, "
        f"accuracy {100 * report['data']['accuracy']:.1f} %.",
        "",
        "| layer | parameters | s | ± standard error | λ_min | λ_ℓ | lr_scale |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for group in report["groups"]:
        name = f"{group['name']} (head)" if group["is_head"] else group["name"]
        cells = [group[key] for key in ("s", "s_stderr", "lambda_min", "lambda", "lr_scale")]
        lines.append(f"| {name} | {group['numel']} | {' | '.join(map(digits, cells))} |")
    return "\n".join(lines)


def differences(name: str, found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """One line for each number further than `TOLERANCE` from what is expected."""
    pairs = {key: (found[key], expected[key]) for key in ("accuracy", "mean_loss", "kappa")}
    for layer in sorted({*found["s"], *expected["s"]}):
        pairs[f"s of {layer}"] = (found["s"].get(layer), expected["s"].get(layer))
    lines = [
        f"{name}: {what} is {now}, expected {before}"
        for what, (now, before) in pairs.items()
        if (now is None) != (before is None)
        or (now is not None and abs(now - before) > TOLERANCE * abs(before))
    ]
    if found["direction"] != expected["direction"]:
        lines.append(f"{name}: direction is {found['direction']}, not {expected['direction']}")
    return lines


def main() -> int:
    from make import write_block

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    options = parser.parse_args()
    expected = json.loads(EXPECTED.read_text()) if options.check else {}
    found, wrong = {}, []
    for name in COMMANDS:
        report = measure(name)
        found[name] = numbers(report)
        print(f"{name}: {table(report)}\n")
        if options.check:
            wrong += differences(name, found[name], expected[name])
        else:
            write_block(HERE / "README.md", f"expected {name}", table(report))
    if not options.check:
        EXPECTED.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print("\n".join(wrong), file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
