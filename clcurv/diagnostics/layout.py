"""How a measurement is laid out in memory: micro-batches, kept graphs, waves of layers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from clcurv.curvature.operators import LayerParams
from clcurv.curvature.probe import Probe

CHUNKS = 16
SMALLEST_CHUNK = 8
EXPECTED_STEPS = 12
VECTORS_PER_STEP = 2  # a basis vector and its product


@dataclass(frozen=True)
class Layout:
    """How the work is laid out in memory.

    Attributes:
        chunk: Samples in a micro-batch.
        n_chunks: How many there are.
        kept: How many of their graphs stay in memory between passes.
        bytes_graph: Of one micro-batch's graph.
        bytes_basis: Of the Lanczos bases, at the expected number of steps.
        bytes_total: Of everything at the peak.
    """

    chunk: int
    n_chunks: int
    kept: int
    bytes_graph: int
    bytes_basis: int
    bytes_total: int


def default_chunk(n: int) -> int:
    """Samples in a micro-batch: a sixteenth of the sample, so that there is a spread to see."""
    return max(SMALLEST_CHUNK, math.ceil(n / CHUNKS))


def lay_out(
    n: int, layers: LayerParams, trial: Probe, *, batch_size: int | None, budget: int
) -> Layout:
    """Fits the work into a memory budget.

    Args:
        n: Samples.
        layers: The layers' parameters.
        trial: What a sample's graph takes.
        batch_size: Samples in a micro-batch as asked for; None chooses.
        budget: Bytes for graphs and bases together.
    """
    largest = max(1, budget // 2 // trial.bytes_per_sample)
    chunk = min(n, batch_size or min(default_chunk(n), largest))
    count = math.ceil(n / chunk)
    graph = chunk * trial.bytes_per_sample
    wave = max(sum(basis_bytes(p) for p in w.values()) for w in waves(layers, budget))
    kept = max(0, min(count, (budget - wave) // graph))
    return Layout(
        chunk=chunk,
        n_chunks=count,
        kept=kept,
        bytes_graph=graph,
        bytes_basis=wave,
        # One graph more than is kept while a pass rebuilds the others.
        bytes_total=wave + graph * min(count, kept + 1),
    )


def basis_bytes(params: Sequence[Tensor]) -> int:
    """Memory of one layer's search at the expected number of steps."""
    size = sum(p.numel() * p.element_size() for p in params)
    return size * EXPECTED_STEPS * VECTORS_PER_STEP


def waves(layers: LayerParams, budget: int) -> Iterator[LayerParams]:
    """Layers in groups, shallow to deep, whose bases fit in half the budget together.

    Layers that advance together share every graph; a network whose bases do not fit is measured
    wave by wave, with graphs that start at the wave's first layer.
    """
    wave: dict[str, Sequence[nn.Parameter]] = {}
    taken = 0
    for name, params in layers.items():
        need = basis_bytes(params)
        if wave and taken + need > budget // 2:
            yield wave
            wave, taken = {}, 0
        wave[name] = params
        taken += need
    if wave:
        yield wave
