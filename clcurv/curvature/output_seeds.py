"""What every importance is a pull-back of: cotangents on a sample's rows of outputs.

A sample's output is brought to rows (T, C): one row for a classification or regression, one row
a position for token losses. Its importance is |Jᵀw| or Σ_k (Jᵀw_k)² with J the Jacobian of the
rows in the parameters, and the w_k as below.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from clcurv.curvature.objective import IGNORE_INDEX, Objective
from clcurv.errors import UsageError

Estimator = Literal["mas", "fisher", "fisher-sampled", "fisher-empirical"]
MAX_CLASSES = 20


def aligned(objective: Objective, output: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs (n, T, C) and labels (n, T), nothing left out; (n, 1, k) and the targets for mse.

    Positions that are not scored keep the label -100. Only shapes are looked at.
    """
    n = len(output)
    labels = aligned_labels(objective, targets)
    if objective.name == "mse" or targets.ndim == 1 or targets.is_floating_point():
        return output.reshape(n, 1, -1), labels
    if objective.name == "next-token":
        output = output[:, :-1]
    elif output.shape[:-1] != targets.shape:
        output = output.movedim(1, -1)  # dense prediction, classes second
    return output.reshape(n, -1, output.shape[-1]), labels


def aligned_labels(objective: Objective, targets: Tensor) -> Tensor:
    """Labels (n, T) as the rows of `aligned` have them; for mse (n, k), or (n, 1) class ids."""
    if objective.name == "next-token" and targets.ndim > 1:
        targets = targets[:, 1:]
    return targets.reshape(len(targets), -1)


