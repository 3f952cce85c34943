"""What a stream's measurements say: verdict, L2-ER coefficients, documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from clcurv.diagnostics.spectrum import SpectrumResult
from clcurv.errors import ClcurvError, NumericalError
from clcurv.pipeline.prepare import objective_of, shown
from clcurv.recommend.l2er import L2erAdvice, Verdict, judge, recommend_l2er
from clcurv.report.spectrum_build import l2er_document, spectrum_document

if TYPE_CHECKING:
    from clcurv.pipeline.spectrum_run import StreamRun
    from clcurv.report.l2er_document import L2erDocument
    from clcurv.report.spectrum_document import SpectrumDocument


@dataclass(frozen=True)
class SpectrumReport:
    """What was measured, what follows from it, and the documents that say both.

    Attributes:
        document: Validated, ready for JSON; see `clcurv.report.spectrum_document`.
        l2er: The coefficients as a document of their own; None where none can be given.
        result: The numbers.
        verdict: What they say.
        advice: The coefficients.
        failure: The first error among the tasks: those are marked ``failed`` and the others kept.
    """

    document: SpectrumDocument
    l2er: L2erDocument | None
    result: SpectrumResult
    verdict: Verdict
    advice: L2erAdvice | None
    failure: ClcurvError | None = None


def report_of(run: StreamRun, *, complete: bool) -> SpectrumReport:
    """What is known of a run by now.

    Raises:
        ClcurvError: No task could be measured: the first task's error.
    """
    if not any(task.status == "ok" for task in run.tasks):
        raise run.failure or NumericalError("no task was measured")
    asked = run.asked
    kind = asked.reference if asked.reference in ("first-task", "fresh") else "checkpoint"
    good = next(task for task in run.tasks if task.status == "ok")
    if run.reference is None:
        kind = "first-task"
    result = SpectrumResult(
        tasks=tuple(run.tasks),
        reference=run.reference or good,
        reference_kind=cast(Any, kind),
        operator=asked.operator,
        loss=objective_of(run.first, asked).name,
        dtype=asked.dtype,
        device=run.settings.device,
        seed=asked.seed,
        lr=asked.lr,
        momentum=asked.momentum,
        steps=asked.steps,
        gamma=asked.gamma,
        seconds=sum(task.seconds for task in run.tasks),
    )
    verdict = judge(result)
    advice = recommend_l2er(result, verdict, run.scale, asked.lr) if complete else None
    document = spectrum_document(
        result=result,
        verdict=verdict,
        advice=advice,
        model=run.first,
        stream=run.resolved,
        stream_spec=shown(asked.stream),
        data_path=None if asked.data is None else shown(asked.data),
        weights=run.weights,
        model_path=run.first_name,
        checkpoints=[(shown(run.paired[i]), digest) for i, digest in sorted(run.digests.items())],
        paper_smoothing=asked.paper_smoothing,
        settings={
            "head": asked.head,
            "probes": asked.probes,
            "lanczos_steps": asked.lanczos_steps,
            "samples": asked.samples,
        },
        warnings=run.warnings,
        complete=complete and run.failure is None,
    )
    coefficients = None
    if advice is not None:
        coefficients = l2er_document(
            advice=advice, verdict=verdict, arch=run.first.arch, stream=run.stream.name
        )
    return SpectrumReport(
        document=document,
        l2er=coefficients,
        result=result,
        verdict=verdict,
        advice=advice,
        failure=run.failure,
    )
