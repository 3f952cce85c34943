"""What a checkpoint holds -> its state dict, clean names, plain metadata."""

from __future__ import annotations

import argparse
import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from clcurv.errors import InputError, NotWeightsError, UnsafeFileError
from clcurv.inputs.fingerprints import is_head, is_pretraining
from clcurv.inputs.torchfile import NumpyArray

# A file may hold one object in many places, so what is walked is counted.
_MOST_ENTRIES = 500_000  # of mappings that are looked through for tensors
_MOST_VALUES = 100_000  # of metadata that are kept
_DEEPEST = 8  # wrappers inside each other

# In order of preference.
_PLAIN_KEYS = (
    *("state_dict", "model", "model_state_dict", "model_state", "net", "network", "weights"),
    *("params", "module", "backbone", "encoder", "base_encoder", "state"),
)
# torch's quantised linear layers keep their weights here, and not as a tensor.
_PACKED = re.compile(r"(^|\.)_packed_params(\.|$)")
_EMA = re.compile(r"(^|_)(ema|swa|averaged|moving_average)(_|$)", re.IGNORECASE)
_ASIDE = re.compile(
    r"optim|sched|scaler|^amp|criterion|loss|callback|^loops$|^rng|discriminator|^queue"
)

# Wrappers that put a prefix before every name, the plain model first.
_PREFIXES = (
    *("module", "_orig_mod", "model", "net", "network", "backbone", "encoder", "base_encoder"),
    *("encoder_q", "online_encoder", "teacher", "student", "trunk", "base_model"),
)
_COPIES = ("teacher", "student", "encoder_k", "momentum_encoder", "target_encoder", "ema_model")


@dataclass(frozen=True)
class Selected:
    """The state dict chosen from a checkpoint.

    Attributes:
        tensors: Name -> tensor, as named in the file.
        key: Dotted path inside the file; None for a bare state dict.
        metadata: Plain values found beside it.
        notes: What was chosen among several, what was left out.
        others: Dotted paths of further state dicts that could be chosen instead.
        module: The module that was in its place.
    """

    tensors: dict[str, Tensor]
    key: str | None
    metadata: dict[str, Any]
    notes: tuple[str, ...]
    others: tuple[str, ...] = ()
    module: nn.Module | None = None


def select(content: Any, path: Path, *, key: str | None = None) -> Selected:
    """Find the state dict in what a file holds.

    The plain model is taken before an average of it (EMA), a teacher before its
    student (the networks DINO and its kin publish); `key` overrides both.

    Args:
        content: What `torch.load` returned.
        path: For messages.
        key: Dotted path of the state dict wanted, e.g. ``state_dict_ema``.

    Raises:
        NotWeightsError: No named tensors inside.
        InputError: No such `key`, or several state dicts and no rule to choose.
    """
    if isinstance(content, Tensor):
        raise NotWeightsError(
            f"{path} holds one tensor {tuple(content.shape)}, not named weights",
            hint="save the model's state_dict()",
        )
    if not isinstance(content, Mapping):
        raise NotWeightsError(
            f"{path} holds a {type(content).__name__}, not named weights",
            hint="save the model's state_dict()",
        )
    room = _Room(_MOST_ENTRIES)
    walked = [entry for entry in _state_dicts(content, "", 0, room) if entry[1]]
    found = {name: tensors for name, tensors, _ in walked}
    if room.left < 0:
        raise UnsafeFileError(f"{path} holds mappings inside each other, to exhaust the machine")
    if not found:
        raise NotWeightsError(
            f"{path} holds no named tensors (its keys: {_some(map(str, content))})",
            hint="save the model's state_dict()",
        )
    notes: list[str] = []
    chosen = _choose(found, path, key, notes)
    for name, _, packed in walked:
        if name == chosen and packed is not None:
            raise NotWeightsError(
                f"{path} holds quantised weights ({packed!r}), which have no gradients",
                hint="give the float checkpoint it was made from",
            )
    kept = _Room(_MOST_VALUES)
    metadata = {
        str(name): _plain(value, 0, kept)
        for name, value in content.items()
        if not _ASIDE.search(str(name)) and not _holds_tensors(value, set())
    }
    if chosen:
        notes.insert(0, f"weights taken from key {chosen!r}")
        skipped = 0
    else:
        skipped = len(content) - len(found[chosen])
        metadata = {name: value for name, value in metadata.items() if name not in found[""]}
    if skipped:
        notes.append(f"{skipped} entries of the state dict are no tensors and were left out")
    tensors = found[chosen]
    if "n_averaged" in tensors and all(
        n.startswith("module.") for n in tensors if n != "n_averaged"
    ):
        # torch's AveragedModel counts what it has seen.
        times = tensors.pop("n_averaged")
        notes.append(f"these are averaged weights (of {plain(times)} networks)")
    others = tuple(name for name in _models(found) if name and name != chosen)
    return Selected(tensors, chosen or None, metadata, tuple(notes), others)