@dataclass(frozen=True)
class Seeds:
    """The cotangents of one estimator.

    - ``mas``: w = 2f on the scored rows, the slope of ‖f(x)‖² (Aljundi et al. 2018, eq. 2). What
      f(x) is for a token loss: all logits of one sequence at the positions that are scored
      (labels are used for nothing else), so padding does not count.
    - ``fisher``: Σ_c p_c (∇log p_c)² is the diagonal of Jᵀ(diag p − ppᵀ)J. With an orthonormal
      basis q_1..q_{C−1} of what is orthogonal to √p, diag p − ppᵀ = Σ_k w_k w_kᵀ for
      w_k = √p∘q_k: C − 1 backward passes do what the definition does with C. For squared error,
      read as a Gaussian's likelihood: w_k = √(2/k) e_k.
    - ``fisher-sampled``: w = p − y for one y drawn from p. Over a sequence the draws are
      independent, so the cross terms of its squared sum vanish in expectation.
    - ``fisher-empirical``: w = p − y for the label given; a sequence's gradients are summed
      before squaring.

    Attributes:
        estimator: As above.
        objective: Whose likelihood the Fishers are of.
    """

    estimator: Estimator
    objective: Objective

    def __post_init__(self) -> None:
        if self.estimator not in get_args(Estimator):
            raise UsageError(
                f"unknown estimator {self.estimator!r}", hint=" | ".join(get_args(Estimator))
            )

    @property
    def squared(self) -> bool:
        """Whether gradients are squared (else their absolute values are taken)."""
        return self.estimator != "mas"

    def count(self, rows: Tensor) -> int:
        """Backward passes a sample takes, for rows (..., T, C)."""
        if self.estimator != "fisher":
            return 1
        positions, width = rows.shape[-2:]
        return int(positions * (width if self.objective.name == "mse" else max(1, width - 1)))

    def noise(self, n: int, rows: Tensor, seed: int) -> Tensor:
        """(N, T) uniform or (N, 1, k) normal numbers, by sample: no batch size changes them."""
        generator = torch.Generator().manual_seed(seed)
        if self.estimator != "fisher-sampled":
            return torch.zeros(n, 1)
        if self.objective.name == "mse":
            return torch.randn(n, 1, rows.shape[-1], generator=generator)
        return torch.rand(n, rows.shape[-2], generator=generator, dtype=torch.float64)

    def weights(self, targets: Tensor) -> Tensor:
        """(n,) float64, by how much every sample counts in the mean.

        Fishers are means over loss terms, as the loss is; MAS is one over samples with an output.
        """
        if self.objective.name == "mse" or targets.is_floating_point():
            return torch.ones(len(targets), dtype=torch.float64)
        labels = aligned_labels(self.objective, self.readable(targets))
        scored = (labels != IGNORE_INDEX).sum(1)
        return (scored > 0 if self.estimator == "mas" else scored).double().cpu()

    def readable(self, targets: Tensor) -> Tensor:
        """Targets as `of` may read them: MAS of one output a sample looks at none."""
        single = self.estimator == "mas" and targets.ndim == 1
        return torch.zeros_like(targets) if single else targets

    def of(self, rows: Tensor, labels: Tensor, noise: Tensor) -> Iterator[Tensor]:
        """All cotangents (T, C) of one sample, see `nth`."""
        for k in range(self.count(rows)):
            yield self.nth(k, rows, labels, noise)

    def nth(self, k: int, rows: Tensor, labels: Tensor, noise: Tensor) -> Tensor:
        """The k-th cotangent (T, C) of one sample's rows (T, C); safe under `torch.vmap`.

        Args:
            k: From 0 to `count` - 1.
            rows: One sample's outputs, see `aligned`.
            labels: (T,) class ids or -100; for mse (k,) targets, or (1,) class ids.
            noise: The sample's row of `noise`.
        """
        width = rows.shape[-1]
        token = self.objective.name != "mse" and not labels.is_floating_point()
        kept = (labels != IGNORE_INDEX).to(rows.dtype)[:, None] if token else torch.ones_like(rows)
        scale = self.objective.scale
        if self.estimator == "mas":
            return 2 * rows * kept
        if self.objective.name == "mse":
            return self._gaussian(k, rows, labels, noise)
        if self.estimator == "fisher":
            if width == 1:
                return torch.zeros_like(rows)
            t, axis = divmod(k, width - 1)
            at = torch.arange(len(rows), device=rows.device)[:, None] == t
            return math.sqrt(scale) * _root(rows[t].softmax(-1), axis) * kept * at
        p = rows.softmax(-1)
        if self.estimator == "fisher-sampled":
            scale = math.sqrt(scale)
            labels = (p.double().cumsum(-1) < noise[:, None]).sum(-1).clamp(max=width - 1)
        return scale * (p - _one_hot(labels, width, p)) * kept

    def _gaussian(self, k: int, rows: Tensor, targets: Tensor, noise: Tensor) -> Tensor:
        width = rows.shape[-1]
        unit = math.sqrt(2 * self.objective.scale / width)
        if self.estimator == "fisher-sampled":
            return unit * noise.to(rows.dtype)
        if self.estimator == "fisher":
            at = torch.arange(width, device=rows.device) == k
            return unit * at.to(rows.dtype).expand_as(rows)
        if not targets.is_floating_point():
            targets = _one_hot(targets, width, rows)
        return 2 * self.objective.scale / width * (rows - targets.reshape(rows.shape))


def _root(p: Tensor, axis: int) -> Tensor:
    """(C,): w_k = √p∘q_k, with q_k from the Householder reflection of √p to the last axis."""
    root = p.sqrt()
    place = torch.arange(len(p), device=p.device)
    # Adding keeps the reflection's vector from cancelling.
    tail = (p + root * (place == len(p) - 1)) / (1 + root[-1])
    return root[axis] * ((place == axis).to(p.dtype) - tail)


def _one_hot(labels: Tensor, width: int, like: Tensor) -> Tensor:
    return (torch.arange(width, device=labels.device) == labels[..., None]).to(like.dtype)


def token_objective(objective: Objective) -> Objective:
    """The loss for rows that `aligned` has already shifted."""
    return objective if objective.name == "mse" else replace(objective, name="cross-entropy")
