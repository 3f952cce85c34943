"""Results of ``clcurv relimp`` -> its report."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from clcurv.report.document import ModelInfo, finite
from clcurv.report.parts import (
    Setting,
    clean,
    clean_all,
    clean_settings,
    model_info,
    near_chance,
    optional,
    timestamp,
    tool_info,
    unique,
    versions,
)
from clcurv.report.relimp_document import (
    AgreementInfo,
    DensityInfo,
    LookAheadInfo,
    PenaltyInfo,
    RelimpDocument,
    RelimpEstimatorInfo,
    RelimpLayer,
    RelimpTensor,
    SearchInfo,
    SharesInfo,
    TaskSideInfo,
    TrialInfo,
)
from clcurv.report.text import number, percent, printable

if TYPE_CHECKING:
    from clcurv.curvature.importance import Importance
    from clcurv.diagnostics.agreement import Agreement
    from clcurv.diagnostics.importance_density import ImportanceDensity
    from clcurv.diagnostics.relimp import LayerImportance, RelimpResult, TaskSide
    from clcurv.inputs.checkpoint import Weights
    from clcurv.inputs.layers import Layer
    from clcurv.inputs.loaded import LoadedModel
    from clcurv.training.search import SearchResult
    from clcurv.training.search_plan import Trial

MANY_ZEROS = 0.5
"""Part of near-zero importances beyond which the report warns."""
MUCH = 0.01
"""Part of the parameters in tensors without any importance, likewise."""


def relimp_document(
    *,
    past: Importance,
    past_side: TaskSide,
    layers: Sequence[Layer],
    model: LoadedModel | ModelInfo,
    result: RelimpResult | None = None,
    agreement: Agreement | None = None,
    density: ImportanceDensity | None = None,
    search: SearchResult | None = None,
    trials: Sequence[Trial] = (),
    estimator: Mapping[str, Any],
    lambda_given: bool = False,
    allowed_drop: float = 0.1,
    max_trials: int = 10,
    lambda_decay: float = 0.9,
    past_info: Mapping[str, Any] | None = None,
    current_info: Mapping[str, Any] | None = None,
    weights: Weights | None = None,
    model_path: str | None = None,
    settings: Mapping[str, Setting] | None = None,
    warnings: Sequence[str] = (),
    command: str | Sequence[str] | None = None,
    complete: bool = True,
    created: datetime | None = None,
) -> RelimpDocument:
    """Put everything that was found into one validated document.

    Args:
        past: Importance for the past.
        past_side: The same in short.
        layers: What was measured.
        model: The loaded model, or a `ModelInfo` for a live one.
        result: What follows for the current task; None where only the past was measured.
        agreement: Over all tensors outside the head, with intervals.
        density: For the figure.
        search: The finished search.
        trials: Those of an interrupted one.
        estimator: Fields of `RelimpEstimatorInfo` but the versions and settings.
        lambda_given: Whether λ is the user's.
        allowed_drop, max_trials, lambda_decay: Of the search.
        past_info, current_info: ``path``, ``importance_path``, ``class_counts``, ``notes``.
        weights, model_path: Where the tensors came from.
        settings: Further options that explain the numbers.
        warnings: Sentences; those that follow from the numbers are added.
        command: The command line, as a string or its words.
        complete: False for what an interrupted run left.
        created: Default: now.

    Raises:
        pydantic.ValidationError: The parts do not go together (a fault of the caller).
    """
    held: dict[str, Any] = {k: clean(v) if isinstance(v, str) else v for k, v in estimator.items()}
    shares = None if result is None else _shares(result.layers)
    penalty = None if result is None else _penalty(result, search, lambda_given)
    past_part = _side(past_side, past.accumulated, past_info or {})
    current_part = None if result is None else _side(result.current, 1, current_info or {})
    return RelimpDocument(
        tool=tool_info(),
        created=timestamp(created),
        complete=complete,
        command=optional(
            command if command is None or isinstance(command, str) else shlex.join(command)
        ),
        model=model_info(model, weights, model_path),
        past=past_part,
        current=current_part,
        estimator=RelimpEstimatorInfo(
            **held, versions=versions(), settings=clean_settings(settings or {})
        ),
        look_ahead=None if result is None else _look_ahead(result),
        penalty=penalty,
        shares=shares,
        agreement=None if agreement is None else _agreement(agreement),
        layers=_layers(past, layers, result),
        tensors=() if result is None else tuple(_tensor(t) for t in result.tensors),
        search=_search(search, trials, allowed_drop, max_trials, lambda_decay),
        density=None
        if density is None
        else DensityInfo(
            past_edges=density.past_edges,
            current_edges=density.current_edges,
            counts=density.counts,
        ),
        warnings=unique(
            [
                *warnings,
                *_about_side("past", past_part),
                *([] if current_part is None else _about_side("current", current_part)),
                *([] if result is None else _about_training(result, penalty)),
            ]
        ),
    )


def _side(side: TaskSide, accumulated: int, info: Mapping[str, Any]) -> TaskSideInfo:
    accuracy, stderr = finite(side.accuracy), None
    if accuracy is not None and side.n_samples:
        accuracy = min(max(accuracy, 0.0), 1.0)
        stderr = math.sqrt(accuracy * (1 - accuracy) / side.n_samples)
    kind = "file+data" if info.get("importance_path") and info.get("path") else side.kind
    counts = info.get("class_counts") or {}
    return TaskSideInfo(
        kind=kind,
        path=optional(info.get("path")),
        importance_path=optional(info.get("importance_path")),
        n_samples=side.n_samples,
        digest=clean(side.digest),
        accumulated=accumulated,
        class_counts={clean(str(k)): int(v) for k, v in counts.items()},
        mean_loss=finite(side.mean_loss),
        accuracy=accuracy,
        accuracy_stderr=stderr,
        chance=finite(side.chance),
        near_zero=side.near_zero,
        notes=unique(info.get("notes", ())),
    )


def _look_ahead(result: RelimpResult) -> LookAheadInfo | None:
    if result.look_ahead is None:
        return None
    held = asdict(result.look_ahead)
    for name in ("score_before", "score_after", "loss_before", "loss_after"):
        held[name] = finite(held[name])
    return LookAheadInfo(**held)


def _penalty(result: RelimpResult, search: SearchResult | None, given: bool) -> PenaltyInfo:
    uniform = search is not None and search.chosen.phase == "uniform"
    text = f"penalty with λ {number(result.lambda_)} as given"
    if not given:
        text = (
            f"penalty with λ up to {number(result.lambda_)}, above which a step of SGD without "
            "momentum overshoots; "
            "--search finds the λ that leaves the current task its score"
        )
    if search is not None:
        chosen, reference = search.chosen, search.reference
        text = (
            f"penalty with λ {number(result.lambda_)} at lr {number(result.learning_rate)}: "
            f"validation score "
            f"{number(chosen.score)} against {number(reference.score)} without a penalty and "
            f"{number(search.uniform.score)} with the uniform one"
        )
    if uniform:
        text = f"uniform {text}"
    if result.lambda_ceiling is None:
        text = "nothing to hold: no parameter that matters for the past has a multiplier"
    return PenaltyInfo(
        lambda_=result.lambda_,
        ceiling=finite(result.lambda_ceiling),
        lambda_up=result.lambda_up,
        lambda_down=result.lambda_down,
        tau=result.tau,
        learning_rate=result.learning_rate,
        searched=search is not None,
        kind="uniform" if uniform else "relative",
        advice=text,
    )


def _shares(layers: Sequence[LayerImportance]) -> SharesInfo | None:
    inside = [x for x in layers if not x.is_head and x.numel]
    total = sum(x.numel for x in inside)
    if not total:
        return None

    def mean(name: str) -> float:
        value = float(sum(getattr(x, name) * x.numel for x in inside)) / total
        return min(max(value, 0.0), 1.0)

    return SharesInfo(protected=mean("protected"), shared=mean("shared"), free=mean("free"))


def _agreement(found: Agreement) -> AgreementInfo:
    rank = finite(found.rank)
    return AgreementInfo(
        rank_correlation=None if rank is None else min(max(rank, -1.0), 1.0),
        rank_low=finite(found.rank_low),
        rank_high=finite(found.rank_high),
        overlap=finite(found.overlap),
        overlap_low=finite(found.overlap_low),
        overlap_high=finite(found.overlap_high),
    )


def _layers(
    past: Importance, layers: Sequence[Layer], result: RelimpResult | None
) -> tuple[RelimpLayer, ...]:
    names = {x.name: clean_all(x.param_names) for x in layers}
    if result is not None:
        return tuple(_layer(i, x, names[x.name]) for i, x in enumerate(result.layers))
    measured = [x for x in layers if any(n in past.tensors for n in x.param_names)]
    found = []
    for i, layer in enumerate(measured):
        tensors = [past.tensors[n] for n in dict.fromkeys(layer.param_names) if n in past.tensors]
        numel = sum(t.numel() for t in tensors)
        total = sum(float(t.sum()) for t in tensors)
        found.append(
            RelimpLayer(
                name=clean(layer.name),
                layer_id=i,
                depth=layer.depth,
                is_head=layer.is_head,
                param_names=names[layer.name],
                numel=numel,
                past_mean=total / max(1, numel),
                past_stderr=finite(past.layer_stderr.get(layer.name)),
            )
        )
    return tuple(found)


def _layer(i: int, layer: LayerImportance, names: tuple[str, ...]) -> RelimpLayer:
    rank = finite(layer.rank_correlation)
    return RelimpLayer(
        name=clean(layer.name),
        layer_id=i,
        depth=layer.depth,
        is_head=layer.is_head,
        param_names=names,
        numel=layer.numel,
        protected=layer.protected,
        shared=layer.shared,
        free=layer.free,
        quantiles=layer.quantiles,
        past_mean=layer.past_mean,
        past_stderr=finite(layer.past_stderr),
        current_mean=layer.current_mean,
        current_stderr=finite(layer.current_stderr),
        agreement=AgreementInfo(
            rank_correlation=None if rank is None else min(max(rank, -1.0), 1.0),
            rank_low=finite(layer.rank_low),
            rank_high=finite(layer.rank_high),
            overlap=finite(layer.overlap),
            overlap_low=finite(layer.overlap_low),
            overlap_high=finite(layer.overlap_high),
        ),
        near_zero=layer.near_zero,
        multiplier_max=finite(layer.multiplier_max),
    )


def _tensor(tensor: Any) -> RelimpTensor:
    held = asdict(tensor)
    return RelimpTensor(**{**held, "name": clean(tensor.name), "layer": clean(tensor.layer)})


def _search(
    search: SearchResult | None,
    trials: Sequence[Trial],
    allowed_drop: float,
    max_trials: int,
    lambda_decay: float,
) -> SearchInfo | None:
    tried = trials if search is None else search.trials
    if not tried:
        return None
    places = {(t.phase, t.number): i for i, t in enumerate(tried)}

    def place(trial: Trial) -> int:
        return places[trial.phase, trial.number]

    return SearchInfo(
        allowed_drop=allowed_drop,
        max_trials=max_trials,
        lambda_decay=lambda_decay,
        acceptable=search is not None and search.acceptable,
        reference=None if search is None else place(search.reference),
        uniform=None if search is None else place(search.uniform),
        chosen=None if search is None else place(search.chosen),
        resumed=0 if search is None else search.resumed,
        trials=tuple(
            TrialInfo(
                **{**asdict(t), "score": finite(t.score), "loss": finite(t.loss)},
            )
            for t in tried
        ),
    )


def _about_side(which: str, side: TaskSideInfo) -> list[str]:
    said = []
    if near_chance(side.accuracy, side.chance):
        network = "network" if which == "past" else "look-ahead copy"
        said.append(
            f"accuracy of the {network} on the {which} task, {percent(side.accuracy or 0)}, is "
            f"near chance ({percent(side.chance or 0)}): "
            + (
                "are the weights, the labels and the preprocessing the right ones?"
                if which == "past"
                else "more --epochs or another --lr, or its importance says nothing"
            )
        )
    if side.near_zero > MANY_ZEROS:
        said.append(
            f"{percent(side.near_zero)} of the {which} importances are (nearly) zero: the ratio "
            "of two such is 0 by convention"
        )
    return said


def _about_training(result: RelimpResult, penalty: PenaltyInfo | None) -> list[str]:
    said = []
    ahead = result.look_ahead
    if ahead is not None and not ahead.loss_after < ahead.loss_before:
        said.append(
            f"the look-ahead did not lower the validation loss ({number(ahead.loss_before)} to "
            f"{number(ahead.loss_after)}): its importance is of a copy that learned nothing; try "
            "more --epochs or another --lr"
        )
    if penalty is not None and penalty.ceiling and penalty.lambda_ > penalty.ceiling * (1 + 1e-9):
        said.append(
            f"λ {number(penalty.lambda_)} is above {number(penalty.ceiling)}: at lr "
            f"{number(penalty.learning_rate)} a step of gradient descent overshoots θ*"
        )
    empty = [t for t in result.tensors if t.status == "no-importance"]
    share = sum(t.numel for t in empty) / max(1, sum(t.numel for t in result.tensors))
    if share > MUCH:  # less is usual: the keys' biases in attention, by symmetry
        more = f" and {len(empty) - 3} more" if len(empty) > 3 else ""
        shown = ", ".join(printable(t.name) for t in empty[:3])
        said.append(f"neither task has any importance in {shown}{more}: nothing holds them")
    return said
