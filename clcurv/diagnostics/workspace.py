"""A network lent for measuring its whole curvature, and how the work fits into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from clcurv.curvature.numerics import borrowed, exact_numerics
from clcurv.curvature.objective import Objective, forward
from clcurv.curvature.operators import BlockOperator, BuildGraph, vectors_together
from clcurv.curvature.probe import PROBE_SAMPLES, Probe, probe
from clcurv.curvature.whole import WHOLE
from clcurv.diagnostics.sensitivity import DTYPES, OPERATORS, move_samples
from clcurv.diagnostics.survey import within_memory
from clcurv.errors import ResourceError, UsageError
from clcurv.inputs.dataset import Batch, Samples
from clcurv.runtime import free_bytes

Progress = Callable[[str, int, int], None]
Params = Mapping[str, Sequence[nn.Parameter]]

GRAM_MOST = 2048  # outputs for which the Gram matrix is chosen by itself
GRAM_WORK = 4e11  # and multiplications that it may take: half a minute on one core
CHUNK_FLOPS = 2e9  # of one product with a micro-batch: below, fixed costs begin to count
CHUNK_LEAST = 64


@dataclass
class Work:
    """A network and a sample in measuring state, and how they fit into memory.

    Attributes:
        parameters: All of them, once each.
        outputs: Rows of the loss-weighted Jacobian: terms times classes, or terms.
    """

    model: nn.Module
    parameters: list[nn.Parameter]
    samples: Samples
    objective: Objective
    operator: str
    build: BuildGraph
    trial: Probe
    budget: int
    batch_size: int | None
    outputs: int

    @property
    def dimension(self) -> int:
        return sum(p.numel() for p in self.parameters)

    @property
    def itemsize(self) -> int:
        return self.parameters[0].element_size()

    @property
    def noise(self) -> float:
        return self.trial.noise[WHOLE]

    @property
    def gram_fits(self) -> bool:
        """Twice the rows, while they are put together, in half the budget."""
        return 4 * self.outputs * self.dimension * self.itemsize <= self.budget

    @property
    def gram_small(self) -> bool:
        """Whether the Gram matrix is the cheap way."""
        few = self.outputs <= GRAM_MOST and self.outputs**2 * self.dimension <= GRAM_WORK
        return few and self.gram_fits

    @property
    def chunk(self) -> int:
        """Samples in a micro-batch."""
        by_time = max(CHUNK_LEAST, int(CHUNK_FLOPS / max(1.0, self.trial.product_flops[WHOLE])))
        by_memory = max(1, self.budget // 4 // self.trial.bytes_per_sample)
        return min(len(self.samples), self.batch_size or min(by_time, by_memory))

    def chunks(self) -> list[Batch]:
        return self.samples.split(self.chunk)

    def operate(self, bases: int = 0) -> BlockOperator:
        """The operator, keeping what graphs fit beside so many bytes of bases."""
        chunks = self.chunks()
        graph = self.chunk * self.trial.bytes_per_sample
        spare = self.budget - bases
        together = vectors_together(
            self.parameters[0].device, self.chunk * self.trial.product_flops[WHOLE]
        )
        return BlockOperator(
            self.build,
            self.model,
            {WHOLE: self.parameters},
            chunks,
            self.objective,
            keep_graphs=max(0, min(len(chunks), spare // graph)),
            # Each of them needs about what a graph needs.
            together=max(1, min(together, spare // graph)),
        )

    def cost(self, used: BlockOperator) -> float:
        """What an operator's work amounts to, in gradients over the sample."""
        flops = (
            used.graph_samples * self.trial.graph_flops
            + used.product_samples[WHOLE] * self.trial.product_flops[WHOLE]
        )
        return flops / (self.trial.gradient_flops * len(self.samples))

    def gram_cost(self) -> float:
        """One backward pass a row, which is two thirds of a gradient; and the forward passes."""
        return (1 + 2 * self.outputs / len(self.samples)) / 3


@contextmanager
def prepared(
    model: nn.Module,
    params: Params,
    samples: Samples,
    objective: Objective,
    *,
    operator: str,
    dtype: str,
    device: str,
    seed: int,
    batch_size: int | None,
    memory: int | None,
) -> Iterator[Work]:
    """Lends the model, moves the sample and tries a product; takes and raises as its callers."""
    if operator not in OPERATORS or dtype not in DTYPES:
        raise UsageError(f"unknown operator {operator!r} or dtype {dtype!r}")
    flat = list({id(p): p for group in params.values() for p in group}.values())
    if not flat:
        raise UsageError("no parameters to measure", hint="--layers block takes them all")
    build = OPERATORS[operator]
    with exact_numerics(model), borrowed(model, flat, dtype=DTYPES[dtype], device=device):
        there = move_samples(samples, device, DTYPES[dtype])
        trial = within_memory(
            lambda size: probe(
                build, model, {WHOLE: flat}, there.split(size)[0], objective, seed=seed
            ),
            PROBE_SAMPLES,
        )
        yield Work(
            model=model,
            parameters=flat,
            samples=there,
            objective=objective,
            operator=operator,
            build=build,
            trial=trial,
            budget=free_bytes(device) // 2 if memory is None else memory,
            batch_size=batch_size,
            outputs=_outputs(model, there, objective, operator),
        )


@torch.no_grad()
def _outputs(model: nn.Module, samples: Samples, objective: Objective, operator: str) -> int:
    """Rows of the Gram matrix; 0 for the Hessian, which has none."""
    if operator == "hessian":
        return 0
    first = samples.split(1)[0]
    width = forward(model, first).shape[-1]
    if objective.name == "mse":
        width = forward(model, first).numel()
    elif samples.targets.ndim > 1 and objective.name == "cross-entropy":
        width = objective.rows(forward(model, first), first.targets)[0].shape[1]
    terms = sum(objective.terms(b.targets) for b in samples.split(len(samples)))
    return terms * (1 if operator == "empirical-fisher" else width)


def wave_of(work: Work, probes: int, steps: int) -> tuple[int, int]:
    """How many probes advance together, and the bytes of their bases.

    Graphs first: kept ones save a forward and a backward pass a product. Where not all can be
    kept, more probes at once share the rebuilt ones.

    Raises:
        ResourceError: Not even one basis fits.
    """
    # Beside the basis: the vector, its product, and the sum over the micro-batches.
    one = (steps + 4) * work.dimension * work.itemsize
    graph = work.chunk * work.trial.bytes_per_sample
    graphs = graph * -(-len(work.samples) // work.chunk)
    if graphs + one <= work.budget:
        fits = (work.budget - graphs) // one
    else:
        fits = max(1, (work.budget - graph) // one)
    if one > work.budget:
        most = work.budget // (work.dimension * work.itemsize) - 4
        raise ResourceError(
            f"{steps} Lanczos vectors of {work.dimension} parameters take {one / 1e9:.1f} GB, "
            f"and {work.budget / 1e9:.1f} GB may be used",
            hint=f"--lanczos-steps {most}" if most >= 2 else "--layers with a part of the layers",
        )
    return min(probes, fits), min(probes, fits) * one


def resolution(work: Work, scale: float) -> float:
    """Size of rounding in an eigenvalue, the largest of which is `scale`."""
    return max(work.noise, 4 * float(torch.finfo(work.parameters[0].dtype).eps) * scale)
