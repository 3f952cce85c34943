"""Running sums of importances in float64, and how good the network is on what was measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from clcurv.curvature.objective import IGNORE_INDEX, Objective
from clcurv.curvature.output_seeds import aligned_labels, token_objective
from clcurv.curvature.user_objective import UserObjective
from clcurv.errors import MismatchError, NumericalError

How = Literal["abs", "square", "as-is"]
# Elements taken to float64 at a time. On a CPU a buffer that stays in the cache costs a fifth of
# fresh memory and mixed types (2 ns an element against 10).
PIECE = {"cpu": 1 << 17}
PIECE_ELSEWHERE = 1 << 24


class Sums:
    """Σ_n of every parameter's contributions, and every sample's sum by layer.

    Args:
        params: Name -> parameter.
        layers: Layer -> names of its parameters.
    """

    def __init__(
        self, params: Mapping[str, nn.Parameter], layers: Mapping[str, Sequence[str]]
    ) -> None:
        self._layers = {name: list(members) for name, members in layers.items()}
        # Apple's GPUs have no float64.
        self._totals = {
            n: torch.zeros(
                p.shape, dtype=torch.float64, device="cpu" if p.device.type == "mps" else p.device
            )
            for n, p in params.items()
        }
        where = next(iter(self._totals.values())).device
        piece = PIECE.get(where.type, PIECE_ELSEWHERE)
        self._buffer = torch.empty(piece, dtype=torch.float64, device=where)
        self._chunk: dict[str, Tensor] = {}
        self.touched = False  # whether the open chunk is in the sums already
        self._by_layer: dict[str, list[Tensor]] = {name: [] for name in layers}
        self._weights: list[Tensor] = []

    def numel(self, name: str) -> int:
        return self._totals[name].numel()

    def total(self, name: str) -> Tensor:
        """Σ_n of one parameter so far, float64."""
        return self._totals[name]

    def begin_chunk(self, n: int) -> None:
        """Opens a chunk of n samples."""
        self.touched = False
        self._chunk = {
            name: torch.zeros(n, dtype=torch.float64, device=t.device)
            for name, t in self._totals.items()
        }

    @torch.no_grad()
    def add(self, name: str, block: Tensor, how: How, first: int = 0) -> None:
        """Adds contributions (m, *shape) of the chunk's samples from `first` on."""
        self.touched = True
        total = self._totals[name].view(-1)
        flat = block.reshape(len(block), -1)
        width = max(1, len(self._buffer) // len(flat))
        sums = self._chunk[name][first : first + len(flat)]
        for start in range(0, len(total), width):
            part = flat[:, start : start + width]
            values = self._buffer[: part.numel()].view(part.shape)
            _shape(values.copy_(part), how)
            total[start : start + width] += values.sum(0) if len(flat) > 1 else values[0]
            sums += values.sum(1)

    @torch.no_grad()
    def add_outer(self, name: str, left: Tensor, right: Tensor, how: How) -> None:
        """Adds outer products of left (n, rows) and right (n, columns), never formed."""
        self.touched = True
        a, b = (
            _shape(t.to(self._buffer.device, torch.float64, copy=True), how) for t in (left, right)
        )
        self._totals[name].addmm_(a.T, b)
        self._chunk[name] += a.sum(1) * b.sum(1)

    @torch.no_grad()
    def add_lookups(self, name: str, index: Tensor, values: Tensor, how: How) -> None:
        """Adds gradients of a table: (n, t) its rows and (n, t, d) what each adds to them."""
        self.touched = True
        total = self._totals[name]
        n, t = index.shape
        index = index.to(total.device)
        owner = torch.arange(n, device=index.device)[:, None].expand(n, t).reshape(-1)
        keys, place = torch.unique(index.reshape(-1) + owner * len(total), return_inverse=True)
        sums = torch.zeros(len(keys), values.shape[-1], dtype=torch.float64, device=total.device)
        sums.index_add_(0, place, values.reshape(n * t, -1).to(total.device, torch.float64))
        _shape(sums, how)
        total.index_add_(0, keys % len(total), sums)
        self._chunk[name].index_add_(0, keys // len(total), sums.sum(1))

    def end_chunk(self, weights: Tensor, where: Callable[[int], str]) -> None:
        """Closes a chunk after all its parameters were added.

        Args:
            weights: (n,) what each sample adds to the mean's denominator.
            where: Index in the chunk -> what to call that sample.

        Raises:
            NumericalError: A contribution that is not finite.
        """
        for layer, members in self._layers.items():
            values = torch.stack([self._chunk[name] for name in members]).sum(0).cpu()
            bad = (~values.isfinite()).nonzero()
            if len(bad):
                raise NumericalError(
                    f"the gradient of layer {layer} is not finite on {where(int(bad[0]))}",
                    hint="clcurv reads the weights as they are: check the checkpoint and the "
                    "inputs, or --dtype float64",
                )
            self._by_layer[layer].append(values)
        self._weights.append(weights.double().cpu())
        self._chunk = {}

    def means(self) -> dict[str, Tensor]:
        """Every parameter's mean, on the CPU; the sums are used up.

        Raises:
            NumericalError: No sample counts.
        """
        weight = float(torch.cat(self._weights).sum())
        if weight == 0:
            raise NumericalError("no term of the loss is scored: every target is ignored")
        totals, self._totals = self._totals, {}
        return {name: t.div_(weight).cpu() for name, t in totals.items()}

    def stderrs(self, numel: Mapping[str, int]) -> dict[str, float]:
        """Layer -> standard error of the mean importance of its elements.

        That of a ratio estimator Σv/Σw (Cochran 1977, section 2.11), where all weights are
        equal that of a mean; layers are left out where fewer than two samples count.
        """
        w = torch.cat(self._weights)
        n = int((w > 0).sum())
        found = {}
        for layer, parts in self._by_layer.items():
            v = torch.cat(parts) / sum(numel[name] for name in self._layers[layer])
            if n > 1:
                off = v - v.sum() / w.sum() * w
                found[layer] = math.sqrt(float(off.square().sum()) * n / (n - 1)) / float(w.sum())
        return found


def _shape(values: Tensor, how: How) -> Tensor:
    """|values| or their squares, in place."""
    if how == "abs":
        return values.abs_()
    return values.mul_(values) if how == "square" else values


class Quality:
    """Mean loss, accuracy and chance from the outputs that the importances are taken at.

    Args:
        objective: The loss.
        required: Whether labels must fit; if not (MAS needs none) all stay unknown.
    """

    def __init__(self, objective: Objective, *, required: bool) -> None:
        self._objective, self._required = token_objective(objective), required
        self._named = objective
        self._loss, self._hits, self._terms = 0.0, 0, 0
        self._labels: list[Tensor] = []
        self.notes: tuple[str, ...] = ()
        if isinstance(objective, UserObjective):
            self.notes = (f"loss and accuracy are not told by {objective.name}",)

    def check(self, output: Tensor, targets: Tensor) -> None:
        """Whether one raw output fits its targets.

        Raises:
            MismatchError: It does not, and must.
        """
        if not self.notes:
            self._guarded(lambda: self._named.rows(output, targets))

    @torch.no_grad()
    def add(self, rows: Tensor, targets: Tensor) -> None:
        """Outputs (n, T, C) and the targets they belong to."""
        if not self.notes:
            self._guarded(lambda: self._add(rows, targets))

    def _guarded(self, work: Callable[[], object]) -> None:
        try:
            work()
        except MismatchError as error:
            if self._required:
                raise
            self.notes = (f"loss and accuracy are unknown: {error}",)

    def _add(self, rows: Tensor, targets: Tensor) -> None:
        labels = aligned_labels(self._named, targets)
        if self._objective.name == "mse":
            rows, labels = self._objective.rows(rows, targets)
        else:
            rows, labels = self._objective.rows(rows, labels)
        self._loss += float(self._objective.per_term(rows, labels).double().sum())
        self._terms += len(rows)
        if not targets.is_floating_point():
            classes = targets if self._objective.name == "mse" else labels
            self._hits += int((rows.argmax(1) == classes).sum())
            self._labels.append(classes.cpu())

    @property
    def mean_loss(self) -> float | None:
        return None if self.notes or not self._terms else self._loss / self._terms

    @property
    def accuracy(self) -> float | None:
        return None if self.notes or not self._labels else self._hits / max(1, self._terms)

    @property
    def chance(self) -> float | None:
        """Accuracy of always guessing the commonest class."""
        if self.notes or not self._labels:
            return None
        labels = torch.cat(self._labels)
        labels = labels[labels != IGNORE_INDEX]
        if not len(labels):
            return None
        return float(torch.unique(labels, return_counts=True)[1].max()) / len(labels)
