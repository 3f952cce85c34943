"""Dotted paths into the report, checked against its schema before there is a report.

``kappa.value``, ``groups[-1].s``, ``groups[*].s`` (any of them), ``groups["blocks.3"].s``.
A path that ends at a section with a `value` means that value: ``kappa`` is ``kappa.value``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import NoneType
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from clcurv.errors import UsageError

Step = str | int | None  # a field's or an entry's name, a position, or None for [*]

_FIRST = re.compile(r"(?P<field>[A-Za-z_]\w*)")
_NEXT = re.compile(
    r"""\.(?P<field>[A-Za-z_]\w*)
    | \[(?P<index>-?\d{1,9}|\*)\]
    | \[(?P<q>["'])(?P<name>.*?)(?P=q)\]""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class Path:
    """A parsed path; `steps` has a (kind, step) pair for every part."""

    text: str
    steps: tuple[tuple[str, Step], ...]


@dataclass(frozen=True)
class Found:
    """One place that a path leads to.

    Attributes:
        value: What is there.
        parent: The section that holds it.
        field: Its name in `parent`.
        label: The path with positions and names filled in.
        problem: Why there is nothing; empty when there is.
    """

    value: Any
    parent: Any
    field: str
    label: str
    problem: str = ""


def parse_path(text: str, document: type[BaseModel]) -> Path:
    """Parse a path and check that such documents have it.

    Raises:
        UsageError: It does not parse, or leads nowhere; names near it are listed.
    """
    steps: list[tuple[str, Step]] = []
    position = 0
    while position < len(text):
        match = (_NEXT if position else _FIRST).match(text, position)
        if match is None:
            raise UsageError(
                f"cannot read the path {text!r} at {text[position:]!r}",
                hint='write it like kappa.value, groups[0].s, groups[*].s or groups["fc"].s',
            )
        found = match.groupdict()
        if found["field"] is not None:
            steps.append(("field", found["field"]))
        elif found["index"] is not None:
            steps.append(("item", None if found["index"] == "*" else int(found["index"])))
        else:
            steps.append(("item", found["name"]))
        position = match.end()
    kind: Any = document
    for depth, (step_kind, step) in enumerate(steps):
        kind = _descend(kind, step_kind, step)
        if kind is None:
            raise _unknown(text, document, steps[: depth + 1])
    if _is_model(kind) and "value" in kind.model_fields:
        steps.append(("field", "value"))
        kind = _descend(kind, "field", "value")
    if kind is not Any and (_is_model(kind) or get_origin(kind) in {tuple, list, dict}):
        inner = f"{text}[*]" if get_origin(kind) in {tuple, list} else text
        near = [x for x in _all_paths(document) if x.startswith((f"{inner}.", f"{text}[*]"))]
        raise UsageError(f"{text!r} is not one value", hint=f"take one of: {', '.join(near[:8])}")
    return Path(text, tuple(steps))


def resolve(path: Path, document: BaseModel) -> list[Found]:
    """All places the path leads to; more than one only through ``[*]``."""
    return list(_walk(document, path.steps, "", document, ""))


def _walk(
    value: Any, steps: tuple[tuple[str, Step], ...], label: str, parent: Any, field: str
) -> Iterator[Found]:
    if not steps:
        yield Found(value, parent, field, label)
        return
    (kind, step), rest = steps[0], steps[1:]
    if value is None:
        yield Found(None, parent, field, label, f"{label} is null")
    elif kind == "field":
        name = str(step)
        label = f"{label}.{name}" if label else name
        if isinstance(value, BaseModel):
            yield from _walk(
                getattr(value, _attribute(type(value), name)), rest, label, value, name
            )
        elif name in value:
            yield from _walk(value[name], rest, label, value, name)
        else:
            yield Found(None, value, name, label, f"{label} is not in the report")
    elif step is None:
        for position, item in enumerate(value):
            shown = getattr(item, "name", position)
            yield from _walk(item, rest, f"{label}[{shown}]", value, "")
    else:
        label = f"{label}[{step}]"
        try:
            item = value[step] if isinstance(step, int) else _by_name(value, step)
        except LookupError:
            yield Found(None, value, "", label, f"{label} is not in the report")
        else:
            yield from _walk(item, rest, label, value, "")


def _by_name(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return value[name]
    for item in value:
        if getattr(item, "name", None) == name:
            return item
    raise LookupError(name)


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _key(model: type[BaseModel], attribute: str) -> str:
    alias = model.model_fields[attribute].serialization_alias
    return alias or attribute


def _attribute(model: type[BaseModel], key: str) -> str:
    return next((a for a in model.model_fields if _key(model, a) == key), key)


def _bare(annotation: Any) -> Any:
    """The type without None and Annotated."""
    if get_args(annotation) and hasattr(annotation, "__metadata__"):
        return _bare(get_args(annotation)[0])
    rest = [x for x in get_args(annotation) if x is not NoneType]
    if NoneType in get_args(annotation):
        return _bare(rest[0]) if len(rest) == 1 else str
    return annotation


def _descend(kind: Any, step_kind: str, step: Step) -> Any:
    """The type one step further; None where there is none."""
    kind = _bare(kind)
    origin = get_origin(kind)
    if step_kind == "field":
        if _is_model(kind):
            attribute = _attribute(kind, str(step))
            field = kind.model_fields.get(attribute)
            known = field is not None and _key(kind, attribute) == step
            return _bare(field.annotation) if field and known else None
        return _bare(get_args(kind)[1]) if origin is dict else None
    if origin is tuple:
        return _bare(get_args(kind)[0])
    return _bare(get_args(kind)[1]) if origin is dict and isinstance(step, str) else None


def _all_paths(kind: Any, prefix: str = "") -> list[str]:
    kind = _bare(kind)
    if _is_model(kind):
        paths = []
        for attribute, field in kind.model_fields.items():
            name = _key(kind, attribute)
            paths += _all_paths(field.annotation, f"{prefix}.{name}" if prefix else name)
        return paths
    if get_origin(kind) is tuple:
        return _all_paths(get_args(kind)[0], f"{prefix}[*]")
    return [prefix]


def _unknown(text: str, document: type[BaseModel], steps: list[tuple[str, Step]]) -> UsageError:
    known = _all_paths(document)
    general = re.sub(r"\[[^]]*\]", "[*]", text)
    near = difflib.get_close_matches(general, known, n=4, cutoff=0.5)
    leaf = str(steps[-1][1])
    near += [x for x in known if x.rsplit(".", 1)[-1] == leaf and x not in near]
    if not near:
        near = list(dict.fromkeys(re.split(r"[.\[]", x)[0] for x in known))
    return UsageError(f"the report has no {text!r}", hint=f"near it: {', '.join(near[:6])}")
