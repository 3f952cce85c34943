"""An untrusted file or folder -> named tensors and what is known about them."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from clcurv.errors import CorruptFileError, NotWeightsError, UnsafeFileError
from clcurv.inputs import modelfolder
from clcurv.inputs.filetype import describe_size, identify, require_file, require_there
from clcurv.inputs.statedict import Selected, select, states_of_modules, strip_prefixes
from clcurv.inputs.torchfile import NeedsCodeError, read_pickled, read_torch, too_large

_QUANTISED = re.compile(
    r"(\.|^)(qweight|qzeros|SCB|weight_format|absmax|quant_map|quant_state\S*|_packed_params\S*"
    r"|weight_scale_inv|g_idx)$"
)
_ADAPTER = re.compile(r"(\.|^)(lora_[AB]|lora_embedding_[AB]|ia3_l|lora_magnitude_vector)(\.|$)")


@dataclass(frozen=True)
class Weights:
    """Named tensors read from a checkpoint, and where they came from.

    Attributes:
        tensors: Name -> tensor on the CPU, prefixes already stripped.
        path: The file or folder given by the user.
        format: ``torch`` | ``safetensors`` | ``timm-folder`` | ``hf-folder``
            | ``peft-folder`` (an adapter, its base beside or at a local path).
        key: The wrapper key the tensors were found under, e.g. ``state_dict``
            or ``model``; None for a bare state dict.
        prefix: The prefix stripped from every name, e.g. ``module.``; "" if none.
        metadata: Plain values found beside the tensors (``arch``, ``epoch``, ...).
        config: A folder's parsed config.json.
        digest: sha256 (hex) over names, dtypes, shapes and bytes of the tensors.
        notes: Sentences for the report (what was chosen, cast or skipped).
        original_names: Name in `tensors` -> name in the file.
        aside: Names (as in the file) of a second copy of the network, not used.
        other_keys: Further state dicts in the file, any of which `key` could have named.
        module: The pickled module that the tensors belong to, where `unsafe_pickle` opened one.
    """

    tensors: Mapping[str, Tensor]
    path: Path
    format: str
    key: str | None = None
    prefix: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] | None = None
    digest: str = ""
    notes: tuple[str, ...] = ()
    original_names: Mapping[str, str] = field(default_factory=dict)
    aside: tuple[str, ...] = ()
    other_keys: tuple[str, ...] = ()
    module: nn.Module | None = None


def load_weights(
    path: str | Path,
    *,
    key: str | None = None,
    max_bytes: int | None = None,
    unsafe_pickle: bool = False,
) -> Weights:
    """Read a checkpoint without executing anything in it.

    Files are recognised by content: torch files (zip and the older format, bare state
    dicts, wrapped ones, timm training files, Lightning), safetensors; folders: timm and
    Hugging Face, sharded or not.

    Args:
        path: A file or folder.
        key: Which state dict inside a file, e.g. ``state_dict_ema``.
        max_bytes: Refuse more than this many bytes of tensors (default: half of RAM).
        unsafe_pickle: Where a file cannot be read without running the code it names, run it:
            whole pickled modules, plain pickles. Only for files of a trusted origin.

    Returns:
        The tensors as stored (nothing cast), prefixes stripped from their names.

    Raises:
        InputError: No such file, or no such key.
        NotWeightsError: Not weights, or weights without gradients (quantised, adapters).
        CorruptFileError: Cut short or damaged.
        UnsafeFileError: Would run code, or claims more than it holds.
        ResourceError: Larger than `max_bytes`.
    """
    path = Path(path)
    limit = default_max_bytes() if max_bytes is None else max_bytes
    read = partial(_read_file, key=key, limit=limit, unsafe=unsafe_pickle)
    config: Mapping[str, Any] | None = None
    require_there(path)
    if path.is_dir():
        folder = modelfolder.describe(path)
        config, kind = folder.config, folder.format
        selected = _read_files(folder.files, folder.path, read, limit=limit)
        modelfolder.check_complete(folder, selected.tensors)
        notes = [*selected.notes, *folder.notes]
    else:
        selected = _read_files([path], path, read, limit=limit)
        kind = "safetensors" if identify(path, pickles=True) == "safetensors" else "torch"
        notes = list(selected.notes)
    tensors = check_tensors(selected.tensors, path, limit, adapters=kind == "peft-folder")
    prefix, aside, names = "", tuple[str, ...](), {name: name for name in tensors}
    if kind not in ("hf-folder", "timm-folder", "peft-folder"):
        tensors, prefix, names, aside = strip_prefixes(tensors)
    if prefix:
        notes.append(f"prefix {prefix!r} stripped from the tensor names")
    if aside:
        notes.append(
            f"{len(aside)} tensors of a second copy of the network ({aside[0]!r}, ...) not used"
        )
    return Weights(
        tensors=tensors,
        path=path,
        format=kind,
        key=selected.key,
        prefix=prefix,
        metadata=selected.metadata,
        config=config,
        digest=digest(tensors),
        notes=tuple(notes),
        original_names=names,
        aside=aside,
        other_keys=selected.others,
        module=selected.module,
    )


def default_max_bytes() -> int:
    """Half of the machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _read_files(
    files: list[Path], path: Path, read: Callable[[Path], Selected], *, limit: int
) -> Selected:
    """One file, or the shards of one state dict."""
    total = sum(file.stat().st_size for file in files if file.is_file())
    if total > limit:
        raise too_large(path, total, limit)
    parts = [read(file) for file in files]
    if len(parts) == 1:
        return parts[0]
    tensors: dict[str, Tensor] = {}
    notes = [f"read from {len(files)} shards"]
    for file, part in zip(files, parts, strict=True):
        twice = tensors.keys() & part.tensors.keys()
        if twice:
            raise CorruptFileError(f"{file} repeats {sorted(twice)[0]!r} of another shard")
        tensors |= part.tensors
        notes += [f"{file.name}: {note}" for note in part.notes]
    return Selected(tensors, None, {}, tuple(notes))


