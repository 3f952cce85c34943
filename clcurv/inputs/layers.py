"""Parameters -> ordered, named layers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from clcurv.errors import UsageError
from clcurv.inputs.blocks import block_names
from clcurv.inputs.dataset import Batch
from clcurv.inputs.execution import NEVER, execution_order

GRANULARITIES = ("block", "module", "tensor")


@dataclass(frozen=True)
class Layer:
    """A group of parameters whose Hessian block is measured as one.

    Attributes:
        name: Unique, e.g. ``blocks.3`` or ``layer1.0.conv1.weight``.
        param_names: Names as in ``model.named_parameters()``; tied names follow
            in `tied_names`.
        depth: 0-based order of first execution among the layers.
        is_head: The classifier, left out of κ and of the fit unless asked.
        tied_names: Further names of the same tensors.
    """

    name: str
    param_names: tuple[str, ...]
    depth: int
    is_head: bool = False
    tied_names: tuple[str, ...] = ()


def discover_layers(
    model: nn.Module,
    batch: Batch,
    *,
    granularity: str = "block",
    head_params: Sequence[str] = (),
    regex: str | None = None,
    groups: Mapping[str, Sequence[str]] | None = None,
) -> list[Layer]:
    """Group a model's parameters into layers, shallow to deep, heads last.

    Args:
        model: Any module; it is called once on at most two samples, without gradients.
        batch: Where these samples come from.
        granularity: ``block`` (a transformer block, a residual block, the stem, the final
            norm; norms and biases belong to their block), ``module`` (parameters of one
            module), ``tensor``; anything else is taken as `regex`.
        head_params: Names of the classifier's parameters: layers of their own.
        regex: A layer is the set of parameters whose names share the first group of
            this expression's first match (the whole match where it has no group); names
            without a match are in no layer, see `left_out`.
        groups: Layer name -> parameter names, instead of all that.

    Returns:
        Every parameter in exactly one layer (with `regex` and `groups`: at most one).
        Depth is the order of first execution; layers that never ran come after those
        that did, in order of registration. Tied parameters are in one layer under
        their first name.

    Raises:
        UsageError: The expression does not compile or matches nothing, or `groups`
            names unknown parameters or one parameter twice.
    """
    names = [name for name, p in model.named_parameters() if p.numel()]
    heads = set(head_params)
    if regex is None and granularity not in GRANULARITIES:
        regex = granularity
    if groups is not None:
        assigned = _from_mapping(model, groups)
    elif regex is not None:
        assigned = _from_regex(names, regex)
    else:
        order = execution_order(model, batch)
        assigned = _assign(model, names, heads, granularity, order)
        return _layers(model, assigned, heads, order)
    return _layers(model, assigned, heads, execution_order(model, batch))


def left_out(model: nn.Module, layers: Sequence[Layer]) -> tuple[str, ...]:
    """Parameter names that are in none of the layers."""
    inside = {name for layer in layers for name in layer.param_names}
    return tuple(name for name, _ in model.named_parameters() if name not in inside)


def _assign(
    model: nn.Module,
    names: Sequence[str],
    heads: set[str],
    granularity: str,
    order: Callable[[str], float],
) -> dict[str, list[str]]:
    """Layer name -> parameter names."""
    assigned: dict[str, list[str]] = {}
    if granularity == "block":
        body = block_names(model, [name for name in names if name not in heads], order)
        assigned.update(body)
        for name, members in _group_heads(names, heads).items():
            assigned[_unique(name, assigned)] = members
        return assigned
    for name in names:
        owner = name.rpartition(".")[0]
        key = (owner or name) if granularity == "module" else name
        assigned.setdefault(key, []).append(name)
    return assigned


def _group_heads(names: Sequence[str], heads: set[str]) -> dict[str, list[str]]:
    """Heads by their first differing component: ``head``, ``head_dist``."""
    found: dict[str, list[str]] = {}
    for name in names:
        if name in heads:
            found.setdefault(name.split(".", 1)[0], []).append(name)
    return {_common_path(members) or key: members for key, members in found.items()}


def _common_path(names: Sequence[str]) -> str:
    """Longest module path that all names share."""
    paths = [name.split(".")[:-1] for name in names]
    common = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return ".".join(common)


def _unique(name: str, taken: Mapping[str, object]) -> str:
    candidate, count = name, 2
    while candidate in taken:
        candidate, count = f"{name}#{count}", count + 1
    return candidate


def _from_regex(names: Sequence[str], regex: str) -> dict[str, list[str]]:
    try:
        pattern = re.compile(regex)
    except re.error as error:
        raise UsageError(
            f"--layers {regex!r} is neither block, module, tensor nor a regular expression "
            f"({error})",
            hint=r"for example --layers 'blocks\.\d+'",
        ) from error
    assigned: dict[str, list[str]] = {}
    for name in names:
        match = pattern.search(name)
        if match:
            key = match.group(1) if pattern.groups else None
            assigned.setdefault(key or match.group(0) or name, []).append(name)
    if not assigned:
        shown = ", ".join(names[:3])
        raise UsageError(
            f"--layers {regex!r} matches no parameter (they are called {shown}, ...)",
            hint=r"for example --layers 'blocks\.\d+'",
        )
    return assigned


def _from_mapping(model: nn.Module, groups: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    first = {id(param): name for name, param in model.named_parameters()}
    known = {n: first[id(p)] for n, p in model.named_parameters(remove_duplicate=False)}
    seen: dict[str, str] = {}
    assigned: dict[str, list[str]] = {}
    for layer, members in groups.items():
        for member in members:
            if member not in known:
                raise UsageError(f"layer {layer!r} names {member!r}, which is no parameter")
            name = known[member]
            if seen.setdefault(name, layer) != layer:
                raise UsageError(f"{member!r} is in two layers: {seen[name]!r} and {layer!r}")
            if name not in assigned.setdefault(layer, []):
                assigned[layer].append(name)
    empty = [layer for layer in groups if not assigned.get(layer)]
    if empty:
        raise UsageError(f"layer {empty[0]!r} has no parameters")
    return assigned


def _layers(
    model: nn.Module,
    assigned: Mapping[str, Sequence[str]],
    heads: set[str],
    order: Callable[[str], float],
) -> list[Layer]:
    """Sort by execution, heads last, and number them."""
    rank = {name: index for index, (name, _) in enumerate(model.named_parameters())}
    tied = _tied_names(model)

    def position(item: tuple[str, Sequence[str]]) -> tuple[bool, float, int]:
        _, members = item
        return (
            all(name in heads for name in members),
            _group_order(members, order),
            min(rank[name] for name in members),
        )

    return [
        Layer(
            name=name,
            param_names=tuple(sorted(members, key=rank.__getitem__)),
            depth=depth,
            is_head=all(member in heads for member in members),
            tied_names=tuple(other for member in members for other in tied.get(member, ())),
        )
        for depth, (name, members) in enumerate(sorted(assigned.items(), key=position))
    ]


def _group_order(members: Sequence[str], order: Callable[[str], float]) -> float:
    """When a group first runs.

    Parameters held by the model itself (a class token) only tell that the model ran,
    so they count where there is nothing else.
    """
    inner = [order(name) for name in members if "." in name]
    ran = [when for when in inner if when != NEVER]
    if ran:
        return min(ran)
    return min((order(name) for name in members), default=NEVER)


def _tied_names(model: nn.Module) -> dict[str, list[str]]:
    """First name -> further names of the same parameter."""
    first: dict[int, str] = {}
    further: dict[str, list[str]] = {}
    for name, param in model.named_parameters(remove_duplicate=False):
        if id(param) in first:
            further.setdefault(first[id(param)], []).append(name)
        else:
            first[id(param)] = name
    return further
