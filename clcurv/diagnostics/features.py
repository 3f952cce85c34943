"""How many directions the layers' inputs use: effective rank, approximate rank, idle units."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from clcurv.curvature.numerics import borrowed, exact_numerics
from clcurv.curvature.rank import approximate_rank, effective_rank
from clcurv.diagnostics.activations import (
    FeatureLayer,
    as_rows,
    call,
    feature_layers,
    hooked,
    padding_mask,
)
from clcurv.diagnostics.spectrum import LayerFeatures
from clcurv.diagnostics.survey import within_memory
from clcurv.errors import NumericalError
from clcurv.inputs.dataset import Samples
from clcurv.inputs.execution import plain_attention

DORMANT_BELOW = 0.01
ENOUGH_ROWS = 5
_CHUNK = 1 << 16  # rows taken to float64 at a time


def measure_features(
    model: nn.Module,
    samples: Samples,
    *,
    layers: Collection[str] | None = None,
    batch_size: int = 64,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> tuple[LayerFeatures, ...]:
    """Ranks of every layer's input, after the nonlinearity and uncentred, in eval mode.

    Convolutions: channels are the features, every position a sample. Linear layers of a
    transformer: every token a sample, padding left out where ``attention_mask`` marks it. Only
    the (d, d) second moment is kept, in float64, so memory does not grow with n; singular
    values are the roots of its eigenvalues, exact down to about 1e-8 of the largest.

    Effective rank: Roy and Vetterli 2007, of the activation matrix (σ, as the public code of
    arXiv 2509.22335 has it) and of the covariance (σ², as the paper writes it). Units are
    dormant when active (above zero) on less than 1 % of the rows, dead when on none.

    Args:
        model: Comes back as it was.
        samples: Only the inputs are used.
        layers: Names of modules (or of what holds them); all linear and convolutional layers
            but the first by default.
        batch_size: Largest micro-batch; halved where memory runs out.
        device, dtype: Of the forward pass.

    Returns:
        One entry a layer, in order of execution.

    Raises:
        UsageError: A name in `layers` is none, or the network has no hidden layer.
        MismatchError: The model cannot be run on the data.
        NumericalError: An input that is not finite; the layer is named.
        ResourceError: Out of memory with a single sample.
    """
    with borrowed(model, list(model.parameters()), dtype=dtype, device=device):
        with exact_numerics(model):
            chosen = feature_layers(model, samples.split(2)[0], layers=layers)
            moments = within_memory(
                lambda size: _accumulate(model, samples, chosen, size), batch_size
            )
        return tuple(_ranks(layer, moments[layer.name]) for layer in chosen)


@dataclass
class _Moments:
    """Σ a aᵀ (d, d) over the rows so far, how often each unit was above zero, and n."""

    second: Tensor
    active: Tensor
    n: int = 0

    def add(self, rows: Tensor) -> None:
        for start in range(0, len(rows), _CHUNK):
            wide = rows[start : start + _CHUNK].to(self.second.device, torch.float64)
            self.second.addmm_(wide.T, wide)
            self.active += (wide > 0).sum(dim=0)
        self.n += len(rows)


@torch.no_grad()
def _accumulate(
    model: nn.Module, samples: Samples, layers: Collection[FeatureLayer], size: int
) -> dict[str, _Moments]:
    modules = dict(model.named_modules())
    found: dict[str, _Moments] = {}
    mask: Tensor | None = None
    done = 0

    def take(name: str, value: Tensor) -> None:
        rows = as_rows(modules[name], value, mask)
        if not bool(rows.isfinite().all()):
            raise NumericalError(
                f"the input of layer {name} is not finite on one of samples {done} to "
                f"{min(done + size, len(samples)) - 1}",
                hint="clcurv reads the weights as they are: check the checkpoint and the inputs",
            )
        if name not in found:
            d = rows.shape[1]
            # Apple's GPUs have no float64.
            where = "cpu" if rows.device.type == "mps" else rows.device
            found[name] = _Moments(
                torch.zeros(d, d, dtype=torch.float64, device=where),
                torch.zeros(d, dtype=torch.int64, device=where),
            )
        found[name].add(rows)

    with plain_attention(), hooked(model, [layer.name for layer in layers], take):
        for batch in samples.split(size):
            mask = padding_mask(batch.inputs)
            call(model, batch.inputs)
            done += len(batch)
    return found


def _ranks(layer: FeatureLayer, moments: _Moments) -> LayerFeatures:
    n, d = moments.n, len(moments.second)
    values = torch.linalg.eigvalsh(moments.second).cpu().numpy()
    # What lies under the rounding of the largest is zero, not a direction.
    floor = d * np.finfo(np.float64).eps * max(float(values[-1]), 0.0)
    squares = np.where(values > floor, values, 0.0)
    sigma = np.sqrt(squares)
    share = moments.active.double() / n
    return LayerFeatures(
        name=layer.name,
        n=n,
        d=d,
        ceiling=min(n, d),
        erank=effective_rank(sigma),
        erank_covariance=effective_rank(squares),
        approximate_rank=approximate_rank(sigma),
        dormant=float((share < DORMANT_BELOW).double().mean()) if layer.can_be_off else None,
        dead=float((share == 0).double().mean()) if layer.can_be_off else None,
        enough=n >= ENOUGH_ROWS * d,
    )
