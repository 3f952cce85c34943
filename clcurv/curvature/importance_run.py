"""One measurement of importances: the sample in chunks, the fastest way that is right."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from clcurv.curvature.batchwise import TRAINS, Compat, batch_contributions
from clcurv.curvature.importance_sums import How, Quality, Sums
from clcurv.curvature.layerwise import Layerwise
from clcurv.curvature.objective import forward
from clcurv.curvature.operators import first_bad_module, out_of_memory
from clcurv.curvature.output_seeds import Seeds, aligned
from clcurv.curvature.per_sample import (
    SAME,
    Contributions,
    PerSample,
    add_plainly,
    first_line,
    rows_of_batch,
    sample_bytes,
)
from clcurv.curvature.probe import NOT_THE_SAME
from clcurv.errors import ClcurvError, NumericalError, ResourceError, UsageError
from clcurv.inputs.dataset import Batch
from clcurv.inputs.execution import forward_faults
from clcurv.runtime import free_bytes

Progress = Callable[[str, int, int], None]

# What the graphs and gradients of one chunk may take: in sizes of the parameters, at least bytes.
CHUNK_PARAMETERS = 4
CHUNK_LEAST = 1 << 27
CHUNK_MOST = 128
TRIAL = 3  # samples that a fast way is held to plain autograd on
FORWARD = 1 / 3  # of a gradient's cost


@dataclass
class Run:
    """One measurement on a borrowed model; `batch` is the whole sample on its device."""

    model: nn.Module
    params: dict[str, nn.Parameter]
    seeds: Seeds
    batch: Batch
    sums: Sums
    quality: Quality
    seed: int
    tell: Progress
    notes: list[str] = field(default_factory=list)

    def per_sample(self, batch_size: int | None, memory: int | None, max_classes: int) -> float:
        """Adds all samples; returns the cost in gradients."""
        seeds, n = self.seeds, len(self.batch)
        first = rows_of_batch(self.batch, slice(0, 1))
        with forward_faults():
            graph, output = sample_bytes(self.model, list(self.params.values()), first)
            again = forward(self.model, first)
        if bool((again - output).abs().max() > SAME * output.abs().max()):
            raise NumericalError(
                "the output is not deterministic: it differs on the same sample in eval mode",
                hint=NOT_THE_SAME,
            )
        self.quality.check(output, first.targets)
        rows, _ = aligned(seeds.objective, output, first.targets)
        if seeds.estimator == "fisher":
            _refuse_many_classes(rows.shape[-1], max_classes)
        passes = seeds.count(rows)
        how: How = "abs" if not seeds.squared else "square" if passes == 1 else "as-is"
        weights = seeds.weights(self.batch.targets)
        noise = seeds.noise(n, rows, self.seed).to(rows.device)
        whole = Batch(self.batch.inputs, seeds.readable(self.batch.targets))
        by_layer = self._by_layer(whole, noise)
        left = self.params if by_layer is None else {x: self.params[x] for x in by_layer.left}
        engine = PerSample(self.model, left, seeds) if left else None
        size = min(n, batch_size or self._chunk(graph, left.values(), passes, memory))
        done = 0
        while done < n:
            part = slice(done, done + size)
            chunk = rows_of_batch(whole, part)
            self.sums.begin_chunk(len(chunk))
            found = self._tried(engine, by_layer, chunk, noise[part])
            if found is None:
                size = self._halved(size)
                continue
            grads, out = found
            del found
            self._refuse_bad_output(out, done)
            self.quality.add(out, self.batch.targets[part])
            for name in list(grads):
                self.sums.add(name, grads.pop(name), how)
            self.sums.end_chunk(weights[part], self._where(done))
            done = min(n, done + size)
            self.tell("importances", done, n)
        self.notes += [] if engine is None else engine.notes
        return FORWARD + (1 - FORWARD) * passes

    def _by_layer(self, whole: Batch, noise: Tensor) -> Layerwise | None:
        """The fastest way, once it has given a few samples what plain autograd gives them."""
        few = slice(0, TRIAL)
        trial = rows_of_batch(whole, few)
        if len(trial) < 2:
            return None
        try:
            layerwise = Layerwise(self.model, self.params, self.seeds, trial)
            covered = {name: self.params[name] for name in layerwise.covered}
            if not covered:
                return None
            alone = {name: [name] for name in covered}
            fast, plain = Sums(covered, alone), Sums(covered, alone)
            fast.begin_chunk(len(trial))
            layerwise.add(trial, noise[few], fast)
            add_plainly(self.model, covered, self.seeds, trial, noise[few], plain)
        except ClcurvError:
            raise
        except Exception as error:  # whatever a module's hooks or shapes make of it
            if out_of_memory(error):
                return None
            self.notes.append(f"not taken layer by layer: {first_line(error)}")
            return None
        off = sum(float((fast.total(x) - plain.total(x)).abs().sum()) for x in covered)
        if off > SAME * sum(float(plain.total(x).sum()) for x in covered):
            self.notes.append("not taken layer by layer: it differs from samples' own gradients")
            return None
        return layerwise

    def by_batch(self, compat: Compat, size: int) -> float:
        """Adds all batches as a convention has them; returns the cost in gradients."""
        with _own_randomness(self.seed, self.batch.targets.device, compat in TRAINS):
            for share in batch_contributions(
                self.model, self.params, self.seeds, self.batch, compat=compat, size=size
            ):
                self._refuse_bad_output(share.rows, share.first)
                self.quality.add(share.rows, share.targets)
                self.sums.begin_chunk(1)
                for name in list(share.grads):
                    self.sums.add(name, share.grads.pop(name)[None], "as-is")
                weight = torch.tensor([share.weight], dtype=torch.float64)
                self.sums.end_chunk(weight, self._where(share.first))
                self.tell("importances", share.first + len(share.targets), len(self.batch))
        return 1.0

    def _tried(
        self, engine: PerSample | None, by_layer: Layerwise | None, chunk: Batch, noise: Tensor
    ) -> Contributions | None:
        """What is still to be added; None where memory ran out, and then nothing was."""
        with forward_faults():
            try:
                found: Contributions | None = None if engine is None else engine(chunk, noise)
                if by_layer is None:
                    return found
                rows = by_layer.add(chunk, noise, self.sums)
                return ({} if found is None else found[0]), rows
            except RuntimeError as error:
                if not out_of_memory(error):
                    raise
        if self.sums.touched:
            raise ResourceError("out of memory", hint="--batch-size with fewer samples")
        return None

    def _halved(self, size: int) -> int:
        if size == 1:
            raise ResourceError(
                "out of memory with the gradient of a single sample",
                hint="smaller inputs, or --layers with a part of the layers",
            )
        self.notes.append(f"out of memory: chunks halved to {(size + 1) // 2} samples")
        return (size + 1) // 2

    def _chunk(self, graph: int, left: Iterable[Tensor], passes: int, memory: int | None) -> int:
        """Samples whose graphs fit, with the gradients of what is not taken layer by layer."""
        if memory is None:
            own = sum(p.numel() * p.element_size() for p in self.params.values())
            free = free_bytes(str(self.batch.targets.device)) // 2
            memory = min(free, max(CHUNK_LEAST, CHUNK_PARAMETERS * own))
        gradients = sum(p.numel() * (p.element_size() + (16 if passes > 1 else 0)) for p in left)
        sample = gradients + 2 * graph
        return max(1, min(CHUNK_MOST, memory // max(1, sample)))

    def _refuse_bad_output(self, rows: Tensor, first: int) -> None:
        finite = rows.reshape(len(rows), -1).isfinite().all(1)
        if bool(finite.all()):
            return
        at = first + int((~finite).nonzero()[0])
        where = first_bad_module(self.model, rows_of_batch(self.batch, slice(at, at + 1)))
        raise NumericalError(
            f"the output is not finite on sample {at}{where}",
            hint="clcurv reads the weights as they are: check the checkpoint and the inputs",
        )

    def _where(self, first: int) -> Callable[[int], str]:
        return lambda i: f"sample {first + i}"


def _refuse_many_classes(width: int, most: int) -> None:
    if width > most:
        raise UsageError(
            f"the exact Fisher of {width} outputs takes {width - 1} backward passes a sample "
            f"(at most {most} by default)",
            hint="--estimator fisher-sampled takes one",
        )


@contextmanager
def _own_randomness(seed: int, device: torch.device, wanted: bool) -> Iterator[None]:
    """Dropout of a convention that trains repeats, and leaves the caller's generators alone."""
    if not wanted:
        yield
        return
    with torch.random.fork_rng([device.index or 0] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
