"""Measures every layer's sensitivity: the way from a model and a sample to a `KappaResult`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from clcurv.curvature.fisher import EmpiricalFisherGraph
from clcurv.curvature.ggn import GGNGraph
from clcurv.curvature.hessian import HessianGraph
from clcurv.curvature.lanczos import Extremes
from clcurv.curvature.numerics import borrowed, exact_numerics
from clcurv.curvature.objective import Objective
from clcurv.curvature.operators import (
    BlockOperator,
    BuildGraph,
    LayerParams,
    vectors_together,
)
from clcurv.curvature.probe import PROBE_SAMPLES, Probe, probe
from clcurv.curvature.search import block_extremes
from clcurv.diagnostics.coverage import part_of, unmet_layers
from clcurv.diagnostics.crosscheck import pyhessian_check
from clcurv.diagnostics.judgement import condition, layer_sensitivity
from clcurv.diagnostics.kappa import KappaResult
from clcurv.diagnostics.layout import Layout, lay_out, waves
from clcurv.diagnostics.survey import (
    Survey,
    gradient_squares,
    refuse_certainty,
    survey,
    within_memory,
)
from clcurv.errors import UsageError
from clcurv.inputs.dataset import Batch, Samples
from clcurv.inputs.layers import Layer
from clcurv.runtime import free_bytes

Progress = Callable[[str, int, int], None]

OPERATORS: dict[str, BuildGraph] = {
    "hessian": HessianGraph,
    "ggn": GGNGraph,
    # Equal to the Gauss-Newton matrix for every loss here, see clcurv.curvature.fisher.
    "fisher": GGNGraph,
    "empirical-fisher": EmpiricalFisherGraph,
}
DTYPES = {"float32": torch.float32, "float64": torch.float64}
MAX_STEPS = 60


class PartialMeasurement(KeyboardInterrupt):
    """The run was interrupted; `result` holds what was known by then.

    `document` is the caller's place for the report made of it.
    """

    def __init__(self, result: KappaResult) -> None:
        super().__init__("interrupted")
        self.result = result
        self.document: object | None = None


def measure_kappa(
    model: nn.Module,
    layers: Sequence[Layer],
    samples: Samples,
    objective: Objective,
    *,
    operator: str = "hessian",
    dtype: str = "float32",
    device: str = "cpu",
    tol: float = 1e-2,
    max_steps: int = MAX_STEPS,
    seed: int = 0,
    batch_size: int | None = None,
    memory: int | None = None,
    lambda_min: bool = True,
    include_head: bool = False,
    cross_check: bool = False,
    new_task: Samples | None = None,
    progress: Progress | None = None,
) -> KappaResult:
    """Largest and smallest eigenvalue of every layer's block of the mean loss' curvature, and κ.

    Args:
        model: Any module; it is used in eval mode and comes back as it was.
        layers: From `clcurv.inputs.layers.discover_layers`.
        samples: The frozen sample.
        objective: The loss.
        operator: ``hessian`` | ``ggn`` | ``fisher`` | ``empirical-fisher``.
        dtype: ``float32`` | ``float64``.
        device: A torch device.
        tol: Relative error allowed on every s.
        max_steps: Products with all the data that a layer may take.
        seed: Of the starting vectors.
        batch_size: Samples in a micro-batch, which also is the unit of the standard errors.
            Default: a sixteenth of the sample, at least 8, less where memory asks for it.
        memory: Bytes for kept graphs; default half of what is free.
        lambda_min: Whether to pursue the smallest eigenvalues.
        include_head: Whether heads take part in κ.
        cross_check: Whether to ask PyHessian too.
        new_task: The next task's sample, for ‖g_ℓ‖².
        progress: Called with (stage, done, total).

    Raises:
        UsageError: An unknown operator or dtype, or no layer.
        NumericalError: NaN, or a loss that is constant or not deterministic.
        ArchitectureError: An operation without a second derivative.
        ResourceError: Out of memory with micro-batches of one sample.
        PartialMeasurement: Interrupted after the first pass.
    """
    started = time.perf_counter()
    tell = progress or (lambda stage, done, total: None)
    with _lent(model, layers, samples, operator, dtype, device) as (params, moved, build):
        seen = survey(model, moved, objective, tell)
        refuse_certainty(seen.mean_loss, objective.name, dtype)
        build = OPERATORS[operator]
        trial = _trial(build, model, params, moved, objective, seed)
        budget = _budget(memory, device)
        layout = lay_out(len(samples), params, trial, batch_size=batch_size, budget=budget)
        used = {n: p for n, p in params.items() if n not in trial.unused}
        run = _Run(build, model, objective, moved, seen, layout, trial)
        numbers: dict[str, Extremes] = {}

        def finish(partial: Mapping[str, Extremes], notes: Sequence[str] = ()) -> KappaResult:
            sensitivities = [
                layer_sensitivity(
                    layer,
                    numel=sum(p.numel() for p in params[layer.name]),
                    found=partial.get(layer.name),
                    weights=run.weights,
                    unused=layer.name in trial.unused,
                    noise=trial.noise[layer.name],
                    lambda_min=lambda_min,
                )
                for layer in layers
            ]
            shares = {name: e.shares.tolist() for name, e in partial.items()}
            return KappaResult(
                layers=tuple(sensitivities),
                **condition(sensitivities, shares, run.weights, include_head=include_head),
                include_head=include_head,
                mean_loss=seen.mean_loss,
                accuracy=seen.accuracy,
                chance=seen.chance,
                n_terms=seen.n_terms,
                n_batches=len(run.chunks),
                batch_size=layout.chunk,
                cost_gradients=run.cost,
                operator=operator,
                loss=objective.name,
                dtype=dtype,
                device=str(device),
                tol=tol,
                max_steps=max_steps,
                seed=seed,
                n_samples=len(samples),
                seconds=time.perf_counter() - started,
                notes=tuple(dict.fromkeys(notes)),
            )

        try:
            for wave in waves(used, budget):
                numbers |= run.search(
                    wave,
                    tol=tol,
                    max_steps=max_steps,
                    seed=seed,
                    bottom=lambda_min,
                    tell=tell,
                    done_before=len(numbers),
                    total=len(used),
                )
            result = finish(numbers, run.notes)
            if cross_check:
                checks = within_memory(
                    lambda size: pyhessian_check(
                        model, params, result.layers, moved.split(size), objective, tell
                    ),
                    layout.chunk,
                )
                result = replace(result, cross_check=checks)
            if new_task is not None:
                grads = gradient_squares(
                    model,
                    params,
                    move_samples(new_task, device, DTYPES[dtype]),
                    layout.chunk,
                    objective,
                )
                result = replace(result, new_task_grad_sq=grads)
        except KeyboardInterrupt:
            known = numbers | run.latest
            if not known:
                raise
            raise PartialMeasurement(
                finish(known, ["interrupted: the report is partial"])
            ) from None
    return replace(result, seconds=time.perf_counter() - started)


def plan_kappa(
    model: nn.Module,
    layers: Sequence[Layer],
    samples: Samples,
    objective: Objective,
    *,
    operator: str = "hessian",
    dtype: str = "float32",
    device: str = "cpu",
    tol: float = 1e-2,
    seed: int = 0,
    batch_size: int | None = None,
    memory: int | None = None,
) -> Layout:
    """How `measure_kappa` would lay the work out; takes and raises the same."""
    del tol  # changes the time, not the memory laid out for it
    with _lent(model, layers, samples, operator, dtype, device) as (params, moved, build):
        trial = _trial(build, model, params, moved, objective, seed)
        budget = _budget(memory, device)
        return lay_out(len(samples), params, trial, batch_size=batch_size, budget=budget)


def _trial(
    build: BuildGraph,
    model: nn.Module,
    params: LayerParams,
    samples: Samples,
    objective: Objective,
    seed: int,
) -> Probe:
    return within_memory(
        lambda size: probe(build, model, params, samples.split(size)[0], objective, seed=seed),
        PROBE_SAMPLES,
    )


def _budget(memory: int | None, device: str) -> int:
    return memory if memory is not None else free_bytes(device) // 2


@contextmanager
def _lent(
    model: nn.Module,
    layers: Sequence[Layer],
    samples: Samples,
    operator: str,
    dtype: str,
    device: str,
) -> Iterator[tuple[dict[str, list[nn.Parameter]], Samples, BuildGraph]]:
    """The model in measuring state, with its layers' parameters and the sample beside it."""
    if operator not in OPERATORS or dtype not in DTYPES:
        raise UsageError(f"unknown operator {operator!r} or dtype {dtype!r}")
    if not layers:
        raise UsageError("no layers to measure", hint="--layers block takes them all")
    params = parameters_of(model, layers)
    flat = [p for group in params.values() for p in group]
    with (
        exact_numerics(model),
        borrowed(model, flat, dtype=DTYPES[dtype], device=device),
    ):
        yield params, move_samples(samples, device, DTYPES[dtype]), OPERATORS[operator]


