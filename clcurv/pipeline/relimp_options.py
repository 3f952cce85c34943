"""What is settled about `relimp` before anything is read: options that go together. No torch."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, get_args

from clcurv.diagnostics.relimp import Estimator, TauMode
from clcurv.errors import MismatchError, UsageError
from clcurv.pipeline.options import RelimpOptions
from clcurv.training.options import LookAheadOptions, load_look_ahead_options

if TYPE_CHECKING:
    from clcurv.curvature.importance import Importance

FORMS = ("paper", "code")
_TRAINING = {
    "optimizer": "optimizer",
    "lr": "lr",
    "epochs": "epochs",
    "train_batch_size": "batch_size",
    "weight_decay": "weight_decay",
    "momentum": "momentum",
    "patience": "patience",
    "validation": "validation",
    "grad_clip": "grad_clip",
}


def check_options(asked: RelimpOptions) -> None:
    """Refuses what cannot be, before anything is read.

    Raises:
        UsageError: So it is.
    """
    if asked.past is None and asked.past_importance is None:
        raise UsageError(
            "nothing says what the network knows",
            hint="--past DATA, or --past-importance FILE of an earlier run",
        )
    if asked.current is None and asked.past is None:
        raise UsageError("an importance file alone leaves nothing to do", hint="--current DATA")
    words: tuple[tuple[str, Any, tuple[str, ...]], ...] = (
        ("tau", asked.tau, get_args(TauMode)),
        ("multiplier-form", asked.multiplier_form, FORMS),
        ("estimator", asked.estimator or "mas", get_args(Estimator)),
        ("accumulate", asked.accumulate, ("mean", "max")),
    )
    for name, value, known in words:
        if value not in known:
            raise UsageError(f"unknown {name} {value!r}", hint=f"--{name} {' | '.join(known)}")
    for name in ("lambda_", "lambda_up", "lambda_down"):
        value, flag = getattr(asked, name), f"--{name.rstrip('_').replace('_', '-')}"
        if value is not None and not 0 <= value < math.inf:
            raise UsageError(f"{flag} {value}: must be a number of at least 0")
        if value is not None and asked.search:
            raise UsageError(f"--search finds {flag} itself", hint=f"leave out {flag}")
    if not 0 <= asked.allowed_drop < 1:
        raise UsageError(
            f"--allowed-drop {asked.allowed_drop}: must be at least 0 and below 1",
            hint="the default is 0.1",
        )
    if not 0 < asked.lambda_decay < 1:
        raise UsageError(
            f"--lambda-decay {asked.lambda_decay}: must lie between 0 and 1",
            hint="the default is 0.9",
        )
    if asked.state is not None and not asked.search:
        raise UsageError("--state keeps the search's trials", hint="add --search")
    if asked.search and asked.current is None:
        raise UsageError("--search needs the current task", hint="add --current DATA")
    if asked.head == "linear-probe" and asked.past is None:
        raise UsageError("a linear probe is fitted on the past's data", hint="add --past DATA")


def training_options(asked: RelimpOptions) -> LookAheadOptions:
    """Of the look-ahead: the options, then the training config, then the defaults.

    Raises:
        UsageError, DataError: See `clcurv.training.options`.
    """
    options = LookAheadOptions(seed=asked.seed)
    if asked.training_config is not None:
        options = load_look_ahead_options(asked.training_config, defaults=options)
    given: dict[str, Any] = {
        theirs: value
        for ours, theirs in _TRAINING.items()
        if (value := getattr(asked, ours)) is not None
    }
    for name in ("patience", "grad_clip"):
        if given.get(name) == 0:
            given[name] = None
    options = dataclasses.replace(options, **given)
    if asked.search and options.validation == 0:
        raise UsageError(
            "--search compares scores on a part of the current task that is held out",
            hint="--validation 0.2",
        )
    return options


def following(asked: RelimpOptions, file: Importance | None) -> RelimpOptions:
    """With the estimator, convention, batch and sample count of the importance file.

    What was asked for otherwise stays, and is refused here or by the comparison of both.

    Raises:
        MismatchError: Another estimator or convention is asked for than the file has.
    """
    if file is None:
        return dataclasses.replace(
            asked, estimator=asked.estimator or "mas", compat=asked.compat or "per-sample"
        )
    for name in ("estimator", "compat"):
        wanted, has = getattr(asked, name), getattr(file, name)
        if wanted is not None and wanted != has:
            raise MismatchError(
                f"the importance of the past is of another {name}: {has}, not {wanted}",
                hint=f"--{name} {has}, or measure the past again with --past",
            )
    default = RelimpOptions.__dataclass_fields__["samples"].default
    return dataclasses.replace(
        asked,
        estimator=file.estimator,
        compat=file.compat,
        batch_size=asked.batch_size or file.batch_size,
        samples=file.n_samples if asked.samples == default else asked.samples,
    )
