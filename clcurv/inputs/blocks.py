"""Parameters -> blocks with readable names.

timm models say themselves what belongs together (`group_matcher`); in others a block is
a member of a stack: a ModuleList, Sequential or ModuleDict of at least two composite
modules of one class (``encoder.layer.3``, ``layer1.0``). What runs before the first
block is the stem.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

Order = Callable[[str], float]
_CONTAINERS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)
# Layers that timm attaches to the previous group carry this mark as their last ordinal.
_PREVIOUS = 99999


@dataclass
class _Unit:
    """Parameters that stay together."""

    path: str
    names: list[str]
    is_block: bool = False
    is_leaf: bool = False
    is_norm: bool = False
    when: float = 0.0


def block_names(model: nn.Module, names: Sequence[str], order: Order) -> dict[str, list[str]]:
    """Layer name -> parameter names, over exactly the parameters in `names`.

    Args:
        model: Any module.
        names: Parameters to group: all but the head's.
        order: Parameter name -> when its module first ran.
    """
    units = _timm_units(model, names, order) or _generic_units(model, names, order)
    result: dict[str, list[str]] = {}
    for unit in units:
        name, count = unit.path or type(model).__name__, 2
        while name in result:
            name, count = f"{unit.path}#{count}", count + 1
        result[name] = unit.names
    return result


# timm -------------------------------------------------------------------------------


def _timm_units(model: nn.Module, names: Sequence[str], order: Order) -> list[_Unit]:
    """Groups of the timm model that `model` is or holds; empty if there is none."""
    found = next(
        ((path, module) for path, module in model.named_modules() if _has_matcher(module)), None
    )
    if found is None:
        return []
    from timm.models import group_parameters

    path, inner = found
    prefix = f"{path}." if path else ""
    try:
        matcher = _unattached(inner.group_matcher(coarse=False))
        grouped = group_parameters(inner, matcher)
    except (AssertionError, TypeError, KeyError, ValueError, re.error, NotImplementedError):
        return []
    wanted = set(names)
    units: list[_Unit] = []
    ids = sorted(grouped)
    for index in ids:
        members = [f"{prefix}{n}" for n in grouped[index] if f"{prefix}{n}" in wanted]
        if index != ids[-1] or not any("." in n for n in members):
            units += _named_group(members, prefix, first=index == ids[0])
            continue
        # The last group is what the matcher left over: neck and head together.
        units += _by_child(members, prefix)
    inside = {name for unit in units for name in unit.names}
    units += _by_child([name for name in names if name not in inside], "")
    units = [unit for unit in units if unit.names]
    for unit in units:
        if any(other.path.startswith(f"{unit.path}.") for other in units):
            unit.path = f"{prefix}stem" if unit is units[0] else _majority_path(unit)
    return units


def _majority_path(unit: _Unit) -> str:
    """A block and the downsampling before it are named after the block."""
    depth = len(unit.path.split("."))
    children = Counter(name.split(".")[depth] for name in unit.names)
    child = f"{unit.path}.{children.most_common(1)[0][0]}."
    return common_path([name for name in unit.names if name.startswith(child)]) or unit.path


def _has_matcher(module: nn.Module) -> bool:
    return callable(getattr(type(module), "group_matcher", None))


def _unattached(matcher: Any) -> Any:
    """timm attaches the final norm to the last block; here it is a layer of its own."""
    if not isinstance(matcher, dict):
        return matcher
    changed = {}
    for group, spec in matcher.items():
        if isinstance(spec, list | tuple):
            spec = [
                (pattern, (_PREVIOUS - 1,) if suffix and suffix[-1] == _PREVIOUS else suffix)
                for pattern, suffix in spec
            ]
        changed[group] = spec
    return changed


def _named_group(members: list[str], prefix: str, *, first: bool) -> list[_Unit]:
    if not members:
        return []
    path = common_path(members)
    if len(path) >= len(prefix) and path:
        return [_Unit(path, members)]
    if first:
        return [_Unit(f"{prefix}stem", members)]
    own = members[0].removeprefix(prefix).split(".", 1)[0]
    inner = [name for name in members if name.startswith(f"{prefix}{own}.")]
    return [_Unit(common_path(inner) or f"{prefix}{own}", members)]


def _by_child(members: Sequence[str], prefix: str) -> list[_Unit]:
    """One group for each child of the model; a norm stays with what it follows."""
    children: dict[str, list[str]] = {}
    last = ""
    for name in members:
        child = name.removeprefix(prefix).split(".", 1)[0]
        if re.match(r"(bn|norm)\d*$", child) and last and child not in children:
            children[last].append(name)
            continue
        last = child
        children.setdefault(child, []).append(name)
    return [
        _Unit(common_path(group) or f"{prefix}{child}", group) for child, group in children.items()
    ]


def common_path(names: Sequence[str]) -> str:
    """Longest module path that all parameter names share."""
    common = []
    for parts in zip(*(name.split(".")[:-1] for name in names), strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return ".".join(common)


# Other models ------------------------------------------------------------------------


def _generic_units(model: nn.Module, names: Sequence[str], order: Order) -> list[_Unit]:
    wanted = set(names)
    path, root = _descend(model, wanted)
    units = [unit for unit in _units(root, path, wanted) if unit.names]
    while len(units) == 1 and not units[0].is_leaf:
        # One composite holds everything: what is inside it?
        inner = units[0].path
        opened = [u for u in _units(model.get_submodule(inner), inner, wanted) if u.names]
        if len(opened) <= 1:
            break
        units = opened
    for unit in units:
        inner_names = [order(n) for n in unit.names if "." in n] or [order(unit.names[0])]
        unit.when = min(inner_names)
    units.sort(key=lambda unit: unit.when)  # stable: registration order among equals
    return _with_stem(_with_norms(units))


def _descend(model: nn.Module, wanted: set[str]) -> tuple[str, nn.Module]:
    """Past wrappers that hold nothing but one module."""
    path, module = "", model
    while True:
        prefix = f"{path}." if path else ""
        inside = [n for n in wanted if n.startswith(prefix)]
        children = {n.removeprefix(prefix).split(".", 1)[0] for n in inside}
        if len(children) != 1:
            return path, module
        child = getattr(module, children.pop(), None)
        if not isinstance(child, nn.Module) or _is_leaf(child):
            return path, module
        path, module = f"{prefix}{_name_of(module, child)}", child


def _name_of(module: nn.Module, child: nn.Module) -> str:
    return next(name for name, other in module.named_children() if other is child)


def _units(module: nn.Module, path: str, wanted: set[str]) -> Iterator[_Unit]:
    prefix = f"{path}." if path else ""
    for name, _ in module.named_parameters(recurse=False):
        if f"{prefix}{name}" in wanted:
            yield _Unit(f"{prefix}{name}", [f"{prefix}{name}"], is_leaf=True)
    stack = _is_stack(module)
    for name, child in module.named_children():
        inner = f"{prefix}{name}"
        names = [f"{inner}.{n}" for n, _ in child.named_parameters() if f"{inner}.{n}" in wanted]
        if not names:
            continue
        if _holds_stack(child) or (isinstance(child, nn.Sequential) and not stack):
            yield from _units(child, inner, wanted)
        else:
            yield _Unit(
                inner,
                names,
                is_block=stack and _weights(child) > 1,
                is_leaf=_is_leaf(child),
                is_norm=_is_norm(child),
            )


def _is_leaf(module: nn.Module) -> bool:
    return not any(True for _ in module.children())


def _is_norm(module: nn.Module) -> bool:
    kinds = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
    return _is_leaf(module) and (isinstance(module, kinds) or "Norm" in type(module).__name__)


def _weights(module: nn.Module) -> int:
    """Leaves with parameters that are no norms."""
    return sum(
        1
        for leaf in module.modules()
        if not _is_norm(leaf) and any(True for _ in leaf.parameters(recurse=False))
    )


def _is_stack(module: nn.Module) -> bool:
    """A sequence of at least two blocks of one class."""
    if not isinstance(module, _CONTAINERS):
        return False
    kinds = Counter(type(child) for child in module.children() if _weights(child) > 1)
    return max(kinds.values(), default=0) > 1


def _holds_stack(module: nn.Module) -> bool:
    """A stack somewhere below. Experts lie side by side in one block and are no stack."""
    return any(
        _is_stack(inner) and "expert" not in path.lower() for path, inner in module.named_modules()
    )


def _with_norms(units: list[_Unit]) -> list[_Unit]:
    """A norm joins the single layer that runs right before it (conv1 and bn1)."""
    merged: list[_Unit] = []
    for unit in units:
        before = merged[-1] if merged else None
        if unit.is_norm and before is not None and before.is_leaf and not before.is_norm:
            before.names += unit.names
        else:
            merged.append(unit)
    return merged


def _with_stem(units: list[_Unit]) -> list[_Unit]:
    """Everything before the first block is one layer, loose tokens and positions too."""
    first = next((index for index, unit in enumerate(units) if unit.is_block), None)
    if first is None:
        return units
    start = units[:first]
    loose = [u for u in units[first:] if u.is_leaf and len(u.names) == 1 and u.path == u.names[0]]
    rest = [unit for unit in units[first:] if unit not in loose]
    names = [name for unit in start + loose for name in unit.names]
    if not names:
        return rest
    own = start[0].path if len(start) == 1 else ""
    return [_Unit(own if own and common_path(names) == own else "stem", names), *rest]
