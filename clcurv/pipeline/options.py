"""What the library functions can be asked for; the commands' options carry the same names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

from clcurv.errors import UsageError
from clcurv.inputs.loss_names import LOSSES
from clcurv.inputs.user_code import is_code


@dataclass(frozen=True, kw_only=True)
class InputOptions:
    """How a checkpoint and its data are read, for every command.

    Attributes:
        split, image_column, text_column, label_column, max_length, skip_bad: See `load_samples`.
        label_map: A file or a mapping, from a label as written to its class; see
            `clcurv.inputs.labelmap.read_label_map`.
        samples: Size of the class-balanced sample.
        batch_size: Samples in a micro-batch; None chooses.
        arch, key, match_by_order, trust_code: See `clcurv.inputs.architecture.load_model`.
        max_bytes, unsafe_pickle: See `clcurv.inputs.checkpoint.load_weights`.
        online: Whether a checkpoint named ``hf:ORG/NAME`` may be downloaded; without it only the
            local cache is looked at.
        head: ``model`` | ``linear-probe``.
        loss: ``auto`` | ``cross-entropy`` | ``mse`` | ``next-token`` | ``masked-lm``, or a function
            of (output, targets) or its name, see `clcurv.curvature.user_objective.UserObjective`.
        batch_fn: A function, or its name, from a batch to (inputs, targets); see
            `clcurv.inputs.user_data.live_data`.
        layers: ``block`` | ``module`` | ``tensor`` | a regular expression, or a mapping
            of layer names to parameter names.
        device: A torch device; None takes a GPU where there is one.
        dtype: ``float32`` | ``float64``.
        seed: Of the sample, and of random vectors.
        memory: Bytes for kept graphs; None is half of what is free.
    """

    HEADS: ClassVar[tuple[str, ...]] = ("model", "linear-probe")

    split: str | None = None
    image_column: str | None = None
    text_column: str | None = None
    label_column: str | None = None
    label_map: Any = None
    max_length: int | None = None
    samples: int = 512
    batch_size: int | None = None
    skip_bad: bool = False
    arch: str | None = None
    key: str | None = None
    match_by_order: bool = False
    trust_code: bool = False
    max_bytes: int | None = None
    unsafe_pickle: bool = False
    online: bool = False
    head: str = "model"
    loss: Any = "auto"
    batch_fn: Any = None
    layers: Any = "block"
    device: str | None = None
    dtype: str = "float32"
    seed: int = 0
    memory: int | None = None


@dataclass(frozen=True, kw_only=True)
class InspectOptions(InputOptions):
    """What `inspect` can be asked for.

    Attributes:
        data: Labelled data: decide where several architectures fit, and show by the accuracy
            whether weights, labels and preprocessing belong together.
        samples: How many of them.
    """

    data: Any = None
    samples: int = 128


@dataclass(frozen=True, kw_only=True)
class KappaOptions(InputOptions):
    """What `kappa` can be asked for.

    Attributes:
        data: The old task: a path, or what `clcurv.inputs.dataset.load_samples` takes. None
            generates inputs from the model.
        new_data: The next task, for the measured cost of a uniform schedule.
        operator: ``hessian`` | ``ggn`` | ``fisher`` | ``empirical-fisher``.
        tol: Relative error allowed on every s.
        max_steps: Products with all the data a layer may take; None is 60.
        lambda_min: Whether to pursue the smallest eigenvalues too.
        cross_check: Whether to ask PyHessian too.
        include_head: Whether heads take part in κ and in the fit.
        schedule: ``geometric`` | ``power`` | ``literal`` | ``isotonic`` | ``uniform``.
        lambda_: Parameter-weighted mean of λ; None is 1.
        force: Allows ``literal``.
    """

    data: Any = None
    new_data: Any = None
    operator: str = "hessian"
    tol: float = 1e-2
    max_steps: int | None = None
    lambda_min: bool = True
    cross_check: bool = False
    include_head: bool = False
    schedule: Any = "geometric"
    lambda_: float | None = None
    force: bool = False


@dataclass(frozen=True, kw_only=True)
class SpectrumOptions(InputOptions):
    """What `spectrum` can be asked for.

    Attributes:
        stream: A manifest, a folder of tasks, an npz with (x, y, t), or a generated stream over
            `data` (``permuted:K``, ``split:K``, ``label-shuffle:K``); see
            `clcurv.inputs.stream.open_stream`.
        data: The data set behind a generated stream.
        head: ``keep`` (as in the checkpoint) | ``fresh`` (drawn anew for every task).
        layers: A regular expression; only parameters whose name it matches are measured. None
            is the whole network.
        operator: ``hessian`` | ``ggn`` | ``fisher`` | ``empirical-fisher``.
        method: ``auto`` | ``lanczos`` | ``dense`` | ``gram``.
        lr, steps, momentum: Of the training on one task: learning rate η, gradient steps K, and
            SGD's momentum. They decide which modes are fast; None knows no ε_fast.
        gamma: A mode is fast when |1 − ημ|^K ≤ γ.
        eps: ε relative to the largest |λ|.
        probes: Random vectors of the quadrature.
        lanczos_steps: Lanczos steps per random vector.
        reference: ``first-task`` | ``fresh`` (a copy with new weights) | a checkpoint.
        resume: Folder that keeps finished tasks; a later run with the same options takes them
            from there.
        paper_smoothing: Whether to give the ε-rank by the published pipeline's smoothing, too.
    """

    HEADS: ClassVar[tuple[str, ...]] = ("keep", "fresh")

    stream: Any = None
    data: Any = None
    head: str = "keep"
    layers: Any = None
    operator: str = "hessian"
    method: str = "auto"
    lr: float | None = None
    steps: int | None = None
    momentum: float = 0.0
    gamma: float = 0.1
    eps: float = 1e-2
    probes: int = 8
    lanczos_steps: int = 80
    reference: Any = "first-task"
    resume: Any = None
    paper_smoothing: bool = False


@dataclass(frozen=True, kw_only=True)
class RelimpOptions(InputOptions):
    """What `relimp` can be asked for.

    `samples` is the number that both importances are measured on, and that the look-ahead trains
    on; beside an importance file the default is the file's.

    Attributes:
        past: Data of a task that the network knows.
        past_importance: An importance file, or an `Importance`, of what it knows. Beside `past`
            the two are accumulated.
        current: Data of the task to come; None only measures the past.
        estimator: ``mas`` | ``fisher`` | ``fisher-sampled`` | ``fisher-empirical``; None is what
            the importance file has, else ``mas``.
        compat: ``per-sample`` | ``reference`` | ``facil`` | ``avalanche`` | ``authors``; None as
            for `estimator`, else ``per-sample``.
        tau: ``scaled-mean`` | ``fixed`` | ``mean-plus-std``.
        multiplier_form: ``paper`` | ``code``.
        lambda_: Weight of the penalty; None recommends one.
        lambda_up, lambda_down: Factors above and below τ; None are ⌈1/max(τ, 0.05)⌉ and 1.
        accumulate: ``mean`` | ``max``.
        samples_may_differ: Allow the importances different sample counts.
        schedule: Report of `kappa`, whose λ_ℓ multiply α'.
        training_config: YAML or JSON file with the fields of
            `clcurv.training.options.LookAheadOptions`.
        optimizer, lr, epochs, train_batch_size, weight_decay, momentum, patience, validation,
            grad_clip: The same one by one; None leaves what the file or the defaults say. 0 for
            `patience` never stops early, for `grad_clip` does not clip.
        search: Whether to search λ, λ_down and λ_up on the current task.
        allowed_drop: Part of the reference score that a penalty may cost in the search.
        max_trials: Most trials in a phase of the search.
        lambda_decay: Factor of λ from trial to trial.
        state: File of the search's trials; a later run goes on from it.
    """

    HEADS: ClassVar[tuple[str, ...]] = ("model", "linear-probe")

    past: Any = None
    past_importance: Any = None
    current: Any = None
    estimator: str | None = None
    compat: str | None = None
    tau: str = "scaled-mean"
    multiplier_form: str = "paper"
    lambda_: float | None = None
    lambda_up: float | None = None
    lambda_down: float | None = None
    accumulate: str = "mean"
    samples_may_differ: bool = False
    schedule: Any = None
    training_config: Any = None
    optimizer: str | None = None
    lr: float | None = None
    epochs: int | None = None
    train_batch_size: int | None = None
    weight_decay: float | None = None
    momentum: float | None = None
    patience: int | None = None
    validation: float | None = None
    grad_clip: float | None = None
    search: bool = False
    allowed_drop: float = 0.1
    max_trials: int = 10
    lambda_decay: float = 0.9
    state: Any = None


_Options = TypeVar("_Options", bound=InputOptions)


def checked(kind: type[_Options], name: str, options: Mapping[str, Any]) -> _Options:
    """The options as one object.

    Raises:
        UsageError: An unknown name, or an unknown head.
    """
    known = {f.name for f in fields(kind)}
    unknown = sorted(set(options) - known)
    if unknown:
        raise UsageError(
            f"{name} has no option {unknown[0]!r}", hint=f"there are: {', '.join(sorted(known))}"
        )
    asked = kind(**options)
    if asked.head not in kind.HEADS:
        raise UsageError(f"unknown head {asked.head!r}", hint=f"--head {' or '.join(kind.HEADS)}")
    losses = ("auto", *LOSSES)
    if isinstance(asked.loss, str) and asked.loss not in losses and not is_code(asked.loss):
        raise UsageError(
            f"unknown loss {asked.loss!r}",
            hint=f"--loss {' | '.join(losses)} | file.py:function",
        )
    return asked
