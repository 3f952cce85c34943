"""The built-in losses by name; any other is the user's own code. No torch here."""

from __future__ import annotations

from typing import Literal, get_args

LossName = Literal["cross-entropy", "mse", "next-token", "masked-lm"]
LOSSES: tuple[str, ...] = get_args(LossName)
# Their curvature vanishes with the loss.
LOG_LIKELIHOODS = frozenset(LOSSES) - {"mse"}
