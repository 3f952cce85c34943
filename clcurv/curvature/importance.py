"""Importance of every parameter: MAS and Fisher, per sample, and as others' code takes them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from clcurv.curvature.batchwise import TRAINS, Compat, check_compat, convention_batch
from clcurv.curvature.importance_run import Progress, Run
from clcurv.curvature.importance_sums import Quality, Sums
from clcurv.curvature.numerics import borrowed, exact_numerics
from clcurv.curvature.objective import Objective
from clcurv.curvature.output_seeds import MAX_CLASSES, Estimator, Seeds
from clcurv.curvature.user_objective import UserObjective
from clcurv.errors import DataError, NumericalError, UsageError
from clcurv.inputs.dataset import Batch, Samples
from clcurv.inputs.execution import plain_attention
from clcurv.inputs.heads import find_head
from clcurv.inputs.layers import Layer

Mode = Literal["per-sample", "batch", "batch-train"]
_DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Importance:
    """How much every parameter matters for a task.

    Attributes:
        tensors: Parameter name (tied ones under their first) -> its importance, ≥ 0, float64 on
            the CPU, in the parameter's shape.
        estimator: ``mas`` | ``fisher`` (exact) | ``fisher-sampled`` | ``fisher-empirical``.
        compat: ``per-sample``, or whose convention was followed.
        mode: ``per-sample``; ``batch`` (|gradient of a batch|, eval mode), ``batch-train``.
        loss: Name of the objective.
        n_samples: Samples measured (of each task, where several are accumulated).
        batch_size: Of the convention; None for ``per-sample``, where it changes nothing.
        digest: Of the sample; for accumulated ones over all of theirs.
        fingerprint: sha256 (hex) over names and shapes, without the number of a head's rows.
        head: Names of the head's tensors, whose rows may grow.
        accumulated: How many tasks it stands for.
        layer_stderr: Layer -> standard error, over samples (batches for the conventions), of the
            mean importance of its elements; by tensor where no layers were given.
        mean_loss, accuracy, chance: Of the network on the sample; None where unknown.
        cost_gradients: What measuring took, in gradients over the sample.
        notes: Sentences for the report.
    """

    tensors: Mapping[str, Tensor]
    estimator: Estimator
    compat: Compat = "per-sample"
    mode: Mode = "per-sample"
    loss: str = "cross-entropy"
    n_samples: int = 0
    batch_size: int | None = None
    digest: str = ""
    fingerprint: str = ""
    head: tuple[str, ...] = ()
    accumulated: int = 1
    layer_stderr: Mapping[str, float] = field(default_factory=dict)
    mean_loss: float | None = None
    accuracy: float | None = None
    chance: float | None = None
    cost_gradients: float = 0.0
    notes: tuple[str, ...] = ()


def measure_importance(
    model: nn.Module,
    samples: Samples,
    objective: Objective,
    *,
    estimator: Estimator = "mas",
    compat: Compat = "per-sample",
    batch_size: int | None = None,
    memory: int | None = None,
    dtype: str = "float32",
    device: str = "cpu",
    seed: int = 0,
    layers: Sequence[Layer] | None = None,
    max_classes: int = MAX_CLASSES,
    progress: Progress | None = None,
) -> Importance:
    """Importance of every parameter for the task that a sample stands for.

    MAS (Aljundi et al. 2018, eq. 2): mean over samples of |∂‖f(x_n)‖²/∂θ_i|, no labels. Fisher:
    mean over loss terms of the squared slopes of the log-likelihood, weighted by p (``fisher``),
    for a label drawn from p (``fisher-sampled``) or the given one (``fisher-empirical``). Per
    sample and in eval mode, unless `compat` names another's convention. A sample is one row of
    `samples`; of a token loss one sequence, see `clcurv.curvature.output_seeds.Seeds`.

    Memory, whatever the number of samples: 8 bytes a parameter for the sums, and for one chunk's
    gradients and graphs at most `memory`.

    Args:
        model: Comes back as it was.
        samples: The frozen sample.
        objective: The loss; MAS takes from it which positions of a sequence count.
        estimator, compat: See `Importance`.
        batch_size: Per sample: most samples in a chunk, on which no number depends. Otherwise the
            convention's batch (default 20 for ``authors``, else 32), on which they do.
        memory: Bytes for one chunk; default four times the parameters, at least 128 MiB, at most
            half of what is free.
        dtype: ``float32`` | ``float64``, of the passes; sums are in float64.
        device: A torch device.
        seed: Of ``fisher-sampled``, and of dropout in the conventions that train.
        layers: What to measure, and the groups of the standard errors. Default: everything.
        max_classes: Most outputs of which the exact Fisher is taken.
        progress: Called with (stage, done, total) in samples.

    Raises:
        UsageError: Options that do not go together, or the exact Fisher of too many classes.
        DataError: No samples.
        MismatchError: The data do not fit the model or the objective.
        NumericalError: An output or a gradient that is not finite, or nothing to measure.
        ResourceError: Out of memory with a single sample.
    """
    check_compat(compat, estimator)
    seeds = Seeds(estimator, _seen_by(objective, estimator, compat))
    if dtype not in _DTYPES:
        raise UsageError(f"unknown dtype {dtype!r}", hint="--dtype float32 | float64")
    if len(samples) == 0:
        raise DataError("the sample is empty, nothing can be measured on it")
    if batch_size is not None and batch_size < 1:
        raise UsageError(f"a batch of {batch_size} was asked for", hint="--batch-size 20")
    params, groups, head = _chosen(model, layers)
    with (
        borrowed(model, list(params.values()), dtype=_DTYPES[dtype], device=device),
        exact_numerics(model),
        plain_attention(),
    ):
        run = Run(
            model=model,
            params=params,
            seeds=seeds,
            batch=_moved(samples, torch.device(device), _DTYPES[dtype]),
            sums=Sums(params, groups),
            quality=Quality(objective, required=seeds.squared),
            seed=seed,
            tell=progress or (lambda stage, done, total: None),
        )
        used: int | None = None
        if compat == "per-sample":
            cost = run.per_sample(batch_size, memory, max_classes)
        else:
            used = convention_batch(compat, batch_size, len(samples))
            cost = run.by_batch(compat, used)
    tensors = run.sums.means()
    notes = (*run.notes, *_about_zeros(tensors), *run.quality.notes)
    return Importance(
        tensors=tensors,
        estimator=estimator,
        compat=compat,
        mode="per-sample" if used is None else "batch-train" if compat in TRAINS else "batch",
        loss=objective.name,
        n_samples=len(samples),
        batch_size=used,
        digest=samples.digest,
        fingerprint=fingerprint_of({n: tuple(t.shape) for n, t in tensors.items()}, head),
        head=head,
        layer_stderr=run.sums.stderrs({n: t.numel() for n, t in tensors.items()}),
        mean_loss=run.quality.mean_loss,
        accuracy=run.quality.accuracy,
        chance=run.quality.chance,
        cost_gradients=cost,
        notes=notes,
    )


def _seen_by(objective: Objective, estimator: Estimator, compat: Compat) -> Objective:
    """MAS takes from the loss which outputs count: all of them where it is the user's own."""
    if not isinstance(objective, UserObjective):
        return objective
    if (estimator, compat) != ("mas", "per-sample"):
        raise UsageError(
            f"{estimator} ({compat}) is of a likelihood, and nothing is known of {objective.name}",
            hint="--estimator mas",
        )
    return Objective("mse")


