"""Which rows to draw: a seeded, class-balanced choice, and the digest of what was drawn."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor


def balanced_quotas(counts: Mapping[int, int], n: int, order: Sequence[int]) -> dict[int, int]:
    """How many of `n` samples each class gives, as even as the classes' sizes allow.

    Args:
        counts: Class id -> samples there are.
        n: Samples wanted.
        order: Class ids; the first ones get the samples left over by an even division.

    Returns:
        Class id -> quota. Two classes differ by more than one only when the smaller
        quota is all that its class has.
    """
    quotas = dict.fromkeys(order, 0)
    left = min(n, sum(counts.values()))
    while left:
        open_classes = [c for c in order if quotas[c] < counts[c]]
        share = max(left // len(open_classes), 1)
        for class_id in open_classes[:left]:
            more = min(share, counts[class_id] - quotas[class_id], left)
            quotas[class_id] += more
            left -= more
    return quotas


def draw_rows(
    classes: Sequence[int] | None,
    available: int,
    n: int,
    *,
    seed: int,
    without: frozenset[int] = frozenset(),
) -> list[int]:
    """Row numbers of a seeded sample, in a seeded order.

    The rows of one class are always taken in the same seeded order, so leaving rows out
    (`without`) only replaces these and keeps the rest of the draw.

    Args:
        classes: Class id of every row; None draws without balancing.
        available: Number of rows.
        n: Rows wanted; fewer are returned when there are fewer.
        seed: Of the draw.
        without: Rows that must not be drawn.
    """
    rng = np.random.default_rng(seed)
    priority = rng.permutation(available)
    if classes is None:
        chosen = [int(row) for row in priority if int(row) not in without][:n]
    else:
        ids = np.asarray(classes)
        present = [int(c) for c in np.unique(ids)]
        queues: dict[int, list[int]] = {c: [] for c in present}
        for row in priority:
            if int(row) not in without:
                queues[int(ids[row])].append(int(row))
        order = [present[i] for i in rng.permutation(len(present))]
        quotas = balanced_quotas({c: len(q) for c, q in queues.items()}, n, order)
        chosen = [row for c in order for row in queues[c][: quotas[c]]]
    # A fresh order, so that every micro-batch is itself a random sample of the whole: the
    # spread between micro-batches is read as a standard error.
    position = np.empty(available, dtype=np.int64)
    position[rng.permutation(available)] = np.arange(available)
    return sorted(chosen, key=lambda row: int(position[row]))


def sample_digest(inputs: Tensor | Mapping[str, Tensor], targets: Tensor) -> str:
    """sha256 (hex) over names, dtypes, shapes and bytes of inputs and targets."""
    hasher = hashlib.sha256()
    named = {"inputs": inputs} if isinstance(inputs, Tensor) else dict(inputs)
    for name, tensor in [*sorted(named.items()), ("targets", targets)]:
        array = tensor.detach().cpu().contiguous()
        hasher.update(f"{name}|{array.dtype}|{tuple(array.shape)}|".encode())
        hasher.update(array.reshape(-1).view(torch.uint8).numpy().tobytes())
    return hasher.hexdigest()
