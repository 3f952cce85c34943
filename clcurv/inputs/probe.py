"""A head for a backbone that has none: a ridge fit in closed form."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
import scipy.optimize
import scipy.special
import torch
from torch import Tensor, nn

from clcurv.errors import DataError, NumericalError, UsageError
from clcurv.inputs.dataset import Batch, Samples
from clcurv.inputs.execution import forward_faults
from clcurv.inputs.loaded import LoadedModel

Array = np.ndarray[Any, np.dtype[np.float64]]

# Relative to the mean squared singular value of the standardised features.
_RIDGES = np.logspace(-6, 4, 41)
_SCALES = (1e-2, 100.0)
# Of the median standard deviation. Standardising a smaller feature (MiniLM has one of 1e-8) would
# give it weights that make all curvature below the head that feature's.
_DEAD = 1e-3
_MAX_EMPTY = 20  # classes of the head per class seen, beyond which the numbering is a mistake


@dataclass(frozen=True)
class RidgeFit:
    """A linear classifier and how well it does.

    Attributes:
        weight: ``(k, d)``, of raw (not standardised) features, logits already scaled.
        bias: ``(k,)``.
        ridge: λ of the fit.
        scale: Logits are the regression's predictions times this (1 / temperature).
        train_accuracy, loo_accuracy: On the samples, and with each one left out.
        loo_loss: Mean cross-entropy with each sample left out, nats.
    """

    weight: Array
    bias: Array
    ridge: float
    scale: float
    train_accuracy: float
    loo_accuracy: float
    loo_loss: float


def fit_ridge(
    features: Array,
    classes: np.ndarray[Any, np.dtype[np.int64]],
    width: int,
    *,
    ridge: float | None = None,
) -> RidgeFit:
    """Ridge regression of one-hot labels on standardised features, all in closed form.

    With the centred, standardised features X = U S Vᵀ the hat matrix is
    H = 11ᵀ/n + U diag(s²/(s² + λ)) Uᵀ, and the error of the prediction for sample i by a
    fit without it is (y_i − ŷ_i)/(1 − H_ii) (Allen 1974; Golub, Heath & Wahba 1979). λ
    minimises the mean square of these over a grid. One-hot regression ranks classes well
    but its values are no log-odds, so one factor for all logits is chosen to minimise the
    cross-entropy of the leave-one-out predictions from smoothed targets: a class seen n_c times
    among K has probability (n_c + 1)/(n_c + K), the others 1/(n_c + K) each (Platt 1999,
    section 2.2). From one-hot targets a separable sample would make the factor as large as it
    can get, the loss zero, and all its curvature rounding.

    Args:
        features: ``(n, d)``.
        classes: ``(n,)``, below `width`.
        width: Classes of the head, k.
        ridge: λ, instead of choosing it.

    Raises:
        NumericalError: Features are not finite, or all constant.
    """
    if not np.isfinite(features).all():
        raise NumericalError("the backbone's features are not finite", hint="check the weights")
    n = len(features)
    mean, std = features.mean(0), features.std(0)
    varies = std > 1e-12 * max(float(np.abs(features).max()), 1e-300)
    if not varies.any():
        raise NumericalError("the backbone's features are the same for every sample")
    alive = varies & (std > 1e-6 * std.max())
    varies &= std >= _DEAD * np.median(std[alive])
    std = np.where(varies, std, 1.0)
    x = np.where(varies, (features - mean) / std, 0.0)
    one_hot = np.eye(width)[classes]
    base = one_hot.mean(0)
    y = one_hot - base
    u, s, vt = scipy.linalg.svd(x, full_matrices=False, check_finite=False)
    projected = u.T @ y

    def left_out(penalty: float) -> tuple[Array, Array]:
        shrink = s**2 / (s**2 + penalty)
        fitted = u @ (shrink[:, None] * projected)
        leverage = 1.0 / n + (u**2) @ shrink
        residual = (y - fitted) / np.maximum(1.0 - leverage, 1e-12)[:, None]
        return fitted, residual

    if ridge is None:
        grid = _RIDGES * float((s**2).mean())
        ridge = float(min(grid, key=lambda penalty: float((left_out(penalty)[1] ** 2).mean())))
    fitted, residual = left_out(ridge)
    predicted = one_hot - residual

    smoothed = _smoothed(classes, width)

    def loss(log_scale: float) -> float:
        return _cross_entropy(np.exp(log_scale) * predicted, smoothed)

    low, high = np.log(_SCALES)
    found = scipy.optimize.minimize_scalar(loss, bounds=(low, high), method="bounded")
    scale = float(np.exp(found.x))
    coefficients = (vt.T @ ((s / (s**2 + ridge))[:, None] * projected)).T / std
    return RidgeFit(
        weight=scale * coefficients,
        bias=scale * (base - coefficients @ mean),
        ridge=ridge,
        scale=scale,
        train_accuracy=float(((fitted + base).argmax(1) == classes).mean()),
        loo_accuracy=float((predicted.argmax(1) == classes).mean()),
        loo_loss=_cross_entropy(scale * predicted, one_hot),
    )


def linear_probe(
    loaded: LoadedModel,
    samples: Samples,
    *,
    batch_size: int = 32,
    ridge: float | None = None,
    seed: int = 0,
) -> LoadedModel:
    """Put a linear head on a backbone, fitted in closed form on the sample.

    timm models get their own head back (``reset_classifier``), so that parameter names stay
    what they were; other models are wrapped as ``backbone`` + ``head``. The given model is
    left as it was, all parameters of the result require grad.

    Args:
        loaded: A model whose output is features ``(n, d)``, or an HF output with
            ``pooler_output`` or ``last_hidden_state`` (averaged over unmasked tokens).
        samples: With class ids as targets.
        batch_size: Rows per forward pass.
        ridge: λ, instead of choosing it by leave-one-out error.
        seed: Unused by the closed form; kept so that all fits are called alike.

    Raises:
        MismatchError: The model cannot be run on the data.
        DataError: The labels are no classes, fewer than two classes, or numbered wildly.
        NumericalError: Features are not finite, or the same for every sample.
        UsageError: The model has a head.
    """
    del seed
    if loaded.task != "backbone":
        raise UsageError(
            f"{loaded.arch} has a {loaded.task} head already",
            hint="leave --head linear-probe out, or give a checkpoint without a head",
        )
    targets = samples.targets
    if targets.ndim != 1 or targets.is_floating_point():
        raise DataError("a linear probe needs one class label per sample")
    classes = targets.numpy().astype(np.int64)
    seen, width = len(np.unique(classes)), int(classes.max()) + 1
    if seen < 2:
        raise DataError("a linear probe needs samples of at least two classes")
    if width > _MAX_EMPTY * seen:
        raise DataError(
            f"labels up to {width - 1} for {seen} classes are no class numbers",
            hint="number the classes from 0",
        )
    backbone = copy.deepcopy(loaded.model).eval()
    batches = samples.split(batch_size)
    with torch.no_grad(), forward_faults():
        features = torch.cat(
            [_features(backbone, batch.inputs).double().cpu() for batch in batches]
        )
    fit = fit_ridge(features.numpy(), classes, width, ridge=ridge)
    with torch.random.fork_rng(devices=[]):  # new layers are initialised before being filled
        probe = _own_head(backbone, fit, batches[0], features[: len(batches[0])])
        model, head = probe if probe is not None else _wrapped(backbone, fit)
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    note = (
        f"linear probe: ridge {fit.ridge:.3g} chosen by leave-one-out error, logits scaled by "
        f"{fit.scale:.3g} (leave-one-out cross-entropy {fit.loo_loss:.3g} nats); "
        f"accuracy {fit.train_accuracy:.1%} on its {len(samples)} samples, "
        f"{fit.loo_accuracy:.1%} with each left out"
    )
    notes = [*loaded.notes, note]
    if fit.loo_accuracy <= np.bincount(classes).max() / len(classes):
        notes.append("the linear probe is no better than guessing the commonest class")
    if seen < width:
        notes.append(f"{width - seen} of the probe's {width} classes have no sample")
    return dataclasses.replace(
        loaded,
        model=model,
        task="classification",
        num_classes=width,
        head_params=head,
        probe_accuracy=fit.loo_accuracy,
        notes=tuple(notes),
    )


class ProbedBackbone(nn.Module):
    """A backbone followed by a linear ``head`` on its pooled features."""

    def __init__(self, backbone: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def forward(self, *args: Tensor, **kwargs: Tensor) -> Tensor:
        output = self.backbone(*args, **kwargs)
        logits: Tensor = self.head(_pooled(output, kwargs.get("attention_mask")))
        return logits


def _wrapped(backbone: nn.Module, fit: RidgeFit) -> tuple[nn.Module, tuple[str, ...]]:
    head = nn.Linear(fit.weight.shape[1], fit.weight.shape[0])
    _fill(head, fit)
    return ProbedBackbone(backbone, head).eval(), ("head.weight", "head.bias")


def _own_head(
    backbone: nn.Module, fit: RidgeFit, batch: Batch, features: Tensor
) -> tuple[nn.Module, tuple[str, ...]] | None:
    """A timm model's own classifier with the fitted weights, if that is the same function."""
    reset = getattr(backbone, "reset_classifier", None)
    if reset is None:
        return None
    model = copy.deepcopy(backbone)
    try:
        model.reset_classifier(len(fit.bias))  # type: ignore[operator]
        head = model.get_classifier()  # type: ignore[operator]
    except Exception:  # some timm models refuse a new head; the wrapper serves them
        return None
    if not isinstance(head, nn.Linear) or head.in_features != fit.weight.shape[1]:
        return None
    _fill(head, fit)
    model.eval()
    expected = features.numpy() @ fit.weight.T + fit.bias
    with torch.no_grad():
        actual = _call(model, batch.inputs)
    if not isinstance(actual, Tensor) or not np.allclose(
        actual.double().numpy(), expected, rtol=1e-3, atol=1e-3 * float(np.abs(expected).max())
    ):
        return None
    names = tuple(
        name for name, p in model.named_parameters() if any(p is own for own in head.parameters())
    )
    return model, names