def fingerprint_of(shapes: Mapping[str, tuple[int, ...]], head: Sequence[str]) -> str:
    """sha256 (hex) over names and shapes in order of name; a head's rows are not counted."""
    state = hashlib.sha256()
    for name in sorted(shapes):
        shape: tuple[object, ...] = shapes[name]
        if name in head:
            shape = ("rows", *shape[1:])
        state.update(f"{name}\0{shape}\0".encode())
    return state.hexdigest()


def _chosen(
    model: nn.Module, layers: Sequence[Layer] | None
) -> tuple[dict[str, nn.Parameter], dict[str, list[str]], tuple[str, ...]]:
    """Parameters to measure, their groups, and which belong to a head; tied ones once."""
    first = {id(p): name for name, p in model.named_parameters()}
    named = dict(model.named_parameters(remove_duplicate=False))
    own = {name: first[id(p)] for name, p in named.items()}
    if layers is None:
        groups = {name: [name] for name in first.values()}
        head = find_head(model)[0]
    else:
        groups = {x.name: list(dict.fromkeys(own[n] for n in x.param_names)) for x in layers}
        head = tuple(n for x in layers if x.is_head for n in groups[x.name])
        head = head or find_head(model)[0]
    names = [name for members in groups.values() for name in members]
    params = {n: named[n] for n in names if named[n].is_floating_point()}
    if not params:
        raise UsageError("there is no parameter to measure")
    groups = {k: [n for n in v if n in params] for k, v in groups.items()}
    return params, {k: v for k, v in groups.items() if v}, tuple(n for n in head if n in params)


def _moved(samples: Samples, device: torch.device, dtype: torch.dtype) -> Batch:
    def move(t: Tensor) -> Tensor:
        return t.to(device=device, dtype=dtype if t.is_floating_point() else None)

    inputs = samples.inputs
    moved = move(inputs) if isinstance(inputs, Tensor) else {k: move(v) for k, v in inputs.items()}
    return Batch(moved, move(samples.targets))


def _about_zeros(tensors: Mapping[str, Tensor]) -> list[str]:
    """Names the tensors without any importance.

    Raises:
        NumericalError: All of them.
    """
    zero = [name for name, t in tensors.items() if not bool(t.any())]
    if len(zero) == len(tensors):
        raise NumericalError(
            "the importance of every parameter is zero: the output depends on none of them",
            hint="check the checkpoint, --loss and --layers",
        )
    more = f" and {len(zero) - 3} more" if len(zero) > 3 else ""
    return [f"no importance at all in {', '.join(zero[:3])}{more}"] if zero else []
