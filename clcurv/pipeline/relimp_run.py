"""From a checkpoint and two tasks to relative importances, a penalty for them, a document."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from clcurv.curvature.importance import Importance, measure_importance
from clcurv.diagnostics.agreement import Agreement
from clcurv.diagnostics.importance_density import ImportanceDensity, importance_density
from clcurv.diagnostics.importance_file import save_importance
from clcurv.diagnostics.importance_kind import accumulate
from clcurv.diagnostics.relative import (
    LambdaUp,
    lambda_ceiling,
    lambda_up_between,
    near_zero_share,
    overall_agreement,
    relate,
)
from clcurv.diagnostics.relimp import RelimpResult, TaskSide
from clcurv.inputs.dataset import Samples
from clcurv.inputs.loaded import LoadedModel
from clcurv.pipeline.options import RelimpOptions, checked
from clcurv.pipeline.prepare import Checkpoint, Progress, shown
from clcurv.pipeline.relimp_inputs import RelimpInputs, read_inputs
from clcurv.report.relimp_build import relimp_document
from clcurv.training.look_ahead import look_ahead
from clcurv.training.multipliers import Plain, save_multipliers
from clcurv.training.search import SearchResult, search
from clcurv.training.search_multipliers import largest
from clcurv.training.search_plan import RELATIVE, Trial, ceiling

if TYPE_CHECKING:
    from clcurv.report.relimp_document import RelimpDocument


@dataclass(frozen=True)
class RelimpReport:
    """What was measured, what follows from it, and the document that says both.

    Attributes:
        document: Validated, ready for JSON; see `clcurv.report.relimp_document`.
        past: Importance for the past, accumulated where it stands for several tasks.
        result: The numbers; None where only the past was measured.
        multipliers: Parameter name -> α'; empty where only the past was measured.
        current: Importance of the look-ahead copy for the current task.
        search: Every trial, where a search was asked for.
        about: What the side file says about the multipliers.
    """

    document: RelimpDocument
    past: Importance
    result: RelimpResult | None = None
    multipliers: Mapping[str, Tensor] = field(default_factory=dict)
    current: Importance | None = None
    search: SearchResult | None = None
    about: Mapping[str, Plain] = field(default_factory=dict)

    def save_multipliers(self, path: str | Path) -> None:
        """Write the side file for `clcurv.training.ImportancePenalty`, whole or not at all.

        Raises:
            UsageError: There are none, or `path` cannot be a file.
            ResourceError: The disk is full.
        """
        weight = None if self.result is None else self.result.lambda_
        save_multipliers(path, self.multipliers, lambda_=weight, about=self.about)

    def save_importance(self, path: str | Path) -> None:
        """Write the past's importance, for a later run without its data.

        Raises:
            UsageError: `path` cannot be a file.
            ResourceError: The disk is full.
        """
        save_importance(path, self.past)


def relimp(
    checkpoint: Checkpoint,
    *,
    past: Any = None,
    past_importance: Any = None,
    current: Any = None,
    progress: Progress | None = None,
    on_past: Callable[[Importance], None] | None = None,
    on_trial: Callable[[Trial], None] | None = None,
    **options: Any,
) -> RelimpReport:
    """Measures which parameters matter for the past alone, for both tasks, or for neither.

    Args:
        checkpoint: The network after the past: a weights file, a folder, or a module. It is not
            touched.
        past: Data of a task it knows.
        past_importance: Importance file of an earlier run instead; beside `past`, of the tasks
            before that one.
        current: Data of the next task, which may have new classes. None only measures the past.
        progress: Called with (stage, done, total).
        on_past: Called with the past's importance as soon as it is known.
        on_trial: Called with each trial of the search when it is done.
        **options: Fields of `RelimpOptions`.

    Raises:
        ClcurvError: See `clcurv.errors`; each kind has an exit code.
        KeyboardInterrupt: With a partial `document` attribute once the past is measured.
    """
    given = {"past": past, "past_importance": past_importance, "current": current}
    asked = checked(RelimpOptions, "relimp", {**options, **given})
    tell = progress or (lambda stage, done, total: None)
    run = _Run(checkpoint, read_inputs(checkpoint, asked, tell), tell)
    run.measure_past()
    if on_past is not None:
        on_past(run.past)
    if run.ready.current is None:
        return RelimpReport(document=run.document(), past=run.past)

    def noted(trial: Trial) -> None:
        run.trials.append(trial)
        if on_trial is not None:
            on_trial(trial)

    try:
        return run.compare(noted)
    except KeyboardInterrupt as interrupt:
        interrupt.document = run.document(complete=False)  # type: ignore[attr-defined]
        raise


class _Run:
    """One run: what has been read, and what is known so far."""

    def __init__(self, checkpoint: Checkpoint, ready: RelimpInputs, tell: Progress) -> None:
        self.checkpoint, self.ready, self.tell = checkpoint, ready, tell
        self.asked = ready.asked
        self.warnings = list(ready.warnings)
        self.trials: list[Trial] = []
        self.cost = 0.0
        self.started = time.perf_counter()

    # Measuring

    def measure_past(self) -> None:
        if self.ready.past is None:
            assert self.ready.file is not None
            self.past = self.ready.file
            return
        measured = self._importance(self.ready.loaded, self.ready.past, "the past")
        self.past = measured
        if self.ready.file is not None:
            how: Any = self.asked.accumulate
            self.past = accumulate(self.ready.file, measured, how=how)

    def _importance(self, loaded: LoadedModel, samples: Samples, whose: str) -> Importance:
        asked = self.asked
        found = measure_importance(
            loaded.model,
            samples,
            self.ready.objective,
            estimator=asked.estimator,  # type: ignore[arg-type]
            compat=asked.compat,  # type: ignore[arg-type]
            batch_size=asked.batch_size,
            memory=asked.memory,
            dtype=asked.dtype,
            device=self.ready.device,
            seed=asked.seed,
            layers=self.ready.layers,
            progress=lambda stage, done, total: self.tell(f"{stage}, {whose}", done, total),
        )
        self.cost += found.cost_gradients
        self.warnings.extend(f"{whose}: {note}" for note in found.notes)
        return found

    def compare(self, on_trial: Callable[[Trial], None]) -> RelimpReport:
        """The look-ahead or the search, and what follows from it."""
        assert self.ready.current is not None
        asked, found = self.asked, None
        up: LambdaUp | None = asked.lambda_up
        down = 1.0 if asked.lambda_down is None else asked.lambda_down
        form: Any = asked.multiplier_form
        lr = self.ready.training.lr
        if asked.search:
            found = self._search(on_trial)
            current, ahead, lr = found.importance, found.look_ahead, found.learning_rate
            self.cost += current.cost_gradients
            self.warnings.extend(f"the current task: {note}" for note in current.notes)
            self.warnings.extend(found.notes)
            up, down, form = self._searched(found, form)
        else:
            copy, ahead = look_ahead(
                self.ready.loaded,
                self.ready.current,
                self.ready.objective,
                self.ready.training,
                device=self.ready.device,
                dtype=asked.dtype,
                progress=self.tell,
            )
            current = self._importance(copy, self.ready.current, "the current task")
        self.tell("comparing the importances", 0, 0)
        multipliers, tensors, layers = relate(
            self.past,
            current,
            self.ready.layers,
            tau_mode=asked.tau,  # type: ignore[arg-type]
            lambda_up=up,
            lambda_down=down,
            multiplier=form,
            weights=self.ready.factors,
            seed=asked.seed,
            samples_may_differ=True,  # refused before the work where it matters
        )
        bound = lambda_ceiling(multipliers, lr)
        weight = bound or 0.0
        if found is not None:
            weight = found.lambda_
        elif asked.lambda_ is not None:
            weight = asked.lambda_
        agreed = overall_agreement(self.past, current, self.ready.layers, seed=asked.seed)
        size = max(1, sum(t.numel for t in tensors))
        result = RelimpResult(
            tensors=tensors,
            layers=layers,
            past=self._past_side(),
            current=_side(current, "data", asked.seed),
            look_ahead=ahead,
            estimator=self.past.estimator,
            compat=self.past.compat,
            tau_mode=asked.tau,  # type: ignore[arg-type]
            multiplier=form,
            lambda_=weight,
            lambda_ceiling=bound,
            lambda_up=max((t.lambda_up for t in tensors), default=1.0),
            lambda_down=down,
            tau=sum(t.tau * t.numel for t in tensors) / size,
            learning_rate=lr,
            rank_correlation=agreed.rank,
            overlap=agreed.overlap,
            accumulated=self.past.accumulated,
            loss=self.ready.objective.name,
            dtype=asked.dtype,
            device=self.ready.device,
            seed=asked.seed,
            cost_gradients=self.cost,
            seconds=time.perf_counter() - self.started,
            notes=tuple(dict.fromkeys(self.warnings)),
        )
        density = importance_density(self.past, current, self.ready.layers, seed=asked.seed)
        return RelimpReport(
            document=self.document(result, found, agreed, density),
            past=self.past,
            result=result,
            multipliers=multipliers,
            current=current,
            search=found,
            about=self._about(result, found),
        )

    def _search(self, on_trial: Callable[[Trial], None]) -> SearchResult:
        assert self.ready.current is not None
        asked = self.asked
        return search(
            self.ready.loaded,
            self.past,
            self.ready.current,
            self.ready.objective,
            self.ready.training,
            allowed_drop=asked.allowed_drop,
            max_trials=asked.max_trials,
            lambda_decay=asked.lambda_decay,
            tau_mode=asked.tau,  # type: ignore[arg-type]
            multiplier=asked.multiplier_form,  # type: ignore[arg-type]
            weights=self.ready.factors,
            layers=self.ready.layers,
            device=self.ready.device,
            dtype=asked.dtype,
            seed=asked.seed,
            memory=asked.memory,
            samples_may_differ=True,
            state=asked.state,
            progress=self.tell,
            on_trial=on_trial,
        )

    def _searched(self, found: SearchResult, form: str) -> tuple[LambdaUp, float, str]:
        """λ_up, λ_down and the form that give the recommended trial's multipliers."""
        if found.chosen.phase not in RELATIVE:
            return 1.0, 1.0, "paper"  # α' = α of the past, held as it is
        factors = self.ready.factors or {}
        alpha = {n: t * factors.get(n, 1.0) for n, t in self.past.tensors.items()}
        upper = ceiling(found.reference.lr, largest(alpha)) / found.uniform.lambda_
        return lambda_up_between(found.m, upper=upper), found.lambda_down, form

    # Reporting

    def document(
        self,
        result: RelimpResult | None = None,
        found: SearchResult | None = None,
        agreed: Agreement | None = None,
        density: ImportanceDensity | None = None,
        *,
        complete: bool = True,
    ) -> RelimpDocument:
        """What is known by now."""
        asked = self.asked
        how = asked.layers
        return relimp_document(
            past=self.past,
            past_side=self._past_side(),
            layers=self.ready.layers,
            model=self.ready.loaded,
            result=result,
            agreement=agreed,
            density=density,
            search=found,
            trials=self.trials,
            estimator={
                "estimator": self.past.estimator,
                "compat": self.past.compat,
                "mode": self.past.mode,
                "loss": self.ready.objective.name,
                "batch_size": self.past.batch_size,
                "tau_mode": asked.tau,
                "multiplier": asked.multiplier_form if result is None else result.multiplier,
                "accumulate": asked.accumulate,
                "schedule": None if asked.schedule is None else shown(asked.schedule),
                "granularity": how if isinstance(how, str) else "given",
                "dtype": asked.dtype,
                "device": self.ready.device,
                "seed": asked.seed,
                "cost_gradients": self.cost,
                "seconds": time.perf_counter() - self.started,
            },
            lambda_given=asked.lambda_ is not None,
            allowed_drop=asked.allowed_drop,
            max_trials=asked.max_trials,
            lambda_decay=asked.lambda_decay,
            past_info={
                **_described(asked.past, self.ready.past),
                "importance_path": None
                if asked.past_importance is None
                else shown(asked.past_importance),
            },
            current_info=_described(asked.current, self.ready.current),
            weights=self.ready.weights,
            model_path=shown(self.checkpoint),
            settings={"samples": asked.samples, "head": asked.head},
            warnings=self.warnings,
            complete=complete,
        )

    def _past_side(self) -> TaskSide:
        return _side(self.past, "data" if self.ready.file is None else "file", self.asked.seed)

    def _about(self, result: RelimpResult, found: SearchResult | None) -> dict[str, Plain]:
        """For the side file's header."""
        schedule = self.asked.schedule
        return {
            "arch": self.ready.loaded.arch,
            "estimator": result.estimator,
            "compat": result.compat,
            "tau_mode": result.tau_mode,
            "multiplier": result.multiplier,
            "tau": result.tau,
            "lambda_up": result.lambda_up,
            "lambda_down": result.lambda_down,
            "lambda_ceiling": result.lambda_ceiling,
            "learning_rate": result.learning_rate,
            "searched": found is not None,
            "accumulated": result.accumulated,
            "past": self.past.digest,
            "current": "" if self.ready.current is None else self.ready.current.digest,
            "schedule": None if schedule is None else shown(schedule),
        }


def _side(importance: Importance, kind: Any, seed: int) -> TaskSide:
    return TaskSide(
        kind=kind,
        n_samples=importance.n_samples,
        digest=importance.digest,
        mean_loss=importance.mean_loss,
        accuracy=importance.accuracy,
        chance=importance.chance,
        near_zero=near_zero_share(importance, seed=seed),
    )


def _described(data: Any, samples: Samples | None) -> dict[str, Any]:
    if samples is None:
        return {}
    return {"path": shown(data), "class_counts": samples.class_counts, "notes": samples.notes}