def _read_file(path: Path, *, key: str | None, limit: int, unsafe: bool) -> Selected:
    require_file(path)
    kind = identify(path, pickles=unsafe)
    if kind == "safetensors":
        return _read_safetensors(path, key)
    if kind != "pickle":
        try:
            return select(read_torch(path, kind, max_bytes=limit), path, key=key)
        except NeedsCodeError:
            if not unsafe:
                raise
    content, modules = states_of_modules(read_pickled(path, kind, max_bytes=limit))
    selected = select(content, path, key=key)
    return replace(
        selected,
        notes=(f"UNSAFE: {path.name} was unpickled with the code in it", *selected.notes),
        module=modules.get(selected.key or ""),
    )


def _read_safetensors(path: Path, key: str | None) -> Selected:
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = dict(file.metadata() or {})
    except (SafetensorError, OSError, ValueError, RuntimeError, AttributeError) as error:
        # The last for types that this torch does not have.
        raise CorruptFileError(
            f"{path} is no valid safetensors file ({_first_line(error)})",
            hint="copy or download it again",
        ) from error
    if not tensors:
        raise NotWeightsError(f"{path} is a safetensors file without tensors")
    if key is not None:
        return select(tensors, path, key=key)
    return Selected(tensors, None, metadata, ())


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def check_tensors(
    tensors: Mapping[str, Tensor], path: Path, limit: int, *, adapters: bool = False
) -> dict[str, Tensor]:
    """Refuse tensors that cannot be differentiated or that pretend to be larger than they are.

    Raises:
        UnsafeFileError: A tensor with more elements than its storage (stride 0, overlap).
        NotWeightsError: Quantised weights, adapters, tensors without data, sparse ones.
        ResourceError: More than `limit` bytes together.
    """
    total = 0
    kept: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.is_quantized or _QUANTISED.search(name) or _is_packed(name, tensor):
            raise NotWeightsError(
                f"{path} holds quantised weights ({name!r}, {tensor.dtype}), which have no "
                "gradients",
                hint="give the float checkpoint it was made from",
            )
        if not adapters and _ADAPTER.search(name):
            raise NotWeightsError(
                f"{path} holds adapter weights ({name!r}) without the model they adapt",
                hint="merge them first: model.merge_and_unload().save_pretrained(DIR)",
            )
        if tensor.layout != torch.strided or tensor.device.type != "cpu":
            raise NotWeightsError(
                f"{path}: {name!r} is a {tensor.layout} tensor on {tensor.device}, not plain data"
            )
        size = tensor.numel() * tensor.element_size()
        if size > tensor.untyped_storage().nbytes():
            raise UnsafeFileError(
                f"{path}: {name!r} claims shape {list(tensor.shape)} but is backed by only "
                f"{describe_size(tensor.untyped_storage().nbytes())} (overlapping memory)",
                hint="if you made it, save tensor.contiguous()",
            )
        total += size
        if total > limit:
            raise too_large(path, total, limit)
        kept[name] = tensor.detach()
    return kept


def _is_packed(name: str, tensor: Tensor) -> bool:
    """Integer or 8-bit float weight matrices: a quantiser wrote them."""
    if not name.endswith("weight") or tensor.ndim < 2:
        return False
    return not tensor.is_complex() and (
        not tensor.is_floating_point() or tensor.element_size() == 1
    )


def digest(tensors: Mapping[str, Tensor]) -> str:
    """sha256 (hex) over names, dtypes, shapes and bytes, in order of name."""
    state = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        state.update(f"{name}\0{tensor.dtype}\0{list(tensor.shape)}\0".encode())
        flat = tensor.contiguous().reshape(-1)
        if flat.numel():
            state.update(flat.view(torch.uint8).numpy().data)
    return state.hexdigest()