def _fill(head: nn.Linear, fit: RidgeFit) -> None:
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(fit.weight))
        head.bias.copy_(torch.from_numpy(fit.bias))


def _call(model: nn.Module, inputs: Tensor | Mapping[str, Tensor]) -> Any:
    return model(inputs) if isinstance(inputs, Tensor) else model(**inputs)


def _features(model: nn.Module, inputs: Tensor | Mapping[str, Tensor]) -> Tensor:
    mask = None if isinstance(inputs, Tensor) else inputs.get("attention_mask")
    return _pooled(_call(model, inputs), mask)


def _pooled(output: Any, mask: Tensor | None) -> Tensor:
    """Features ``(n, d)`` out of whatever a backbone returns."""
    if isinstance(output, Tensor):
        if output.ndim == 4:
            return output.mean((2, 3))
        return output.mean(1) if output.ndim == 3 else output.flatten(1)
    hidden = getattr(output, "last_hidden_state", None)
    if hidden is None or hidden.ndim != 3 or mask is None:
        pooled = getattr(output, "pooler_output", None)
        if pooled is not None:
            return torch.as_tensor(pooled).flatten(1)
    if hidden is None:
        raise DataError(
            f"the backbone returns a {type(output).__name__}, no features for a linear probe"
        )
    if hidden.ndim != 3:
        return torch.as_tensor(hidden).mean((2, 3))
    if mask is None:
        return torch.as_tensor(hidden).mean(1)
    weights = mask.to(hidden.dtype).unsqueeze(-1)
    return torch.as_tensor((hidden * weights).sum(1) / weights.sum(1).clamp(min=1))


def _smoothed(classes: np.ndarray[Any, np.dtype[np.int64]], width: int) -> Array:
    """Platt's targets ``(n, k)``; classes without a sample get nothing."""
    counts = np.bincount(classes, minlength=width)
    seen = counts > 0
    total = counts[classes] + seen.sum()
    targets: Array = seen / total[:, None]
    targets[np.arange(len(classes)), classes] = (counts[classes] + 1) / total
    return targets


def _cross_entropy(logits: Array, targets: Array) -> float:
    """Mean over rows, of probabilities `targets`."""
    log_p = logits - scipy.special.logsumexp(logits, axis=1, keepdims=True)
    return float(-(targets * log_p).sum(axis=1).mean())
