"""α' of the search's trials, without measuring anything again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from clcurv.curvature.importance import Importance
from clcurv.diagnostics.relative import lambda_up_between
from clcurv.diagnostics.relimp import LookAhead, TensorImportance
from clcurv.training.search_plan import Plan, Trial


@dataclass(frozen=True)
class RelativeMultipliers:
    """What the look-ahead found: α' is a sum of two parts, above τ and below.

    Attributes:
        report, current: Of the look-ahead and its importance.
        above, every: α' with λ_up = 1, and λ_down = 0 or 1.
        tensors: Their τ.
        upper: LU/λ, with LU the λ that the uniform phase starts from.
    """

    report: LookAhead
    current: Importance
    above: Mapping[str, Tensor]
    every: Mapping[str, Tensor]
    tensors: tuple[TensorImportance, ...]
    upper: float

    @property
    def up_matters(self) -> bool:
        """Whether λ_up has room to move for any tensor."""
        return self.ups(1.0) != self.ups(0.0)

    def ups(self, m: float) -> dict[str, float]:
        """λ_up of every tensor."""
        of = lambda_up_between(m, upper=self.upper)
        return {t.name: of(t.tau) for t in self.tensors}

    def multipliers(self, trial: Plan | Trial) -> dict[str, Tensor]:
        """α' of a trial."""
        down = trial.lambda_down
        return {
            name: down * self.every[name] + (up - down) * self.above[name]
            for name, up in self.ups(trial.m).items()
        }


def largest(multipliers: Mapping[str, Tensor]) -> float:
    """Over all tensors; 0 where there are none."""
    return max((float(t.max()) for t in multipliers.values() if t.numel()), default=0.0)
