"""A verdict and a measured scale -> the coefficients of L2-ER, with how they came about.

Numbers only: no torch here. The objective is min L + λ‖θ‖² − β Σ_l erank(E[a_l a_lᵀ]) (Prakash,
He, Guo et al., *Spectral Collapse Drives Loss of Plasticity in Deep Continual Learning*, arXiv
2509.22335); as in the public code it is taken in separate steps (`ORDER`), whose sizes are what
is recommended.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clcurv.diagnostics.window import PUBLISHED_WINDOWS, er_window
from clcurv.errors import UsageError
from clcurv.recommend.collapse import Signal, Verdict, judge, late_tasks

if TYPE_CHECKING:
    from clcurv.diagnostics.er_scale import ErScale
    from clcurv.diagnostics.spectrum import SpectrumResult

__all__ = ["ORDER", "L2erAdvice", "Signal", "Verdict", "judge", "recommend_l2er"]

ORDER = (
    "every mini-batch: the optimizer's step on the task loss, with weight_decay*theta added to "
    "its gradient (coupled)",
    "after every er_every-th of them: theta <- theta + er_lr * grad(mean over er_layers of the "
    "effective rank of their inputs), a plain SGD step of its own, on the last `window` samples "
    "run again through the network as it is now",
    "then the window is emptied",
)
WEIGHT_DECAY = 1e-3  # of all published runs
EVERY = 10
SHARE = 0.05  # ours: that of a run that stays healthy (sample_checkpoints/permuted_digits)
PUBLISHED_ER_LR = (1e-6, 1e-2)
PUBLISHED_RATIO = (0.01, 1.0)  # er_lr / lr: Slippery Ant; Permuted MNIST
MIDDLE_RATIO = 0.1  # continual ImageNet and incremental CIFAR
ASSUMED_LR = 1e-2  # Permuted MNIST and incremental CIFAR


@dataclass(frozen=True)
class L2erAdvice:
    """What `clcurv.training.L2ER` is told.

    Attributes:
        weight_decay: Coupled: added to the gradient as weight_decay·θ.
        er_lr: Step size up the mean effective rank.
        er_every: Mini-batches from one such step to the next.
        er_layers: Modules whose inputs count.
        window: Most samples of these mini-batches that are used.
        order: The steps, in words.
        lr: The task's learning rate that the figures are meant for.
        lam, beta: λ = weight_decay/2 and β = er_lr/(lr·er_every·L), the objective that the
            steps amount to (L layers); with momentum m, lr stands for lr/(1 − m).
        derivation: How the figures came about.
    """

    weight_decay: float
    er_lr: float
    er_every: int
    er_layers: tuple[str, ...]
    window: int
    order: tuple[str, ...]
    lr: float
    lam: float
    beta: float
    derivation: str


def recommend_l2er(
    result: SpectrumResult,
    verdict: Verdict,
    scale: ErScale | None = None,
    lr: float | None = None,
    *,
    er_every: int = EVERY,
) -> L2erAdvice:
    """Coefficients for the training that goes on from here.

    er_lr makes the step up the effective rank a twentieth as long as the task's own steps since
    the last one: er_lr·‖∇erank‖ = lr·er_every·‖∇L‖/20, both gradients measured on this network
    and data, so that it grows and shrinks with the network. It is then held within what was
    published, 0.01 to 1 of the learning rate and 1e-6 to 1e-2. Weight decay is that of all
    published runs.

    Args:
        result: What was measured.
        verdict: `judge` of it. ``healthy`` and ``inconclusive`` give zeros.
        scale: The two gradients; None takes the middle of the published er_lr/lr.
        lr: Learning rate of the training to come; None takes the result's, and 1e-2 without.
        er_every: Mini-batches between two steps.

    Raises:
        UsageError: `lr` or `er_every` is not positive.
    """
    if er_every < 1 or (lr is not None and not 0 < lr < math.inf):
        raise UsageError("lr and er_every must be positive", hint="for example --lr 0.01")
    known = lr if lr is not None else result.lr
    rate = ASSUMED_LR if known is None else known
    if verdict.verdict in ("healthy", "inconclusive"):
        why = (
            "the stream is healthy: nothing to correct"
            if verdict.verdict == "healthy"
            else "the measurement is inconclusive: no regularisation is advised on it"
        )
        return L2erAdvice(0.0, 0.0, 0, (), 0, ORDER, rate, 0.0, 0.0, f"all zero, {why}")
    layers, window = _layers(result, scale)
    if not layers:
        return L2erAdvice(
            WEIGHT_DECAY, 0.0, 0, (), 0, ORDER, rate, WEIGHT_DECAY / 2, 0.0,
            "weight decay alone, as published: no layer has features to measure",
        )  # fmt: skip
    moved = rate / (1 - result.momentum)
    er_lr, steps = _er_lr(scale, rate, moved, er_every)
    said = [
        f"weight_decay {WEIGHT_DECAY:g} as in all published runs",
        *([] if known is not None else [f"no learning rate was given, {ASSUMED_LR:g} is assumed"]),
        *steps,
        f"er_every {er_every}",
        f"window {window} samples: one and a half rows a feature, as far as the sample measured "
        f"and the published {PUBLISHED_WINDOWS[0]} to {PUBLISHED_WINDOWS[1]} allow",
    ]
    return L2erAdvice(
        weight_decay=WEIGHT_DECAY,
        er_lr=er_lr,
        er_every=er_every,
        er_layers=layers,
        window=window,
        order=ORDER,
        lr=rate,
        lam=WEIGHT_DECAY / 2,
        beta=er_lr / (moved * er_every * len(layers)),
        derivation="; ".join(said),
    )


def _layers(result: SpectrumResult, scale: ErScale | None) -> tuple[tuple[str, ...], int]:
    if scale is not None:
        return scale.layers, scale.window
    for task in (*reversed(late_tasks(result)), result.reference):
        if task.features:
            return tuple(x.name for x in task.features), er_window(task.features, task.n_samples)
    return (), 0


def _er_lr(
    scale: ErScale | None, lr: float, moved: float, er_every: int
) -> tuple[float, list[str]]:
    """The step size, and sentences about it; `moved` is lr with the momentum's part."""
    if scale is None or not scale.er_gradient > 0 or not scale.task_gradient > 0:
        wanted = MIDDLE_RATIO * lr
        missing = "not measured" if scale is None else "zero in one of the two"
        told = f"er_lr {MIDDLE_RATIO:g} of the learning rate, the middle of what is published"
        said = [f"{told} (the gradients' ratio is {missing})"]
    else:
        wanted = SHARE * moved * er_every * scale.task_gradient / scale.er_gradient
        said = [
            f"er_lr {wanted:.2g} makes the step up the effective rank (gradient norm "
            f"{scale.er_gradient:.3g}) {SHARE:g} of {er_every} steps on the task (gradient norm "
            f"{scale.task_gradient:.3g}) at lr {lr:g}"
            + (f" with momentum {1 - lr / moved:.2g}" if moved > lr else "")
        ]
    low = max(PUBLISHED_ER_LR[0], PUBLISHED_RATIO[0] * lr)
    high = min(PUBLISHED_ER_LR[1], PUBLISHED_RATIO[1] * lr)
    er_lr = min(max(wanted, min(low, high)), high)
    if er_lr != wanted:
        end = "down" if er_lr < wanted else "up"
        said.append(
            f"brought {end} to {er_lr:.2g}, the end of what is published "
            f"(er_lr {PUBLISHED_ER_LR[0]:g} to {PUBLISHED_ER_LR[1]:g}, "
            f"{PUBLISHED_RATIO[0]:g} to {PUBLISHED_RATIO[1]:g} of lr)"
        )
    return er_lr, said
