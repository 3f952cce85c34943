"""What can go wrong, as one tree; every class owns its exit code.

::

    ClcurvError                 1  a fault of clcurv itself
    ├── UsageError              2  options that do not go together
    ├── InputError              3  a file or data set that is refused
    │   ├── UnsafeFileError        it would execute code or exhaust the machine
    │   ├── CorruptFileError       cut short, empty, or lying about its content
    │   ├── NotWeightsError        readable, but something other than weights
    │   ├── ArchitectureError      no model, or more than one, fits the weights
    │   ├── MismatchError          weights, labels or shapes do not fit the model
    │   └── DataError              the data set cannot be read or used
    ├── NumericalError          4  NaN, a constant loss, a non-deterministic loss
    └── ResourceError           5  memory (after back-off) or disk

Exit codes 10 (a gate failed) and 11 (inconclusive) are verdicts, not errors:
see `clcurv.report.gate`.
"""

from __future__ import annotations

from collections.abc import Sequence


class ClcurvError(Exception):
    """Base of every error that clcurv raises on purpose.

    Args:
        message: One line: what failed, where, and the likely cause.
        hint: One command or option to try, shown on a line of its own.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(ClcurvError):
    exit_code = 2


class InputError(ClcurvError):
    exit_code = 3


class UnsafeFileError(InputError):
    pass


class CorruptFileError(InputError):
    pass


class NotWeightsError(InputError):
    pass


class ArchitectureError(InputError):
    """No model, or more than one, fits.

    Args:
        message, hint: As in `ClcurvError`.
        candidates: The architectures that fit, where there are several.
    """

    def __init__(
        self, message: str, *, hint: str | None = None, candidates: Sequence[str] = ()
    ) -> None:
        super().__init__(message, hint=hint)
        self.candidates = tuple(candidates)


class MismatchError(InputError):
    pass


class DataError(InputError):
    pass


class NumericalError(ClcurvError):
    exit_code = 4


class ResourceError(ClcurvError):
    exit_code = 5
