"""One task's diagnosis -> its section of the report of ``clcurv spectrum``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from clcurv.recommend.collapse import mean_effective_rank_stderr
from clcurv.report.document import finite
from clcurv.report.parts import clean, unique
from clcurv.report.spectrum_document import (
    EffectiveRankInfo,
    EpsRankInfo,
    EpsRanks,
    FastModesInfo,
    LayerFeaturesInfo,
    QuadratureInfo,
    SmoothedRankInfo,
    SpectrumInfo,
    TaskInfo,
)

if TYPE_CHECKING:
    from clcurv.diagnostics.spectrum import (
        EpsRank,
        FastModes,
        LayerFeatures,
        TaskDiagnosis,
        TaskSpectrum,
    )


def task_info(task: TaskDiagnosis, paper_smoothing: bool) -> TaskInfo:
    """Everything measured on a task; with `paper_smoothing` the published pipeline's ε-ranks."""
    spectrum = task.spectrum
    ranks = None
    if spectrum is not None:
        size = spectrum.n_parameters
        ranks = EpsRanks(
            fast=None if spectrum.rank_fast is None else _rank(spectrum.rank_fast, size),
            relative=_rank(spectrum.rank_relative, size),
            curve=tuple(_rank(x, size) for x in spectrum.curve),
            paper=_paper_ranks(spectrum) if paper_smoothing else (),
        )
    return TaskInfo(
        index=task.index,
        name=clean(task.name),
        checkpoint=clean(task.checkpoint),
        status=task.status,
        reason=clean(task.reason),
        n_samples=task.n_samples,
        classes=tuple(task.classes),
        label_histogram=histogram(task.label_histogram),
        digest=task.digest,
        mean_loss=finite(task.mean_loss),
        accuracy=finite(task.accuracy),
        chance=finite(task.chance),
        gradient_norm=finite(task.gradient_norm),
        eps_rank=ranks,
        fast_modes=None if task.fast_modes is None else _fast_modes(task.fast_modes),
        effective_rank=_effective_rank(task),
        features=tuple(_features(x) for x in task.features),
        spectrum=None if spectrum is None else _spectrum(spectrum),
        cost_gradients=finite(task.cost_gradients),
        seconds=finite(task.seconds),
        notes=unique(
            [
                *task.notes,
                *(spectrum.notes if spectrum else ()),
                *(task.fast_modes.notes if task.fast_modes else ()),
            ]
        ),
    )


def _paper_ranks(spectrum: TaskSpectrum) -> tuple[SmoothedRankInfo, ...]:
    from clcurv.curvature.smoothing import paper_rank

    found = []
    for rank in (spectrum.rank_fast, spectrum.rank_relative):
        if rank is not None and spectrum.quadrature:
            smooth = paper_rank(spectrum.quadrature, rank.eps)
            found.append(
                SmoothedRankInfo(
                    eps=rank.eps,
                    fraction=finite(smooth.fraction),
                    kernel_width=finite(smooth.width),
                    status="kernel-limited" if smooth.kernel_limited else "ok",
                )
            )
    return tuple(found)


def _rank(rank: EpsRank, n_parameters: int) -> EpsRankInfo:
    def part(value: float | None) -> float | None:
        return None if value is None else finite(value / n_parameters)

    fraction = finite(rank.fraction)
    return EpsRankInfo(
        eps=rank.eps,
        upper=None if rank.upper is None else finite(rank.upper),
        count=finite(rank.count),
        # The weights of a quadrature sum to 1 up to rounding only.
        fraction=None if fraction is None else min(max(fraction, 0.0), 1.0),
        low=part(rank.low),
        high=part(rank.high),
        count_low=finite(rank.low),
        count_high=finite(rank.high),
        positive=finite(rank.positive),
        negative=finite(rank.negative),
        half_steps=part(rank.half_steps),
        status=rank.status,
        reason=clean(rank.reason),
    )


def _spectrum(spectrum: TaskSpectrum) -> SpectrumInfo:
    return SpectrumInfo(
        operator=spectrum.operator,
        method=spectrum.method,
        n_parameters=spectrum.n_parameters,
        lambda_max=finite(spectrum.lambda_max),
        lambda_min=finite(spectrum.lambda_min),
        lambda_max_residual=finite(spectrum.lambda_max_residual),
        lambda_min_residual=finite(spectrum.lambda_min_residual),
        lambda_min_converged=spectrum.lambda_min_converged,
        trace=finite(spectrum.trace),
        trace_stderr=finite(spectrum.trace_stderr),
        probes=spectrum.probes,
        steps=spectrum.steps,
        noise=finite(spectrum.noise),
        quadrature=tuple(
            QuadratureInfo(nodes=tuple(x.nodes), weights=tuple(x.weights))
            for x in spectrum.quadrature
        ),
    )


def _fast_modes(modes: FastModes) -> FastModesInfo:
    return FastModesInfo(
        lower=modes.lower,
        upper=finite(modes.upper),
        share=finite(modes.share),
        share_stderr=finite(modes.share_stderr),
        count=finite(modes.count),
        half_steps=finite(modes.half_steps),
        gradient_share=finite(modes.gradient_share),
        carrying_terms=finite(modes.carrying_terms),
        status=modes.status,
        reason=clean(modes.reason),
        method=modes.method,
    )


def _features(layer: LayerFeatures) -> LayerFeaturesInfo:
    return LayerFeaturesInfo(
        name=clean(layer.name),
        n=layer.n,
        d=layer.d,
        ceiling=layer.ceiling,
        erank=finite(layer.erank),
        erank_stderr=finite(layer.erank_stderr),
        erank_covariance=finite(layer.erank_covariance),
        approximate_rank=layer.approximate_rank,
        dormant=finite(layer.dormant),
        dead=finite(layer.dead),
        enough=layer.enough,
    )


def _effective_rank(task: TaskDiagnosis) -> EffectiveRankInfo | None:
    layers = task.features
    if not layers:
        return None

    def mean(values: Sequence[float]) -> float | None:
        return finite(sum(values) / len(values))

    return EffectiveRankInfo(
        value=mean([x.erank for x in layers]),
        stderr=finite(mean_effective_rank_stderr(task)),
        fraction=mean([x.erank / max(x.ceiling, 1) for x in layers]),
        covariance=mean([x.erank_covariance for x in layers]),
    )


def histogram(counts: Mapping[Any, int]) -> dict[str, int]:
    """Counts under the labels as text, as JSON asks for."""
    return {clean(str(label)): int(n) for label, n in counts.items()}