@dataclass
class _Room:
    left: int

    def take(self, n: int) -> bool:
        """Whether so many more are allowed."""
        self.left -= n
        return self.left >= 0


def _state_dicts(
    value: Any, path: str, depth: int, room: _Room
) -> Iterator[tuple[str, dict[str, Tensor], str | None]]:
    """All mappings from names to tensors, and the first name in them of packed weights."""
    if not isinstance(value, Mapping) or depth > _DEEPEST or not room.take(len(value)):
        return
    tensors = {
        name: item
        for name, item in value.items()
        if isinstance(name, str) and isinstance(item, Tensor)
    }
    if len(tensors) * 2 >= len(value) or (not depth and len(tensors) > 8):
        packed = (name for name in value if isinstance(name, str) and _PACKED.search(name))
        yield path, tensors, next(packed, None)
    for name, item in value.items():
        if isinstance(name, str) and not _ASIDE.search(name):
            yield from _state_dicts(item, f"{path}.{name}" if path else name, depth + 1, room)


def _numel(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors.values())


def _choose(
    found: dict[str, dict[str, Tensor]], path: Path, key: str | None, notes: list[str]
) -> str:
    available = _some(name for name in found if name) or "none: it is a bare state dict"
    if key is not None:
        if key in found:
            return key
        inside = [name for name in found if name.startswith(f"{key}.")]
        if len(inside) == 1:
            return inside[0]
        raise InputError(f"{path} has no weights under {key!r}", hint=f"keys there: {available}")
    models = _models(found)
    if "" in models:
        return ""
    plain_ones = [name for name in models if not _is_average(name)]
    ranked = sorted(plain_ones or models, key=_rank)
    best = ranked[0]
    if len(ranked) > 1 and _rank(best) == _rank(ranked[1]):
        raise InputError(
            f"{path} holds several state dicts ({available}) and none has a usual name",
            hint=f"choose one with --key, e.g. --key {best}",
        )
    if len(models) > 1:
        others = _some(name for name in models if name != best)
        notes.append(f"also inside, not used: {others}; --key chooses")
    if not plain_ones:
        notes.append(f"only averaged (EMA) weights were found, under {best!r}")
    return best


def _models(found: Mapping[str, Mapping[str, Tensor]]) -> list[str]:
    """Those of a model's size: metrics and buffers saved as small dicts of tensors are none."""
    largest = max(_numel(tensors) for tensors in found.values())
    return [name for name, tensors in found.items() if _numel(tensors) * 10 >= largest]


def _is_average(name: str) -> bool:
    return any(_EMA.search(part) for part in name.split("."))


def _rank(name: str) -> tuple[int, int]:
    """Lower is better: usual names first, then teachers, students, and the rest."""
    parts = name.split(".")
    if parts[0] in _PLAIN_KEYS:
        return _PLAIN_KEYS.index(parts[0]), len(parts)
    for place, word in enumerate(("teacher", "student")):
        if word in parts[0]:
            return 100 + place, len(parts)
    if parts[-1] in _PLAIN_KEYS:
        return 200 + _PLAIN_KEYS.index(parts[-1]), len(parts)
    return 999, 0


def _some(names: Any, limit: int = 6) -> str:
    shown = [str(name) for name in names]
    return ", ".join(shown[:limit]) + (", ..." if len(shown) > limit else "")


