"""Checks JSON against a JSON Schema of the kind that pydantic writes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

_TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "null": type(None),
}
_DONE = {"title", "description", "default", "$defs", "type"}


def violations(value: Any, schema: Mapping[str, Any]) -> list[str]:
    """Where `value` breaks `schema`; empty when it does not.

    A keyword that is not known here is a violation too: it would go unchecked.
    """
    definitions = schema.get("$defs", {})

    def check(value: Any, rules: Mapping[str, Any], at: str) -> Iterator[str]:
        if "type" in rules and not _is(value, rules["type"]):
            yield f"{at}: {value!r} is no {rules['type']}"
            return  # the other words speak of that type
        for word, rule in rules.items():
            yield from keyword(value, word, rule, rules, at)

    def keyword(
        value: Any, word: str, rule: Any, rules: Mapping[str, Any], at: str
    ) -> Iterator[str]:
        holds = True
        if word in _DONE:
            return
        if word == "$ref":
            yield from check(value, definitions[rule.removeprefix("#/$defs/")], at)
        elif word == "anyOf":
            holds = any(not list(check(value, option, at)) for option in rule)
        elif word == "properties":
            for name, inner in rule.items():
                if name in value:
                    yield from check(value[name], inner, f"{at}.{name}")
        elif word == "additionalProperties":
            for name in value.keys() - rules.get("properties", {}).keys():
                if not rule:
                    yield f"{at}.{name} is not expected"
                elif rule is not True:
                    yield from check(value[name], rule, f"{at}.{name}")
        elif word == "items":
            for index, item in enumerate(value):
                yield from check(item, rule, f"{at}[{index}]")
        elif word == "required":
            holds = set(rule) <= value.keys()
        elif word in ("const", "enum"):
            holds = value in (rule if word == "enum" else [rule])
        elif word == "minimum":
            holds = value >= rule
        elif word == "maximum":
            holds = value <= rule
        elif word == "exclusiveMinimum":
            holds = value > rule
        elif word in ("minItems", "minLength"):
            holds = len(value) >= rule
        elif word == "pattern":
            holds = re.search(rule, value) is not None
        else:
            yield f"{at}: {word} is not checked here"
        if not holds:
            yield f"{at}: {value!r} breaks {word} {rule!r}"

    return list(check(value, schema, "report"))


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _TYPES[kind])
