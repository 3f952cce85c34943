"""The search for λ, λ_down and λ_up on the current task alone, resumable after every trial.

Suresh et al. (arXiv 2608.00630); what is tried next is decided in `search_plan`, one trial is a
short training with the penalty in `fit`. No data of the past is needed or touched: the past is
its importance.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from clcurv.curvature.importance import Importance, measure_importance
from clcurv.curvature.objective import Objective
from clcurv.diagnostics.importance_kind import check_fits, check_same_kind
from clcurv.diagnostics.relative import Multiplier, relate
from clcurv.diagnostics.relimp import LookAhead, TauMode
from clcurv.errors import UsageError
from clcurv.inputs.checkpoint import digest
from clcurv.inputs.dataset import Samples
from clcurv.inputs.layers import Layer, discover_layers
from clcurv.inputs.loaded import LoadedModel
from clcurv.inputs.sampling import sample_digest
from clcurv.inputs.user_code import model_version
from clcurv.training.fit import Diverged, Fit, Progress, fit
from clcurv.training.look_ahead import look_ahead, ready_copy
from clcurv.training.options import LookAheadOptions
from clcurv.training.penalty import ImportancePenalty
from clcurv.training.search_multipliers import RelativeMultipliers, largest
from clcurv.training.search_plan import (
    RELATIVE,
    Plan,
    SearchSettings,
    Trial,
    ceiling,
    chosen_trial,
    is_acceptable,
    next_plan,
    reference_trial,
    uniform_trial,
)
from clcurv.training.search_state import load_trials, save_trials

LEARNING_RATES = (1.0, 1 / 3, 3.0)  # times the one given


@dataclass(frozen=True)
class SearchResult:
    """What the search recommends, and every trial behind it.

    Attributes:
        trials: In order.
        reference, uniform, chosen: Best trial without penalty; the one that gave λ with uniform
            multipliers; the recommended one (which may be `uniform`).
        learning_rate, lambda_, lambda_down, m: Of the recommended trial.
        lambda_up: Largest λ_up over tensors in it; 1 for the uniform one.
        multipliers: Its α' by parameter, float64 on the CPU; α of the past for the uniform one.
        acceptable: Whether it is within the allowed drop of the reference.
        look_ahead: How the temporary copy was trained (at the reference's learning rate).
        importance: α^la, of that copy on the current task.
        resumed: Trials taken from the state file.
        notes: Sentences for the report.
    """

    trials: tuple[Trial, ...]
    reference: Trial
    uniform: Trial
    chosen: Trial
    learning_rate: float
    lambda_: float
    lambda_down: float
    m: float
    lambda_up: float
    multipliers: Mapping[str, Tensor]
    acceptable: bool
    look_ahead: LookAhead
    importance: Importance
    resumed: int = 0
    notes: tuple[str, ...] = ()


def search(
    loaded: LoadedModel,
    past_importance: Importance,
    samples: Samples,
    objective: Objective,
    options: LookAheadOptions | None = None,
    *,
    allowed_drop: float = 0.1,
    max_trials: int = 10,
    learning_rates: Sequence[float] | None = None,
    lambda_decay: float = 0.9,
    down_decay: float = 0.8,
    tau_mode: TauMode = "scaled-mean",
    multiplier: Multiplier = "paper",
    weights: Mapping[str, float] | None = None,
    layers: Sequence[Layer] | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    seed: int = 0,
    memory: int | None = None,
    samples_may_differ: bool = False,
    state: str | Path | None = None,
    progress: Progress | None = None,
    on_trial: Callable[[Trial], None] | None = None,
) -> SearchResult:
    """Find λ, λ_down and λ_up by short trainings on the current task.

    Every trial starts from the given weights, with the same split, batches and new rows. A trial
    that diverges is noted and the search goes on.

    Args:
        loaded: The network after the past tasks; not touched.
        past_importance: α of the past, from this network's names.
        samples: Of the current task.
        objective: Its loss.
        options: Of each trial, and of the look-ahead; a part is held out for the score.
        allowed_drop: Part of the reference score that a penalty may cost.
        max_trials: Most trials in each of the four phases.
        learning_rates: Tried for the reference; default 1, 1/3 and 3 times the one in `options`.
        lambda_decay, down_decay: Factors of λ and λ_down from trial to trial.
        tau_mode, multiplier, weights, layers, samples_may_differ: See
            `clcurv.diagnostics.relative.relate`; `weights` are on α in the uniform phase too.
        device, dtype, memory: Of trainings and importances.
        seed: Of the importance (sampled Fisher) and of bootstrap intervals.
        state: JSON file written after every trial; a search of the same data, weights and
            settings goes on from it.
        progress: Called with (stage, done, total).
        on_trial: Called with each trial when it is done and saved.

    Raises:
        UsageError: No validation part, or `state` belongs to another search.
        CorruptFileError: `state` cannot be read.
        NumericalError: Every learning rate diverged, or the past importance vanishes.
        DataError, MismatchError, ResourceError: As for look-ahead and importance.
    """
    options = options or LookAheadOptions()
    if options.validation == 0:
        raise UsageError(
            "the search compares scores on a validation part of the current task",
            hint="give the look-ahead validation=0.2",
        )
    rates = learning_rates or [factor * options.lr for factor in LEARNING_RATES]
    settings = SearchSettings(
        learning_rates=tuple(rates),
        allowed_drop=allowed_drop,
        max_trials=max_trials,
        lambda_decay=lambda_decay,
        down_decay=down_decay,
    )
    run = _Search(loaded, past_importance, samples, objective, options, settings)
    run.device, run.dtype, run.seed, run.memory = device, dtype, seed, memory
    run.tau_mode, run.multiplier = tau_mode, multiplier
    if weights:
        run.weighted(weights)
    run.check(layers, samples_may_differ)
    run.tell = progress or (lambda stage, done, total: None)
    return run(None if state is None else Path(state), on_trial or (lambda trial: None))


class _Search:
    device: str
    dtype: str
    seed: int
    memory: int | None
    tau_mode: TauMode
    multiplier: Multiplier
    layers: Sequence[Layer]
    samples_may_differ: bool
    tell: Progress

    def __init__(
        self,
        loaded: LoadedModel,
        past: Importance,
        samples: Samples,
        objective: Objective,
        options: LookAheadOptions,
        settings: SearchSettings,
    ) -> None:
        self.loaded, self.past, self.samples = loaded, past, samples
        self.objective, self.options, self.settings = objective, options, settings
        self.base, self.added = ready_copy(loaded, samples, objective, seed=options.seed)
        self.alpha: Mapping[str, Tensor] = past.tensors
        self.weights: dict[str, float] | None = None
        self.trials: list[Trial] = []
        self.found: RelativeMultipliers | None = None

    def weighted(self, weights: Mapping[str, float]) -> None:
        """α and α' of a parameter times its weight, such as λ_ℓ of a schedule."""
        self.weights = dict(weights)
        self.alpha = {n: t * weights.get(n, 1.0) for n, t in self.past.tensors.items()}

    def check(self, layers: Sequence[Layer] | None, samples_may_differ: bool) -> None:
        """What would only be found after the first trials."""
        model = self.base.model
        self.samples_may_differ = samples_may_differ
        expected = dataclasses.replace(
            self.past, loss=self.objective.name, n_samples=len(self.samples)
        )
        check_same_kind(self.past, expected, samples_may_differ=samples_may_differ)
        self.layers = layers or discover_layers(
            model, self.samples.split(2)[0], head_params=self.base.head_params
        )
        names = {name for layer in self.layers for name in layer.param_names}
        shapes = {n: tuple(p.shape) for n, p in model.named_parameters() if n in names}
        check_fits(self.past, shapes, where="the importance of the past")

    def __call__(self, state: Path | None, on_trial: Callable[[Trial], None]) -> SearchResult:
        key = self._key()
        self.trials = [] if state is None else load_trials(state, key)
        resumed = len(self.trials)
        while (plan := self._next()) is not None:
            trial = self._run(plan)
            self.trials.append(trial)
            if state is not None:
                save_trials(state, key, self.trials)
            on_trial(trial)
        return self._result(resumed)

    def _next(self) -> Plan | None:
        def planned(matters: bool) -> Plan | None:
            return next_plan(
                self.settings,
                self.trials,
                largest_importance=largest(self.alpha),
                up_matters=matters,
            )

        plan = planned(True)
        # Only then is the look-ahead needed to tell.
        if plan is not None and plan.phase == "lambda-up" and not self._look().up_matters:
            return planned(False)
        return plan

    def _run(self, plan: Plan) -> Trial:
        options = dataclasses.replace(self.options, lr=plan.lr)
        model = copy.deepcopy(self.base.model)
        lambda_, penalty = plan.lambda_, None
        if plan.phase != "reference":
            multipliers = self.alpha
            if plan.phase in RELATIVE:
                multipliers = self._look().multipliers(plan)
                lambda_ = min(lambda_, ceiling(plan.lr, largest(multipliers)))
            penalty = ImportancePenalty(model, multipliers, lambda_=lambda_)
        stage, started = f"{plan.phase} {plan.number}", time.perf_counter()
        done: Fit | None
        try:
            done = fit(
                model,
                self.samples,
                self.objective,
                options,
                penalty=penalty,
                device=self.device,
                dtype=self.dtype,
                stage=stage,
                progress=self.tell,
            )
        except Diverged:
            done = None
        score = None if done is None else done.score_after
        if plan.phase == "reference":
            acceptable = score is not None
        else:
            reference = reference_trial(self.trials).score
            assert reference is not None
            acceptable = is_acceptable(score, reference, self.settings.allowed_drop)
        return Trial(
            phase=plan.phase,
            number=plan.number,
            lr=plan.lr,
            lambda_=lambda_,
            lambda_down=plan.lambda_down,
            m=plan.m,
            status="diverged" if done is None else "ok",
            score=score,
            loss=None if done is None else done.loss_after,
            acceptable=acceptable,
            steps=0 if done is None else done.steps,
            seconds=time.perf_counter() - started,
        )

    def _look(self) -> RelativeMultipliers:
        """The look-ahead and what follows from it, once."""
        if self.found is None:
            lr = reference_trial(self.trials).lr
            ahead, report = look_ahead(
                self.loaded,
                self.samples,
                self.objective,
                dataclasses.replace(self.options, lr=lr),
                device=self.device,
                dtype=self.dtype,
                progress=self.tell,
            )
            current = measure_importance(
                ahead.model,
                self.samples,
                self.objective,
                estimator=self.past.estimator,
                compat=self.past.compat,
                batch_size=self.past.batch_size,
                memory=self.memory,
                dtype=self.dtype,
                device=self.device,
                seed=self.seed,
                layers=self.layers,
                progress=self.tell,
            )
            # As one layer: agreement by layer, which takes long, is not asked for here.
            names = tuple(name for layer in self.layers for name in layer.param_names)
            held, every = (
                relate(
                    self.past,
                    current,
                    [Layer("all", names, 0)],
                    tau_mode=self.tau_mode,
                    lambda_up=1.0,
                    lambda_down=below,
                    multiplier=self.multiplier,
                    weights=self.weights,
                    seed=self.seed,
                    samples_may_differ=self.samples_may_differ,
                )
                for below in (0.0, 1.0)
            )
            upper = ceiling(lr, largest(self.alpha)) / uniform_trial(self.trials).lambda_
            self.found = RelativeMultipliers(report, current, held[0], every[0], held[1], upper)
        return self.found

    def _result(self, resumed: int) -> SearchResult:
        look, chosen = self._look(), chosen_trial(self.trials)
        notes = []
        multipliers, up = self.alpha, 1.0
        if chosen.phase in RELATIVE:
            multipliers, up = look.multipliers(chosen), max(look.ups(chosen.m).values())
        else:
            notes.append("no relative penalty was acceptable: the uniform one is recommended")
        if not chosen.acceptable:
            notes.append(
                f"no penalty kept the score within {self.settings.allowed_drop:g} of the "
                "reference: the best one is recommended, and costs more (a smaller lambda_decay, "
                f"now {self.settings.lambda_decay:g}, tries weaker ones)"
            )
        if diverged := sum(t.status == "diverged" for t in self.trials):
            notes.append(f"{diverged} of {len(self.trials)} trials diverged")
        return SearchResult(
            trials=tuple(self.trials),
            reference=reference_trial(self.trials),
            uniform=uniform_trial(self.trials),
            chosen=chosen,
            learning_rate=chosen.lr,
            lambda_=chosen.lambda_,
            lambda_down=chosen.lambda_down,
            m=chosen.m,
            lambda_up=up,
            multipliers=multipliers,
            acceptable=chosen.acceptable,
            look_ahead=look.report,
            importance=look.current,
            resumed=resumed,
            notes=tuple(notes),
        )

    def _key(self) -> str:
        """sha256 (hex) of everything that a trial's numbers depend on."""
        parts = {
            "options": dataclasses.asdict(self.options),
            "settings": dataclasses.asdict(self.settings),
            "tau_mode": self.tau_mode,
            "multiplier": self.multiplier,
            "weights of layers": self.weights,
            "objective": [
                self.objective.name,
                self.objective.scale,
                getattr(self.objective, "version", ""),
            ],
            "dtype": self.dtype,
            "device": self.device.split(":")[0],
            "seed": self.seed,
            "layers": [[x.name, *x.param_names] for x in self.layers],
            "samples": self.samples.digest
            or sample_digest(self.samples.inputs, self.samples.targets),
            "model": model_version(self.loaded.model),
            "weights": digest({n: t.cpu() for n, t in self.loaded.model.state_dict().items()}),
            "past": digest({n: t.cpu() for n, t in self.past.tensors.items()}),
            "kind": [self.past.estimator, self.past.compat, self.past.batch_size],
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