def strip_prefixes(
    tensors: Mapping[str, Tensor],
) -> tuple[dict[str, Tensor], str, dict[str, str], tuple[str, ...]]:
    """Take wrapper prefixes (``module.``, ``_orig_mod.``, ``model.``, ...) off the names.

    A prefix goes when it covers at least half of the elements; names without it stay
    as they are. It is only ever taken from the front.

    Returns:
        The renamed tensors, the prefix taken off, new name -> name in the file, and
        the names of sibling copies (a teacher beside a student) that were left alone.
    """
    names = {name: name for name in tensors}  # new -> in the file
    taken = ""
    aside: set[str] = set()
    for _ in range(6):
        prefix = _next_prefix({new: tensors[old].numel() for new, old in names.items()})
        if prefix is None:
            break
        inside = {new[len(prefix) :]: old for new, old in names.items() if new.startswith(prefix)}
        outside = {new: old for new, old in names.items() if not new.startswith(prefix)}
        if inside.keys() & outside.keys():
            break
        aside |= {old for new, old in outside.items() if _is_copy(new)}
        names = {
            (new[len(prefix) :] if new.startswith(prefix) else new): old
            for new, old in names.items()
        }
        taken += prefix
    return {new: tensors[old] for new, old in names.items()}, taken, names, tuple(sorted(aside))


def _is_copy(name: str) -> bool:
    first = name.split(".", 1)[0]
    return first in _COPIES or bool(_EMA.search(first))


def _next_prefix(numels: Mapping[str, int]) -> str | None:
    total: dict[str, int] = {}
    for name, numel in numels.items():
        first, dot, _ = name.partition(".")
        total[first if dot else ""] = total.get(first if dot else "", 0) + numel
    own = sum(n for first, n in total.items() if not _is_copy(first)) or sum(total.values())
    for word in _PREFIXES:
        share = total.get(word, 0)
        base = own if not _is_copy(word) else sum(total.values())
        if not share or share * 5 < base * 2:
            continue
        # Not every encoder is a wrapper: torchvision's vision transformers have one inside.
        others = (name for name in numels if not name.startswith("encoder."))
        if word == "encoder" and not all(is_head(n) or is_pretraining(n) for n in others):
            continue
        return f"{word}."
    return None


def states_of_modules(content: Any) -> tuple[Any, dict[str, nn.Module]]:
    """What an unpickled file holds, with the state dict of every module in its place.

    Returns:
        The content, and the modules by their dotted paths ("" for the file's own object).
    """
    modules: dict[str, nn.Module] = {}

    def replaced(value: Any, path: str, depth: int) -> Any:
        if isinstance(value, nn.Module):
            modules[path] = value
            return dict(value.state_dict())
        if isinstance(value, Mapping) and depth < _DEEPEST:
            return {
                name: replaced(item, f"{path}.{name}" if path else str(name), depth + 1)
                for name, item in value.items()
            }
        return value

    return replaced(content, "", 0), modules


def _holds_tensors(value: Any, seen: set[int]) -> bool:
    if isinstance(value, Tensor):
        return value.numel() != 1
    if isinstance(value, Mapping) and id(value) not in seen:
        seen.add(id(value))
        return len(seen) < 1000 and any(_holds_tensors(item, seen) for item in value.values())
    return False


def plain(value: Any) -> Any:
    """Plain Python values only: numbers, strings, lists, dicts; the rest becomes None."""
    return _plain(value, 0, _Room(_MOST_VALUES))


def _plain(value: Any, depth: int, room: _Room) -> Any:
    if not room.take(1) or depth > 8:
        return None
    if isinstance(value, np.generic):
        return _plain(value.item(), depth + 1, room)
    if value is None or isinstance(value, bool | int | float | str):
        return value[:10_000] if isinstance(value, str) else value
    if isinstance(value, Tensor):
        simple = value.layout == torch.strided and value.device.type == "cpu"
        return _plain(value.item(), 8, room) if simple and value.numel() == 1 else None
    if isinstance(value, NumpyArray):
        value = value.value
    if isinstance(value, np.ndarray):
        return _plain(value.tolist(), depth + 1, room) if value.size <= 1000 else None
    if isinstance(value, argparse.Namespace):
        value = vars(value)
    if isinstance(value, PurePath | torch.dtype | torch.device):
        return str(value)
    if isinstance(value, Mapping):
        pairs = [*value.items()]
        return {str(name): _plain(item, depth + 1, room) for name, item in pairs if room.left > 0}
    if isinstance(value, list | tuple | set | deque):
        items = list(value)[:10_000]
        return [_plain(item, depth + 1, room) for item in items if room.left > 0]
    return None
