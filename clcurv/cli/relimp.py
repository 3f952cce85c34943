"""``clcurv relimp``: flags -> options -> one library call -> report -> exit code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from clcurv.cli.delivery import DELIVERY_OPTIONS, Delivery, Extra
from clcurv.cli.given import begin
from clcurv.cli.measure import measure_and_deliver
from clcurv.cli.messages import Messages
from clcurv.cli.option_groups import Columns, Gates, Numerics, Output, Reading, Talk
from clcurv.cli.options import takes
from clcurv.cli.reading import prepare_reading
from clcurv.cli.relimp_options import (
    CheckpointArgument,
    Importances,
    LookAhead,
    Penalty,
    Search,
    Tasks,
)
from clcurv.errors import ClcurvError, UsageError

_INPUTS = ("past", "current", "past_importance", "training_config", "schedule", "label_map")
_OF_BOTH = ("current", "look_ahead", "penalty", "shares", "agreement", "search", "tensors")

EPILOG = r"""
[bold]Examples[/bold]

  clcurv relimp model.pt --past old/ --current new/ --lr 1e-3 --multipliers alpha.safetensors

  clcurv relimp model.pt --past old/ --save-importance imp.safetensors

  clcurv relimp model.pt --past-importance imp.safetensors --current new/ --search --state s.json

  clcurv relimp model.pt --past old/ --current new/ --schedule kappa.json --plot relimp.svg

The checkpoint is not changed. Data of the past are only needed to measure its importance: the
importance file stands for them from then on. New classes in the current task get new rows of the
head.

Every option can also be set by CLCURV_ and its name, e.g. CLCURV_EPOCHS=5, or in the nearest
pyproject.toml under \[tool.clcurv] or \[tool.clcurv.relimp]; the command line wins, then the
environment.

Exit codes: 0 measured, gates hold · 1 fault of clcurv · 2 usage · 3 input refused · 4 numerical ·
5 memory or disk · 10 a gate failed · 11 inconclusive · 130/143 interrupted.
"""


@takes(
    Tasks, Columns, Reading, Importances, Numerics, LookAhead, Search, Penalty, Output, Gates, Talk
)
def relimp(
    ctx: typer.Context,
    checkpoint: CheckpointArgument,
    **shared: Any,
) -> int:
    """Find which parameters the next task may change, and how strongly to hold the others.

    Measures the importance of every parameter for the past, trains a temporary copy on the current
    task, measures again, and recommends a penalty: how much α' holds each parameter, and its
    weight λ.
    """
    options = dict(shared)
    messages = Messages.create(quiet=options.pop("quiet"), verbose=options.pop("verbose"))
    dry_run = options.pop("dry_run")
    multipliers, save_importance = options.pop("multipliers"), options.pop("save_importance")
    del options["debug"]
    begin(ctx, messages)
    prepare_reading(options, messages)
    asked = {name: options.pop(name) for name in DELIVERY_OPTIONS if name in options}
    inputs = [checkpoint, *(options[name] for name in _INPUTS)]
    delivery = Delivery.prepare(
        messages,
        protected=[str(x) for x in inputs if x is not None],
        schema="clcurv.relimp",
        extra_files={
            "--multipliers": multipliers,
            "--save-importance": save_importance,
            "--state": options["state"],
        },
        allow_generated=False,
        **asked,
    )
    for name in ("past_importance", "training_config", "schedule", "state"):
        options[name] = None if options[name] is None else str(options[name])
    _check(options, multipliers, save_importance, [gate.path.text for gate in delivery.gates])

    faults: list[ClcurvError] = []

    def keep(importance: Any) -> None:
        if save_importance is not None:
            from clcurv.diagnostics.importance_file import save_importance as save

            try:
                save(save_importance, importance)
            except ClcurvError as error:  # told at the end: what follows is not lost with it
                messages.warning(str(error))
                faults.append(error)
            else:
                messages.note(f"importance of the past written to {save_importance}")

    def tell(trial: Any) -> None:
        from clcurv.report.relimp_summary import trial_text

        messages.note(trial_text(trial))

    def again(path: Path) -> None:
        raise faults[0]

    def files(report: Any) -> list[Extra]:
        found: list[Extra] = []
        if multipliers is not None:
            found.append((multipliers, report.save_multipliers, "multipliers"))
        if faults and save_importance is not None:
            found.append((save_importance, again, "importance"))
        return found

    return measure_and_deliver(
        messages=messages,
        delivery=delivery,
        work=lambda pipeline, progress: pipeline.relimp(
            checkpoint, progress=progress, on_past=keep, on_trial=tell, **options
        ),
        plan=(
            lambda pipeline, progress: pipeline.plan_relimp(
                checkpoint, progress=progress, **options
            )
        )
        if dry_run
        else None,
        extras=files,
    )


def _check(
    options: dict[str, Any],
    multipliers: Path | None,
    save_importance: Path | None,
    gates: list[str],
) -> None:
    """Refuse before the work what cannot be.

    Raises:
        UsageError: A number out of its range, or options that contradict each other.
        DataError: A training config that cannot be read.
    """
    from clcurv.pipeline.options import RelimpOptions
    from clcurv.pipeline.relimp_options import check_options, training_options

    if options["current"] is None and options["past"] is not None:
        if multipliers is not None:
            raise UsageError(
                "--multipliers: without the current task there are none", hint="add --current DATA"
            )
        if save_importance is None:
            raise UsageError(
                "--current is missing: the data of the task to come",
                hint="or add --save-importance FILE, to measure the past alone",
            )
        for path in gates:
            if path.startswith(_OF_BOTH):
                raise UsageError(f"the gate on {path} needs --current", hint="add --current DATA")
    asked = RelimpOptions(**options)
    check_options(asked)
    training_options(asked)
