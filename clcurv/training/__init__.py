"""What training jobs take from the reports. Imported on first use: nothing here loads torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clcurv.training.l2er import L2ER
    from clcurv.training.multipliers import load_multipliers
    from clcurv.training.penalty import ImportancePenalty
    from clcurv.training.schedule import load_schedule

__all__ = ["L2ER", "ImportancePenalty", "load_multipliers", "load_schedule"]

_HOMES = {
    "ImportancePenalty": "clcurv.training.penalty",
    "L2ER": "clcurv.training.l2er",
    "load_multipliers": "clcurv.training.multipliers",
    "load_schedule": "clcurv.training.schedule",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
