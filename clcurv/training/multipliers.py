"""The side file of per-parameter multipliers α': what a training job holds parameters with.

One safetensors file, parameter name -> α' in the parameter's shape, made like the importance
files: the metadata hold under `KEY` a JSON object with ``version``, ``lambda`` (weight of the
penalty λ/2 Σ α'(θ−θ*)², or null) and ``about``, plain values on how the numbers came about:
``estimator``, ``compat``, ``multiplier``, ``tau_mode``, ``lambda_up``, ``lambda_down``,
``learning_rate``, ``lambda_ceiling``, ``schedule`` (when λ_ℓ is in the numbers already), ...
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal

import safetensors.torch
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor

from clcurv.errors import CorruptFileError, NotWeightsError, NumericalError, UsageError
from clcurv.inputs.checkpoint import default_max_bytes
from clcurv.inputs.filetype import identify, require_file
from clcurv.inputs.torchfile import too_large
from clcurv.report.text import printable
from clcurv.runtime import atomic_write

KEY = "clcurv.multipliers"
VERSION: Final = 1
Plain = str | float | int | bool | None
_AGAIN = "clcurv relimp writes the file beside its report"

_Number = Annotated[float, Field(allow_inf_nan=False)]


class _Header(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    version: Literal[1] = 1
    lambda_: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(
        default=None, alias="lambda"
    )
    about: dict[str, str | _Number | int | bool | None] = Field(default_factory=dict)


@dataclass(frozen=True)
class Multipliers:
    """α' of every parameter, and the λ that goes with them.

    Attributes:
        tensors: Parameter name -> α', at least 0, of the parameter's shape when measured.
        lambda_: Recommended weight of the penalty; None where the writer had none.
        about: How the numbers came about.
    """

    tensors: Mapping[str, Tensor]
    lambda_: float | None = None
    about: Mapping[str, Plain] = field(default_factory=dict)


def save_multipliers(
    path: str | Path,
    tensors: Mapping[str, Tensor],
    *,
    lambda_: float | None = None,
    about: Mapping[str, Plain] | None = None,
) -> None:
    """Write the side file, whole or not at all. Numbers are stored as float32.

    Args:
        path: Where to.
        tensors: Parameter name -> α'.
        lambda_: Weight of the penalty.
        about: Further plain values for the metadata.

    Raises:
        UsageError: Nothing to write, or `path` cannot be a file.
        NumericalError: A multiplier, λ or value of `about` that is negative or not finite.
        ResourceError: The disk is full.
    """
    if not tensors:
        raise UsageError("there are no multipliers to write")
    held = {}
    for name, tensor in tensors.items():
        stored = tensor.detach().to(device="cpu", dtype=torch.float32).contiguous()
        if fault := _fault(stored):
            raise NumericalError(f"the multipliers of {name} {fault}")
        held[name] = stored
    try:
        header = _Header.model_validate({"lambda": lambda_, "about": dict(about or {})})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = "the weight of the penalty" if "lambda" in first["loc"] else str(first["loc"][1])
        raise NumericalError(f"{key} is {first['input']!r}: {first['msg']}") from None
    # One entry alone: safetensors writes several in an order that changes from run to run.
    metadata = {KEY: header.model_dump_json(by_alias=True)}
    atomic_write(path, safetensors.torch.save(held, metadata=metadata))


def load_multipliers(path: str | Path, *, max_bytes: int | None = None) -> Multipliers:
    """Read what `save_multipliers` wrote.

    Args:
        path: The file.
        max_bytes: Refuse larger ones (default: half of RAM).

    Raises:
        InputError: No such file.
        NotWeightsError: Another kind of file.
        CorruptFileError: Cut short, damaged, or with values that are no multipliers.
        ResourceError: Larger than `max_bytes`.
    """
    path = Path(path)
    require_file(path)
    limit = default_max_bytes() if max_bytes is None else max_bytes
    if (size := path.stat().st_size) > limit:
        raise too_large(path, size, limit)
    if identify(path) != "safetensors":
        raise NotWeightsError(f"{path} is a torch file, not a multipliers file", hint=_AGAIN)
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            header = _header(path, dict(file.metadata() or {}))
            tensors = {n: file.get_tensor(n) for n in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise CorruptFileError(
            f"{path} is no valid safetensors file ({printable(reason)})", hint="copy it again"
        ) from error
    if not tensors:
        raise CorruptFileError(f"{path} holds no tensors", hint=_AGAIN)
    for name, tensor in tensors.items():
        if fault := _fault(tensor):
            raise CorruptFileError(f"{path}: the multipliers of {printable(name)} {fault}")
    return Multipliers(tensors, header.lambda_, header.about)


def _header(path: Path, metadata: Mapping[str, str]) -> _Header:
    if KEY not in metadata:
        raise NotWeightsError(
            f"{path} holds tensors but no multipliers (its metadata lack {KEY!r})",
            hint="give the side file that clcurv relimp wrote, not weights or importances",
        )
    try:
        held = json.loads(metadata[KEY])
        version = held.get("version") if isinstance(held, dict) else None
        if isinstance(version, int) and version > VERSION:
            raise NotWeightsError(
                f"{path} is of version {version}, written by a newer clcurv", hint="update clcurv"
            )
        return _Header.model_validate(held)
    except ValidationError as error:
        first = error.errors()[0]
        where = printable(".".join(str(part) for part in first["loc"])) or "metadata"
        raise CorruptFileError(
            f"{path} is no valid multipliers file: {where}: {first['msg']}", hint=_AGAIN
        ) from None
    except (ValueError, RecursionError):
        raise CorruptFileError(f"{path}: its metadata are no JSON", hint=_AGAIN) from None


def _fault(tensor: Tensor) -> str | None:
    if not tensor.is_floating_point():
        return f"are of type {tensor.dtype}, not real numbers"
    if not tensor.numel():
        return None
    low, high = (float(v) for v in tensor.aminmax())
    if not math.isfinite(low) or not math.isfinite(high):
        return "are not finite"
    return "are negative" if low < 0 else None
