"""The facts around the table of tasks, and the table's cells, once for every text format."""

from __future__ import annotations

from clcurv.report.parts import model_text
from clcurv.report.spectrum_document import (
    EpsRankInfo,
    FastModesInfo,
    SpectrumDocument,
    SpectrumInfo,
    TaskInfo,
)
from clcurv.report.text import number, percent, printable, with_error

_REFERENCES = {
    "first-task": "the first task",
    "fresh": "a network with fresh weights",
    "checkpoint": "another checkpoint",
}


def heading(doc: SpectrumDocument) -> list[tuple[str, str]]:
    """Label and text: what was measured on what."""
    model, stream, estimator = doc.model, doc.stream, doc.estimator
    origin = stream.spec or stream.name
    kind = ", ".join(printable(x) for x in (stream.scenario, stream.modality) if x)
    sizes = sorted({t.n_samples for t in doc.tasks if t.status == "ok"})
    samples = f", {_span(sizes)} samples each" if sizes else ""
    work = (
        f", {number(estimator.cost_gradients)} gradients' work" if estimator.cost_gradients else ""
    )
    rows = [
        (
            "model",
            model_text(model),
        ),
        (
            "stream",
            f"{printable(origin)}{f' ({kind})' if kind else ''}: {len(doc.tasks)} of "
            f"{max(len(stream.tasks), len(doc.tasks))} tasks{samples}",
        ),
        (
            "estimator",
            f"{estimator.operator} of {estimator.loss}, {methods(doc)}, {estimator.dtype} on "
            f"{estimator.device}{work}",
        ),
    ]
    band = estimator.eps_fast
    if band is not None:
        upper = "" if band.upper is None else f", up to {number(band.upper)}"
        momentum = f", momentum {estimator.momentum:g}" if estimator.momentum else ""
        rows.append(
            (
                "fast modes",
                f"λ ≥ {number(band.lower)}{upper} (lr {number(estimator.lr)}, "
                f"{estimator.steps} steps{momentum}, γ {estimator.gamma:g})",
            )
        )
    return rows


def findings(doc: SpectrumDocument) -> list[tuple[str, str]]:
    """Label and text: verdict, its evidence, the recommendation."""
    rows = [
        ("verdict", doc.verdict.value + ("" if doc.complete else f" ({partial_text(doc)})")),
        ("evidence", printable(doc.verdict.evidence)),
        ("reference", reference_text(doc)),
    ]
    if doc.l2er is not None:
        rows.append(("L2-ER", l2er_text(doc)))
    return rows


def partial_text(doc: SpectrumDocument) -> str:
    """Why a report is not complete."""
    failed = [t.index for t in doc.tasks if t.status == "failed"]
    if failed:
        which = f"task {failed[0]}" if len(failed) == 1 else f"{len(failed)} tasks"
        return f"partial report: {which} failed"
    return "partial report: the run was interrupted"


def advice(doc: SpectrumDocument) -> str:
    """One sentence: the verdict, why, and what to do."""
    text = f"{doc.verdict.value}: {doc.verdict.evidence}"
    return text if doc.l2er is None else f"{text}; L2-ER: {l2er_text(doc)}"


def l2er_text(doc: SpectrumDocument) -> str:
    """The coefficients in a line."""
    found = doc.l2er
    if found is None:
        return "–"
    if not found.er_lr and not found.weight_decay:
        return "none needed"
    return (
        f"weight decay {_plain_number(found.weight_decay)}, effective-rank step "
        f"{_plain_number(found.er_lr)} every {found.er_every} batches on "
        f"{len(found.er_layers)} layers (λ {_plain_number(found.objective.lambda_)}, "
        f"β {_plain_number(found.objective.beta)})"
    )


def reference_text(doc: SpectrumDocument) -> str:
    """What the trend is measured against, with its numbers where it is no task of the table."""
    task = doc.reference.task
    name = _REFERENCES[doc.reference.kind]
    if task is None:
        return name
    if task.status != "ok":
        return f"{name}, which failed: {printable(task.reason)}"
    shown = [name if doc.reference.kind == "fresh" else printable(task.checkpoint)]
    if task.eps_rank is not None:
        for label, rank in (("fast", task.eps_rank.fast), ("relative", task.eps_rank.relative)):
            if rank is not None:
                shown.append(f"ε-rank {label} {rank_text(rank)}")
    if task.fast_modes is not None:
        shown.append(f"fast share {share_text(task.fast_modes)}")
    shown.append(f"effective rank {erank_text(task)}")
    return ", ".join(shown)


def methods(doc: SpectrumDocument) -> str:
    """``lanczos-quadrature (8 probes of 80 steps)``; several where tasks differ."""
    found = []
    for task in doc.tasks:
        if (spectrum := task.spectrum) is not None:
            text: str = spectrum.method
            if spectrum.probes:
                text += f" ({spectrum.probes} probes of {spectrum.steps} steps)"
            found.append(text)
    return " and ".join(dict.fromkeys(found)) or "nothing measured"


def rank_text(rank: EpsRankInfo | None, *, short: bool = False) -> str:
    """``12.3 % (11.9–12.7)``: the fraction and its interval; what is in the way of it."""
    if rank is None or rank.fraction is None:
        return "–"
    text = _percent(rank.fraction)
    if rank.status != "ok":
        return f"{text}?" if short else f"{text} {rank.status}"
    if short or rank.low is None or rank.high is None or rank.low == rank.high:
        return text
    return f"{text} ({_digits(rank.low)}–{_digits(rank.high)})"


def share_text(modes: FastModesInfo | None, *, short: bool = False) -> str:
    """Share of the residual in fast modes, with its error over the data where there is one."""
    if modes is None or modes.share is None:
        return "–"
    if modes.status != "ok":
        return f"{percent(modes.share)}?"
    if short or modes.share_stderr is None:
        return percent(modes.share)
    if modes.share + modes.share_stderr < 1e-4:
        return "<0.01 %"
    return f"{with_error(100 * modes.share, 100 * modes.share_stderr)} %"


def erank_text(task: TaskInfo, *, short: bool = False) -> str:
    """Mean effective rank over the layers, with its error over the data."""
    rank = task.effective_rank
    if rank is None:
        return "–"
    return number(rank.value) if short else with_error(rank.value, rank.stderr)


def lambda_min_text(spectrum: SpectrumInfo) -> str:
    """With ≤ where it is an upper bound; zero where it lies under rounding."""
    value = spectrum.lambda_min
    if value is not None and spectrum.noise and abs(value) <= spectrum.noise:
        return "0"
    bound = "" if spectrum.lambda_min_converged else "≤"
    return bound + number(spectrum.lambda_min)


def trace_text(spectrum: SpectrumInfo) -> str:
    return with_error(spectrum.trace, spectrum.trace_stderr)


def accuracy_text(task: TaskInfo) -> str:
    return "–" if task.accuracy is None else percent(task.accuracy)


def _plain_number(value: float) -> str:
    return f"{value:.3g}"


def _percent(fraction: float) -> str:
    return f"{_digits(fraction)} %"


def _digits(fraction: float) -> str:
    """In per cent; small ones keep two digits."""
    value = 100 * fraction
    return f"{value:#.2g}" if 0 < value < 1 else f"{value:.1f}"


def _span(values: list[int]) -> str:
    return str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}"
