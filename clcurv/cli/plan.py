"""What ``--dry-run`` prints: the plan of a measurement that was not made."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from clcurv.cli.delivery import result_console, stdout_errors, write_stdout
from clcurv.report.text import count, printable

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def show_plan(plan: DataclassInstance, output_format: str) -> None:
    """Print a plan as JSON, or as a list of its values with its rows in tables.

    Args:
        plan: A dataclass; a field whose name holds ``bytes`` is shown as a size, a sequence of
            objects (layers, tasks) as a table with their fields as columns.
        output_format: ``json``, or anything else for people.
    """
    values = asdict(plan)
    if output_format == "json":
        write_stdout(json.dumps(values, indent=2, default=str) + "\n")
        return
    grid = Table.grid(padding=(0, 1, 0, 1))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    tables = []
    for name, value in values.items():
        items = value if isinstance(value, list | tuple) else (value,)
        if items and all(isinstance(item, dict) for item in items):
            tables.append(_layers(items) if name == "layers" else _rows(items))
            continue
        for item in items:
            if item not in (None, ""):
                grid.add_row(Text(_label(name)), Text(_shown(name, item)))
    with stdout_errors():
        console = result_console()
        for part in (grid, *tables):
            console.print(part)
        sys.stdout.flush()


def _layers(layers: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=True)
    table.add_column("layer", overflow="fold")
    table.add_column("parameters", justify="right")
    for layer in layers:
        table.add_row(Text(_layer_name(layer)), Text(count(int(layer.get("numel", 0)))))
    return table


def _rows(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=True)
    for name, value in rows[0].items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        table.add_column(_label(name), justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(name, value)) for name, value in row.items()))
    return table


def _cell(name: str, value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{printable(str(k))}: {_shown(name, v)}" for k, v in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_shown(name, v) for v in value)
    return "" if value is None else _shown(name, value)


def _label(name: str) -> str:
    return name.replace("bytes_", "memory_").replace("_", " ")


def _layer_name(layer: Mapping[str, Any]) -> str:
    return printable(str(layer["name"])) + (" (head)" if layer.get("is_head") else "")


def _shown(name: str, value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return decimal(value) if "bytes" in name else f"{value:,}"
    return printable(str(value))
