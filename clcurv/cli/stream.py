"""``clcurv stream resolve``: what a stream consists of, as a manifest. Nothing is measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from clcurv.cli.chatter import quiet_libraries
from clcurv.cli.delivery import result_console, stdout_errors, write_stdout
from clcurv.cli.given import begin
from clcurv.cli.messages import Messages
from clcurv.cli.option_groups import Columns, Output, Talk
from clcurv.cli.options import DATA, OUTPUT, option, takes
from clcurv.cli.signals import signals_raise
from clcurv.errors import UsageError
from clcurv.report.text import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

EPILOG = """
[bold]Examples[/bold]

  clcurv stream resolve stream.yaml

  clcurv stream resolve split:5 --data digits/ -o stream.json

  clcurv stream resolve tasks.npz --format json

The result is a manifest itself: it can be given to --stream.
"""


@takes(Columns, Output, Talk)
def stream(
    ctx: typer.Context,
    action: Annotated[
        Literal["resolve"],
        typer.Argument(metavar="resolve", show_choices=False, help="What to do."),
    ],
    spec: Annotated[
        str,
        typer.Argument(
            metavar="STREAM",
            help="A manifest (yaml, json), a PILOT json, an npz with x, y, t, a folder with a "
            "sub-folder per task, or permuted:K, split:K (split:K:sorted in "
            "the order of the classes), label-shuffle:K over --data.",
        ),
    ],
    data: Annotated[
        str | None,
        option(
            "--data",
            panel=DATA,
            metavar="PATH",
            help="The data set behind a generated stream or a PILOT json.",
        ),
    ] = None,
    scenario: Annotated[
        Literal["class-il", "task-il", "domain-il"] | None,
        option(
            "--scenario",
            panel=DATA,
            metavar="NAME",
            help="class-il, task-il or domain-il. Default: as described, or usual for the kind.",
        ),
    ] = None,
    modality: Annotated[
        Literal["image", "text", "array"] | None,
        option(
            "--modality",
            panel=DATA,
            metavar="KIND",
            help="image, text or array. Default: what the data look like.",
        ),
    ] = None,
    seed: Annotated[
        int,
        option("--seed", panel=DATA, min=0, metavar="N", help="Of class orders and permutations."),
    ] = 0,
    output_format: Annotated[
        Literal["auto", "table", "json"],
        option(
            "--format",
            panel=OUTPUT,
            metavar="FORMAT",
            help="What stdout carries: auto (a table on a terminal, JSON when piped), table, json.",
        ),
    ] = "auto",
    **shared: Any,
) -> int:
    """Resolve a stream of tasks: samples, classes, label histogram and digest of each task."""
    messages = Messages.create(quiet=shared["quiet"], verbose=shared["verbose"])
    split, label_map = shared["split"], shared["label_map"]
    output, as_json = shared["output"], shared["json_"]
    begin(ctx, messages)
    if as_json and output_format == "table":
        raise UsageError("--json contradicts --format table", hint="give one of them")
    if output is not None:
        _check_output(output, (spec, data, label_map))
    columns: dict[str, Any] = {x: shared[f"{x}_column"] for x in ("image", "text", "label")}
    with quiet_libraries(messages), signals_raise() as received:
        try:
            with messages.progress() as progress:
                progress("loading libraries", 0, 0)
                from clcurv.inputs.labelmap import read_label_map
                from clcurv.inputs.stream import open_stream

                if label_map is not None:
                    columns["label_map"] = read_label_map(label_map)
                named = {k: column for k, column in columns.items() if column is not None} or None
                progress("opening the stream", 0, 0)
                opened = open_stream(
                    spec,
                    data=data,
                    seed=seed,
                    scenario=scenario,
                    split=split,
                    columns=named,
                    modality=modality,
                )
                resolved = opened.resolved(split=split, columns=named, progress=progress)
        except KeyboardInterrupt:
            messages.error("interrupted")
            return received.exit_code
    text = _strict_json(resolved)
    if output is not None:
        from clcurv.runtime import atomic_write

        atomic_write(output, text.encode())
        messages.note(f"manifest written to {output}")
    piped = output_format == "auto" and not sys.stdout.isatty()
    if as_json or output_format == "json" or piped:
        write_stdout(text)
    else:
        _print(resolved)
    return 0


def _check_output(output: Path, inputs: tuple[str | Path | None, ...]) -> None:
    if output.is_dir():
        raise UsageError(f"--output {output} is a folder", hint=f"--output {output}/stream.json")
    if any(path is not None and Path(path).resolve() == output.resolve() for path in inputs):
        raise UsageError(f"--output {output} would overwrite the input", hint="name another file")
    if not output.resolve().parent.is_dir():
        raise UsageError(f"--output {output}: its folder does not exist", hint="make it first")


def _strict_json(resolved: Mapping[str, Any]) -> str:
    """ASCII only: names may hold what moves a terminal's cursor, or bytes that are no UTF-8."""
    return json.dumps(resolved, indent=2, allow_nan=False) + "\n"


def _print(resolved: Mapping[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 1), pad_edge=True)
    for heading in ("task", "n", "classes", "samples per class", "digest"):
        right = heading in ("n", "classes")
        table.add_column(
            heading,
            justify="right" if right else "left",
            overflow="fold",
            no_wrap=heading == "digest",
        )
    for task in resolved["tasks"]:
        table.add_row(
            Text(printable(task["name"], limit=40)),
            f"{task['n']:,}",
            f"{len(task.get('classes', ()))}",
            Text(_histogram(task["label_histogram"])),
            (task["digest"] or "")[:12],
        )
    heading = " · ".join(
        str(x) for x in (resolved["name"], resolved["scenario"], resolved["origin"]) if x
    )
    with stdout_errors():
        console = result_console()
        console.print(Text(printable(heading), style="bold"))
        for note in resolved["notes"]:
            console.print(Text(printable(note), style="dim"))
        console.print(table)
        sys.stdout.flush()


def _histogram(counts: Mapping[str, int]) -> str:
    """All counts where there are few classes, else their range."""
    if len(counts) > 10:
        return f"{min(counts.values()):,} to {max(counts.values()):,}"
    return ", ".join(f"{printable(label, limit=20)}: {n:,}" for label, n in counts.items())
