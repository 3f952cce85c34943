"""A folder, table, array or generator -> a fixed sample of inputs and targets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

Inputs = Tensor | Mapping[str, Tensor]


@dataclass(frozen=True)
class Batch:
    """Inputs for one forward pass: a tensor (``model(x)``) or keywords (``model(**x)``).

    Targets: int64 class ids ``(n,)``; float ``(n, k)`` for regression; int64 token ids
    ``(n, t)`` with -100 where a token is not scored, not shifted (the objective shifts).
    """

    inputs: Inputs
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)


@dataclass(frozen=True)
class Samples:
    """The frozen sample that everything is measured on.

    Attributes:
        inputs: As in `Batch`, N rows.
        targets: As in `Batch`, N rows.
        source: ``path`` | ``generated`` | ``given``.
        label_source: ``data`` | ``model`` (sampled from the model's own prediction).
        format: ``imagefolder`` | ``npz`` | ``csv`` | ``jsonl`` | ... | ``generated``.
        class_counts: Class id -> how many of the sample.
        available: Samples in the data set before the draw.
        seed: Of the draw.
        digest: sha256 (hex) over inputs and targets.
        skipped: Files or rows that could not be read (only with ``skip_bad``).
        notes: Sentences for the report.
    """

    inputs: Inputs
    targets: Tensor
    source: Literal["path", "generated", "given"] = "given"
    label_source: Literal["data", "model"] = "data"
    format: str = "given"
    class_counts: dict[int, int] = field(default_factory=dict)
    available: int = 0
    seed: int = 0
    digest: str = ""
    skipped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.targets)

    def split(self, size: int) -> list[Batch]:
        """Consecutive micro-batches of at most `size` samples; the last may be ragged."""
        return list(self._iter(size))

    def _iter(self, size: int) -> Iterator[Batch]:
        for start in range(0, len(self), size):
            rows = slice(start, start + size)
            if isinstance(self.inputs, Tensor):
                yield Batch(self.inputs[rows], self.targets[rows])
            else:
                yield Batch({k: v[rows] for k, v in self.inputs.items()}, self.targets[rows])
