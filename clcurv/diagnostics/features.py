"""How many directions the layers' inputs use: effective rank, approximate rank, idle units."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clcurv.curvature.influence import effective_rank_slope, stderr_of
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
    dormant when active (above zero) on less than 1 % of the rows, dead when on none. A second
    pass over the data gives the standard errors (`clcurv.curvature.influence`); rows are taken
    to be ordered by sample.

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
            spectra = {layer.name: _Spectrum.of(moments[layer.name]) for layer in chosen}
            influences = within_memory(
                lambda size: _influences(model, samples, spectra, size), batch_size
            )
        return tuple(
            _ranks(layer, moments[layer.name], spectra[layer.name], influences[layer.name])
            for layer in chosen
        )


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


@dataclass
class _Spectrum:
    """Eigenvalues λ (d,) of the second moment, and S = Σ ∂erank/∂λ_i v_iv_iᵀ (d, d)."""

    squares: NDArray[np.float64]
    slope: Tensor

    @classmethod
    def of(cls, moments: _Moments) -> _Spectrum:
        values, vectors = torch.linalg.eigh(moments.second)
        squares = values.cpu().numpy()
        # What lies under the rounding of the largest is zero, not a direction.
        floor = len(squares) * np.finfo(np.float64).eps * max(float(squares[-1]), 0.0)
        squares = np.where(squares > floor, squares, 0.0)
        slope = torch.from_numpy(effective_rank_slope(squares)).to(vectors.device)
        return cls(squares, (vectors * slope) @ vectors.T)


def _accumulate(
    model: nn.Module, samples: Samples, layers: Collection[FeatureLayer], size: int
) -> dict[str, _Moments]:
    found: dict[str, _Moments] = {}

    def add(name: str, rows: Tensor, first: int, counts: list[int] | None) -> None:
        if name not in found:
            d = rows.shape[1]
            # Apple's GPUs have no float64.
            where = "cpu" if rows.device.type == "mps" else rows.device
            found[name] = _Moments(
                torch.zeros(d, d, dtype=torch.float64, device=where),
                torch.zeros(d, dtype=torch.int64, device=where),
            )
        found[name].add(rows)

    _read(model, samples, [layer.name for layer in layers], size, add)
    return found


def _influences(
    model: nn.Module, samples: Samples, spectra: Mapping[str, _Spectrum], size: int
) -> dict[str, NDArray[np.float64] | None]:
    """Of every sample on the effective rank of every layer: Σ aᵀSa over its rows a."""
    found: dict[str, NDArray[np.float64] | None] = {
        name: np.zeros(len(samples)) for name in spectra
    }

    def add(name: str, rows: Tensor, first: int, counts: list[int] | None) -> None:
        held, slope = found[name], spectra[name].slope
        if held is None or counts is None:
            found[name] = None
            return
        each = []
        for part in torch.split(rows, _CHUNK):
            wide = part.to(slope.device, torch.float64)
            each.append((wide @ slope).mul_(wide).sum(1))
        by_sample = [float(part.sum()) for part in torch.split(torch.cat(each), counts)]
        held[first : first + len(counts)] += by_sample  # a module may run more than once

    _read(model, samples, list(spectra), size, add)
    return found


@torch.no_grad()
def _read(
    model: nn.Module,
    samples: Samples,
    layers: Sequence[str],
    size: int,
    add: Callable[[str, Tensor, int, list[int] | None], None],
) -> None:
    """Every layer's input as rows, with the first sample of the batch and each one's row count."""
    modules = dict(model.named_modules())
    mask: Tensor | None = None
    done = size_now = 0

    def take(name: str, value: Tensor) -> None:
        rows, counts = as_rows(modules[name], value, mask), None
        if not bool(rows.isfinite().all()):
            raise NumericalError(
                f"the input of layer {name} is not finite on one of samples {done} to "
                f"{min(done + size, len(samples)) - 1}",
                hint="clcurv reads the weights as they are: check the checkpoint and the inputs",
            )
        if mask is not None and len(rows) == int((mask != 0).sum()):
            counts = (mask != 0).sum(1).tolist()
        elif len(rows) % size_now == 0:
            counts = [len(rows) // size_now] * size_now
        add(name, rows, done, counts)

    with plain_attention(), hooked(model, layers, take):
        for batch in samples.split(size):
            mask, size_now = padding_mask(batch.inputs), len(batch)
            call(model, batch.inputs)
            done += len(batch)


def _ranks(
    layer: FeatureLayer,
    moments: _Moments,
    spectrum: _Spectrum,
    influences: NDArray[np.float64] | None,
) -> LayerFeatures:
    n, d = moments.n, len(moments.second)
    sigma = np.sqrt(spectrum.squares)
    share = moments.active.double() / n
    return LayerFeatures(
        name=layer.name,
        n=n,
        d=d,
        ceiling=min(n, d),
        erank=effective_rank(sigma),
        erank_stderr=None if influences is None else stderr_of(influences),
        erank_covariance=effective_rank(spectrum.squares),
        approximate_rank=approximate_rank(sigma),
        dormant=float((share < DORMANT_BELOW).double().mean()) if layer.can_be_off else None,
        dead=float((share == 0).double().mean()) if layer.can_be_off else None,
        enough=n >= ENOUGH_ROWS * d,
    )
