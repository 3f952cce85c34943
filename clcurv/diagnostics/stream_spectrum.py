"""Everything that is measured on one task of a stream."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from clcurv.curvature.numerics import borrowed, exact_numerics
from clcurv.curvature.objective import Objective
from clcurv.curvature.user_objective import UserObjective
from clcurv.diagnostics.fast_modes import fast_band, measure_fast_modes
from clcurv.diagnostics.features import measure_features
from clcurv.diagnostics.sensitivity import DTYPES, move_samples
from clcurv.diagnostics.spectrum import FastModes, LayerFeatures, TaskDiagnosis
from clcurv.diagnostics.survey import gradient_squares, refuse_certainty, survey
from clcurv.diagnostics.task_spectrum import Method, measure_spectrum
from clcurv.errors import ClcurvError, UsageError
from clcurv.inputs.dataset import Samples

Progress = Callable[[str, int, int], None]
FIRST_ORDER_BATCH = 64


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How every task of a stream is measured.

    Attributes:
        layers: A regular expression that the names of the parameters measured must match; None
            for all.
        operator, dtype, device, probes, seed, batch_size, memory, method: As for
            `clcurv.diagnostics.task_spectrum.measure_spectrum`.
        lanczos_steps: Steps from each random vector.
        eps: ε relative to the largest |λ|.
        lr, steps, momentum, gamma: As for `clcurv.diagnostics.fast_modes.fast_band`; without `lr`
            and `steps` there are no fast modes.
    """

    layers: str | None = None
    operator: str = "hessian"
    method: Method = "auto"
    probes: int = 8
    lanczos_steps: int = 80
    eps: float = 1e-2
    lr: float | None = None
    steps: int | None = None
    momentum: float = 0.0
    gamma: float = 0.1
    dtype: str = "float32"
    device: str = "cpu"
    seed: int = 0
    batch_size: int | None = None
    memory: int | None = None

    @property
    def band(self) -> tuple[float, float] | None:
        """Where the modes are fast."""
        if self.lr is None or self.steps is None:
            return None
        return fast_band(self.lr, self.steps, self.momentum, self.gamma)


def parameters_matching(model: nn.Module, pattern: str | None) -> dict[str, list[nn.Parameter]]:
    """Name -> [parameter] of those whose name matches; all without a pattern.

    Raises:
        UsageError: None of them does, or the pattern is no regular expression.
    """
    try:
        chosen = {
            name: [p]
            for name, p in model.named_parameters()
            if pattern is None or re.search(pattern, name)
        }
    except re.error as error:
        raise UsageError(
            f"--layers {pattern}: not a regular expression: {error}", hint="--layers 'layer4|fc'"
        ) from None
    if not chosen:
        some = ", ".join(name for name, _ in list(model.named_parameters())[:3])
        raise UsageError(
            f"--layers {pattern}: no parameter matches",
            hint=f"parameters are called {some}, ...",
        )
    return chosen


def diagnose_task(
    model: nn.Module,
    samples: Samples,
    objective: Objective,
    settings: Settings,
    *,
    index: int,
    name: str,
    checkpoint: str,
    progress: Progress | None = None,
) -> TaskDiagnosis:
    """Spectrum, fast modes and features of the network that meets a task, on the task's data.

    Args:
        model: The parameters reached before the task; comes back as it was.
        samples: The task's.
        objective: The task's loss.
        settings: How.
        index: 1 for the first task.
        name: The task's.
        checkpoint: As shown to people.
        progress: Called with (stage, done, total).

    Raises:
        ClcurvError: As what it calls; see `failed_task` for a stream that goes on.
    """
    started = time.perf_counter()
    tell = progress or (lambda stage, done, total: None)
    params = parameters_matching(model, settings.layers)
    flat = [p for group in params.values() for p in group]
    dtype = DTYPES[settings.dtype]
    with exact_numerics(model), borrowed(model, flat, dtype=dtype, device=settings.device):
        moved = move_samples(samples, settings.device, dtype)
        seen = survey(model, moved, objective, tell)
        refuse_certainty(seen.mean_loss, objective.name, settings.dtype)
        size = settings.batch_size or FIRST_ORDER_BATCH
        squares = gradient_squares(model, {"all": flat}, moved, size, objective)
    spectrum = measure_spectrum(
        model,
        params,
        samples,
        objective,
        operator=settings.operator,
        dtype=settings.dtype,
        device=settings.device,
        probes=settings.probes,
        steps=settings.lanczos_steps,
        seed=settings.seed,
        batch_size=settings.batch_size,
        memory=settings.memory,
        eps_fast=settings.band,
        eps_relative=settings.eps,
        method=settings.method,
        progress=progress,
    )
    modes: FastModes | None = None
    unknown = isinstance(objective, UserObjective)
    if settings.lr is not None and settings.steps is not None and not unknown:
        modes = measure_fast_modes(
            model,
            params,
            samples,
            objective,
            lr=settings.lr,
            steps=settings.steps,
            momentum=settings.momentum,
            gamma=settings.gamma,
            lanczos_steps=settings.lanczos_steps,
            dtype=settings.dtype,
            device=settings.device,
            batch_size=settings.batch_size,
            memory=settings.memory,
            progress=progress,
        )
    tell("features", 0, 0)
    features, notes = _features(model, samples, settings)
    if unknown and settings.lr is not None:
        notes = (*notes, f"no residual in fast modes: {objective.name} states no Gauss-Newton form")
    cost = 4 / 3 + spectrum.cost_gradients + (0.0 if modes is None else modes.cost_gradients)
    return TaskDiagnosis(
        index=index,
        name=name,
        checkpoint=checkpoint,
        n_samples=len(samples),
        classes=tuple(sorted(samples.class_counts)),
        label_histogram=dict(samples.class_counts),
        digest=samples.digest,
        mean_loss=seen.mean_loss,
        accuracy=seen.accuracy,
        chance=seen.chance,
        spectrum=spectrum,
        fast_modes=modes,
        features=features,
        gradient_norm=squares["all"] ** 0.5,
        cost_gradients=cost,
        seconds=time.perf_counter() - started,
        notes=(*samples.notes, *spectrum.notes, *(modes.notes if modes else ()), *notes),
    )


def failed_task(
    error: ClcurvError, *, index: int, name: str, checkpoint: str, samples: Samples | None
) -> TaskDiagnosis:
    """The entry of a task that could not be measured; the reason is the error's one line."""
    return TaskDiagnosis(
        index=index,
        name=name,
        checkpoint=checkpoint,
        n_samples=0 if samples is None else len(samples),
        classes=() if samples is None else tuple(sorted(samples.class_counts)),
        label_histogram={} if samples is None else dict(samples.class_counts),
        digest="" if samples is None else samples.digest,
        mean_loss=None,
        accuracy=None,
        chance=None,
        spectrum=None,
        fast_modes=None,
        features=(),
        gradient_norm=None,
        cost_gradients=0.0,
        seconds=0.0,
        status="failed",
        reason=str(error),
    )


def _features(
    model: nn.Module, samples: Samples, settings: Settings
) -> tuple[tuple[LayerFeatures, ...], tuple[str, ...]]:
    """A network without hidden layers has no features to speak of; that is no fault."""
    try:
        found = measure_features(
            model,
            samples,
            batch_size=settings.batch_size or FIRST_ORDER_BATCH,
            device=settings.device,
            dtype=DTYPES[settings.dtype],
        )
    except UsageError as error:
        return (), (f"no effective rank: {error}",)
    return found, ()
