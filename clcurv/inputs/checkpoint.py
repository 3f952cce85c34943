"""An untrusted file or folder -> named tensors and what is known about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Weights:
    """Named tensors read from a checkpoint, and where they came from.

    Attributes:
        tensors: Name -> tensor on the CPU, prefixes already stripped.
        path: The file or folder given by the user.
        format: ``torch`` | ``safetensors`` | ``timm-folder`` | ``hf-folder``.
        key: The wrapper key the tensors were found under, e.g. ``state_dict``
            or ``model``; None for a bare state dict.
        prefix: The prefix stripped from every name, e.g. ``module.``; "" if none.
        metadata: Plain values found beside the tensors (``arch``, ``epoch``, ...).
        config: A folder's parsed config.json.
        digest: sha256 (hex) over names, dtypes, shapes and bytes of the tensors.
        notes: Sentences for the report (what was chosen, cast or skipped).
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


def load_weights(path: str | Path, *, key: str | None = None) -> Weights:
    raise NotImplementedError