class _Run:
    """One measurement: the sample, its operators and what they have cost so far."""

    def __init__(
        self,
        build: BuildGraph,
        model: nn.Module,
        objective: Objective,
        samples: Samples,
        survey: Survey,
        layout: Layout,
        trial: Probe,
    ) -> None:
        self.build, self.model, self.objective = build, model, objective
        self.samples, self.survey, self.layout, self.trial = samples, survey, layout, trial
        self.chunks = samples.split(layout.chunk)
        self.weights = [objective.terms(c.targets) / survey.n_terms for c in self.chunks]
        self.cost = 0.0
        self.notes: list[str] = []
        self.latest: dict[str, Extremes] = {}

    def search(
        self,
        wave: LayerParams,
        *,
        tol: float,
        max_steps: int,
        seed: int,
        bottom: bool,
        tell: Progress,
        done_before: int,
        total: int,
    ) -> dict[str, Extremes]:
        full = self._operator(wave, self.chunks, self.layout.kept)
        part = part_of(self.samples, self.survey.scores)
        scout, unmet = None, frozenset[str]()
        if part is not None:
            chunks = part.split(self.layout.chunk)
            unmet, read = self._unmet(wave, part)
            scout = self._operator(wave, chunks, min(len(chunks), self.layout.kept))
            self.cost += len(part) / len(self.samples) + read

        def on_pass(stage: str, states: Mapping[str, Extremes], done: int) -> None:
            if stage != "scout":
                self.latest = dict(states)
            tell(stage, done_before + done, total)

        try:
            return block_extremes(
                full,
                scout,
                tol=tol,
                max_steps=max_steps,
                seed=seed,
                bottom=bottom,
                unmet=unmet,
                on_pass=on_pass,
            )
        finally:
            for used in (full, scout):
                if used is not None:
                    self._account(used)

    def _operator(self, wave: LayerParams, chunks: Sequence[Batch], kept: int) -> BlockOperator:
        flops = [self.trial.product_flops[name] for name in wave]
        together = vectors_together(
            next(iter(wave.values()))[0].device, max(map(len, chunks)) * statistics.median(flops)
        )
        return BlockOperator(
            self.build,
            self.model,
            wave,
            chunks,
            self.objective,
            keep_graphs=kept,
            # Each vector of a pass needs about what a graph needs.
            together=max(1, min(together, self.layout.kept)),
        )

    def _unmet(self, wave: LayerParams, part: Samples) -> tuple[frozenset[str], bool]:
        return within_memory(
            lambda size: unmet_layers(
                self.model, wave, part.split(size), self.samples.split(size), self.objective
            ),
            self.layout.chunk,
        )

    def _account(self, used: BlockOperator) -> None:
        flops = used.graph_samples * self.trial.graph_flops + sum(
            count * self.trial.product_flops[name] for name, count in used.product_samples.items()
        )
        self.cost += flops / (self.trial.gradient_flops * len(self.samples))
        self.notes += used.notes


def parameters_of(model: nn.Module, layers: Sequence[Layer]) -> dict[str, list[nn.Parameter]]:
    """Layer name -> its parameters, tied ones once."""
    named = dict(model.named_parameters(remove_duplicate=False))
    found: dict[str, list[nn.Parameter]] = {}
    for layer in layers:
        unique = {id(named[name]): named[name] for name in layer.param_names}
        found[layer.name] = list(unique.values())
    return found


def move_samples(samples: Samples, device: str, dtype: torch.dtype) -> Samples:
    """The sample on the device, floating tensors in the measurement's precision."""

    def move(t: Tensor) -> Tensor:
        return t.to(device=device, dtype=dtype if t.is_floating_point() else None)

    inputs = samples.inputs
    return replace(
        samples,
        inputs=move(inputs)
        if isinstance(inputs, Tensor)
        else {k: move(v) for k, v in inputs.items()},
        targets=move(samples.targets),
    )
