"""The spectrum of one task's loss at given parameters, exactly or by stochastic quadrature."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clcurv.curvature.objective import Objective
from clcurv.curvature.operators import out_of_memory
from clcurv.curvature.quadrature import Tridiagonal, lanczos, probe_vectors, weighted_trace
from clcurv.curvature.whole import WHOLE, dense, gram, gram_rows, products_with
from clcurv.diagnostics.eps_rank import eps_grid, exact_rank, quadrature_rank
from clcurv.diagnostics.spectrum import EpsRank, Quadrature, SpectrumMethod, TaskSpectrum
from clcurv.diagnostics.workspace import Params, Progress, Work, prepared, resolution, wave_of
from clcurv.errors import ResourceError, UsageError
from clcurv.inputs.dataset import Samples

Method = Literal["auto", "lanczos-quadrature", "dense", "gram"]

DENSE_MOST = 1024  # parameters for which the dense matrix is chosen by itself
END_TOL = 1e-2


def measure_spectrum(
    model: nn.Module,
    params: Params,
    samples: Samples,
    objective: Objective,
    *,
    operator: str = "hessian",
    dtype: str = "float32",
    device: str = "cpu",
    probes: int = 10,
    steps: int = 100,
    seed: int = 0,
    batch_size: int | None = None,
    memory: int | None = None,
    eps_fast: tuple[float, float] | None = None,
    eps_relative: float = 1e-2,
    method: Method = "auto",
    progress: Progress | None = None,
) -> TaskSpectrum:
    """Eigenvalues of the mean loss' curvature in all the parameters given, as one matrix.

    Args:
        model: Any module; it is used in eval mode and comes back as it was.
        params: Layer -> parameters; tied ones may be listed twice and count once.
        samples: The frozen sample.
        objective: The loss.
        operator: ``hessian`` | ``ggn`` | ``fisher`` | ``empirical-fisher``.
        dtype: ``float32`` | ``float64``.
        device: A torch device.
        probes: Random starts of the quadrature.
        steps: Lanczos steps from each.
        seed: Of the starts.
        batch_size: Samples in a micro-batch; None chooses.
        memory: Bytes for graphs and Lanczos bases; default half of what is free.
        eps_fast: (lower, upper) of `fast_band`, for the ε-rank of the fast modes.
        eps_relative: ε in parts of the largest |λ|.
        method: ``auto`` takes the Gram matrix where operator and size allow it, the dense matrix
            where there are few parameters, and the quadrature otherwise.
        progress: Called with (stage, done, total).

    Raises:
        UsageError: Unknown or unsuitable options, or no parameters.
        NumericalError: NaN, or a loss that is constant or not deterministic.
        ArchitectureError: An operation without a second derivative.
        ResourceError: Out of memory with micro-batches of one sample, or no room for the bases.
    """
    if probes < 1 or steps < 1:
        raise UsageError(f"{probes} probes of {steps} steps measure nothing", hint="--probes 10")
    if not 0 < eps_relative < 1:
        raise UsageError(f"a relative ε lies between 0 and 1, not at {eps_relative}")
    with prepared(
        model,
        params,
        samples,
        objective,
        operator=operator,
        dtype=dtype,
        device=device,
        seed=seed,
        batch_size=batch_size,
        memory=memory,
    ) as work:
        chosen = _choose(method, work)
        tell = progress or (lambda stage, done, total: None)
        try:
            if chosen == "lanczos-quadrature":
                return _by_quadrature(work, probes, steps, seed, eps_fast, eps_relative, tell)
            return _exactly(work, chosen, eps_fast, eps_relative, tell)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            raise ResourceError(
                "out of memory beside the micro-batches",
                hint="a lower --memory, fewer --lanczos-steps, or --layers with a part of them",
            ) from error


def _choose(method: Method, work: Work) -> SpectrumMethod:
    size, product = work.dimension, work.operator != "hessian"
    if method == "auto":
        if product and work.outputs <= size and work.gram_small:
            return "gram"
        return "dense" if size <= DENSE_MOST else "lanczos-quadrature"
    if method == "gram":
        if not product:
            raise UsageError(
                "the Gram matrix has the spectrum of the Gauss-Newton matrix, not of the Hessian",
                hint="--operator ggn",
            )
        if not work.gram_fits:
            raise ResourceError(
                f"the Jacobian of {work.outputs} outputs in {size} parameters does not fit",
                hint="--method lanczos, or fewer --samples",
            )
    elif method == "dense":
        if 24 * size**2 > work.budget:
            raise ResourceError(
                f"a dense matrix of {size} parameters does not fit",
                hint="--method lanczos, or --layers with a part of the layers",
            )
    elif method != "lanczos-quadrature":
        raise UsageError(f"unknown method {method!r}")
    return method


def _exactly(
    work: Work,
    method: SpectrumMethod,
    eps_fast: tuple[float, float] | None,
    eps_relative: float,
    tell: Progress,
) -> TaskSpectrum:
    size = work.dimension
    notes: tuple[str, ...] = ()
    tell(f"{method} matrix", 0, 1)
    if method == "dense":
        full = work.operate()
        values = eigenvalues(dense(full))
        cost, notes = work.cost(full), tuple(full.notes)
    else:
        rows = gram_rows(work.operator, work.model, work.parameters, work.chunks(), work.objective)
        values = eigenvalues(gram(rows))[-size:]
        cost = work.gram_cost()
    tell(f"{method} matrix", 1, 1)
    missing = size - len(values)
    low = min(float(values[0]), 0.0) if missing else float(values[0])
    high = float(values[-1])
    noise = resolution(work, max(abs(low), abs(high)))
    nodes = np.sort(np.append(values, np.zeros(min(1, missing))))
    weights = np.ones(len(nodes)) / size
    if missing:
        weights[int(np.searchsorted(nodes, 0.0))] = missing / size

    def count(eps: float, upper: float | None = None) -> EpsRank:
        return exact_rank(values, size, eps, upper=upper, noise=noise)

    return TaskSpectrum(
        operator=work.operator,
        method=method,
        n_parameters=size,
        lambda_max=high,
        lambda_min=low,
        lambda_max_residual=0.0,
        lambda_min_residual=0.0,
        lambda_min_converged=True,
        trace=float(values.sum()),
        trace_stderr=0.0,
        rank_fast=None if eps_fast is None else count(*eps_fast),
        rank_relative=count(eps_relative * max(abs(low), abs(high))),
        curve=tuple(count(e) for e in eps_grid(max(abs(low), abs(high)), noise)),
        quadrature=(Quadrature(tuple(nodes.tolist()), tuple(weights.tolist())),),
        probes=0,
        steps=0,
        noise=noise,
        cost_gradients=cost,
        notes=notes,
    )


def _by_quadrature(
    work: Work,
    probes: int,
    steps: int,
    seed: int,
    eps_fast: tuple[float, float] | None,
    eps_relative: float,
    tell: Progress,
) -> TaskSpectrum:
    size = work.dimension
    steps = min(steps, size)
    wave, bases = wave_of(work, probes, steps)
    full = work.operate(bases)
    runs: list[Tridiagonal] = []
    for first in range(0, probes, wave):
        which = range(first, min(probes, first + wave))

        def told(step: int, first: int = first, count: int = len(which)) -> None:
            tell("quadrature", first * steps + step * count, probes * steps)

        runs += lanczos(
            lambda v: products_with(full, v),
            probe_vectors(full.like(WHOLE), seed, which),
            steps,
            on_step=told,
        )
    full.release()
    ends = [run.ends() for run in runs]
    low, low_residual = min(end[0] for end in ends)
    high, high_residual = max(end[1] for end in ends)
    scale = max(abs(low), abs(high))
    noise = resolution(work, scale)
    trace, trace_error = weighted_trace([run.rule() for run in runs], size)

    def count(eps: float, upper: float | None = None) -> EpsRank:
        return quadrature_rank(runs, size, eps, steps=steps, upper=upper, noise=noise)

    return TaskSpectrum(
        operator=work.operator,
        method="lanczos-quadrature",
        n_parameters=size,
        lambda_max=high,
        lambda_min=low,
        lambda_max_residual=high_residual,
        lambda_min_residual=low_residual,
        lambda_min_converged=low_residual <= END_TOL * scale
        and any(run.ruled_out(low - END_TOL * scale, size) for run in runs),
        trace=trace,
        trace_stderr=trace_error,
        rank_fast=None if eps_fast is None else count(*eps_fast),
        rank_relative=count(eps_relative * scale),
        curve=tuple(count(e) for e in eps_grid(scale, noise)),
        quadrature=tuple(
            Quadrature(tuple(r.nodes.tolist()), tuple(r.weights.tolist()))
            for r in (run.rule() for run in runs)
        ),
        probes=probes,
        steps=steps,
        noise=noise,
        cost_gradients=work.cost(full),
        notes=tuple(dict.fromkeys(full.notes)),
    )


def eigenvalues(matrix: Tensor) -> NDArray[np.float64]:
    """Ascending."""
    found: NDArray[np.float64] = torch.linalg.eigvalsh(matrix).numpy()
    return found
