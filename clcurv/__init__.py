"""Measures the loss curvature that decides what a network forgets and can still learn.

Functions are imported on first use, so that ``import clcurv`` stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clcurv.pipeline import inspect, kappa, relimp, spectrum
    from clcurv.training.schedule import load_schedule

__version__ = "0.1.0"
__all__ = ["__version__", "inspect", "kappa", "load_schedule", "relimp", "spectrum"]

_HOMES = {
    "inspect": "clcurv.pipeline",
    "kappa": "clcurv.pipeline",
    "load_schedule": "clcurv.training.schedule",
    "relimp": "clcurv.pipeline",
    "spectrum": "clcurv.pipeline",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
