"""All that the commands do, as functions: inputs -> measurement -> advice -> document.

Each command's are imported on first use: one command does not wait for the others' libraries.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clcurv.pipeline.inspect_run import InspectReport, inspect
    from clcurv.pipeline.kappa_run import KappaPlan, KappaReport, kappa, plan
    from clcurv.pipeline.options import (
        InputOptions,
        InspectOptions,
        KappaOptions,
        RelimpOptions,
        SpectrumOptions,
    )
    from clcurv.pipeline.relimp_plan import RelimpPlan, plan_relimp
    from clcurv.pipeline.relimp_run import RelimpReport, relimp
    from clcurv.pipeline.spectrum_plan import StreamPlan, plan_spectrum
    from clcurv.pipeline.spectrum_report import SpectrumReport
    from clcurv.pipeline.spectrum_run import spectrum

__all__ = [
    "InputOptions",
    "InspectOptions",
    "InspectReport",
    "KappaOptions",
    "KappaPlan",
    "KappaReport",
    "RelimpOptions",
    "RelimpPlan",
    "RelimpReport",
    "SpectrumOptions",
    "SpectrumReport",
    "StreamPlan",
    "inspect",
    "kappa",
    "plan",
    "plan_relimp",
    "plan_spectrum",
    "relimp",
    "spectrum",
]

_HOMES = {
    "KappaPlan": "kappa_run",
    "KappaReport": "kappa_run",
    "kappa": "kappa_run",
    "plan": "kappa_run",
    "InputOptions": "options",
    "InspectOptions": "options",
    "InspectReport": "inspect_run",
    "inspect": "inspect_run",
    "KappaOptions": "options",
    "RelimpOptions": "options",
    "SpectrumOptions": "options",
    "RelimpPlan": "relimp_plan",
    "RelimpReport": "relimp_run",
    "plan_relimp": "relimp_plan",
    "relimp": "relimp_run",
    "SpectrumReport": "spectrum_report",
    "StreamPlan": "spectrum_plan",
    "plan_spectrum": "spectrum_plan",
    "spectrum": "spectrum_run",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
