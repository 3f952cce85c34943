"""Importances on disk: a safetensors file that says how they were taken."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Final, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from clcurv.curvature.batchwise import Compat
from clcurv.curvature.importance import Importance, Mode, fingerprint_of
from clcurv.curvature.output_seeds import Estimator
from clcurv.errors import CorruptFileError, NotWeightsError
from clcurv.inputs.checkpoint import default_max_bytes
from clcurv.inputs.filetype import identify, require_file
from clcurv.inputs.loss_names import LossName
from clcurv.inputs.torchfile import too_large
from clcurv.runtime import atomic_write

KEY = "clcurv.importance"
VERSION: Final = 1
_AGAIN = "write it again with --save-importance"
_STORED = {"F32": torch.float32, "F64": torch.float64}
_CHUNK = 1 << 20

_Count = Annotated[int, Field(ge=1)]
_Number = Annotated[float, Field(allow_inf_nan=False)]
_Part = Annotated[float, Field(ge=0, le=1)]
_Hex = Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]


class _Header(BaseModel):
    """What the metadata holds under `KEY`, as JSON."""

    model_config = ConfigDict(strict=True, extra="ignore")

    version: Literal[1] = VERSION
    estimator: Estimator
    compat: Compat
    mode: Mode
    loss: LossName
    n_samples: _Count
    batch_size: _Count | None
    digest: Annotated[str, Field(max_length=200)]
    fingerprint: _Hex
    head: list[str]
    accumulated: _Count
    layer_stderr: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]]
    mean_loss: _Number | None
    accuracy: _Part | None
    chance: _Part | None


def save_importance(path: str | Path, importance: Importance) -> None:
    """Writes an importance file, whole or not at all.

    Tensors are stored in float32 (relative error 6e-8) unless one of their values leaves its
    normal range, then in float64.

    Raises:
        UsageError: `path` cannot be a file.
        ResourceError: The disk is full.
    """
    held = {name: getattr(importance, name) for name in _Header.model_fields if name != "version"}
    header = _Header(
        **{**held, "head": list(importance.head), "layer_stderr": dict(held["layer_stderr"])}
    )
    tensors = {name: _smallest(t) for name, t in importance.tensors.items()}
    # One entry alone: safetensors writes several in an order that changes from run to run.
    metadata = {KEY: header.model_dump_json()}
    atomic_write(path, save(tensors, metadata=metadata))


def load_importance(path: str | Path, *, max_bytes: int | None = None) -> Importance:
    """Reads an importance file; everything it claims is checked before a tensor is read.

    Args:
        path: The file.
        max_bytes: Refuse larger ones (default: half of RAM).

    Raises:
        InputError: No such file.
        NotWeightsError: Not an importance file, such as model weights.
        CorruptFileError: Cut short, damaged, or contradicting itself.
        ResourceError: Larger than `max_bytes`.
    """
    path = Path(path)
    require_file(path)
    limit = default_max_bytes() if max_bytes is None else max_bytes
    size = path.stat().st_size
    if size > limit:
        raise too_large(path, size, limit)
    if identify(path) != "safetensors":
        raise NotWeightsError(f"{path} is a torch file, not an importance file", hint=_AGAIN)
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            header = _header(path, dict(file.metadata() or {}))
            names = list(file.keys())
            slices = {name: file.get_slice(name) for name in names}
            shapes = {name: tuple(s.get_shape()) for name, s in slices.items()}
            _check_claims(path, header, shapes, {n: s.get_dtype() for n, s in slices.items()})
            needed = 8 * sum(math.prod(shape) for shape in shapes.values())
            if needed > limit:
                raise too_large(path, needed, limit)
            tensors = {name: _checked(path, name, file.get_tensor(name)) for name in names}
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise CorruptFileError(
            f"{path} is no valid safetensors file ({first})", hint="copy it again, or " + _AGAIN
        ) from error
    held = header.model_dump(exclude={"version", "head"})
    return Importance(tensors=tensors, head=tuple(header.head), **held)


def _header(path: Path, metadata: dict[str, str]) -> _Header:
    if KEY not in metadata:
        raise NotWeightsError(
            f"{path} holds tensors but no importance (its metadata lack {KEY!r}): is it a model?",
            hint="give the file that --save-importance wrote",
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
        fault = error.errors()[0]
        where = ".".join(str(part) for part in fault["loc"]) or "metadata"
        raise CorruptFileError(
            f"{path} is no valid importance file: {where!r}: {fault['msg']}", hint=_AGAIN
        ) from None
    except (ValueError, RecursionError):
        raise CorruptFileError(f"{path}: its metadata are no JSON", hint=_AGAIN) from None


def _check_claims(
    path: Path, header: _Header, shapes: dict[str, tuple[int, ...]], dtypes: dict[str, str]
) -> None:
    if not shapes:
        raise CorruptFileError(f"{path} holds no tensors", hint=_AGAIN)
    for name, dtype in dtypes.items():
        if dtype not in _STORED:
            raise CorruptFileError(f"{path}: {name!r} is of type {dtype}, not float", hint=_AGAIN)
    if fingerprint_of(shapes, header.head) != header.fingerprint:
        raise CorruptFileError(
            f"{path} contradicts itself: names or shapes of its tensors are not those it was "
            "written with",
            hint=_AGAIN,
        )


def _checked(path: Path, name: str, tensor: Tensor) -> Tensor:
    lowest, highest = (float(v) for v in tensor.aminmax()) if tensor.numel() else (0.0, 0.0)
    if not (lowest >= 0 and math.isfinite(highest)):
        raise CorruptFileError(
            f"{path}: {name!r} holds values that are no importance (negative or not finite)",
            hint=_AGAIN,
        )
    return tensor.double()


def _smallest(tensor: Tensor) -> Tensor:
    """float32 where no value is lost, in contiguous memory of its own."""
    limits = torch.finfo(torch.float32)
    # A million at a time: a mask of everything would be as large as the weights.
    for piece in torch.split(tensor.reshape(-1), _CHUNK):
        positive = piece[piece > 0]
        if positive.numel():
            low, high = (float(v) for v in positive.aminmax())
            if low < limits.tiny or high > limits.max:
                return tensor.double().contiguous()
    return tensor.float().contiguous()
