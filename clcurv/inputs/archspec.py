"""``NAME(argument=value, ...)``: an architecture and what its builder is told besides."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from clcurv.errors import ArchitectureError


def split_arguments(arch: str) -> tuple[str, dict[str, Any]]:
    """The name and its arguments; plain literals only, nothing is evaluated.

    Args:
        arch: E.g. ``vit_small_patch16_224(num_heads=12)``.

    Raises:
        ArchitectureError: Something other than ``keyword=literal`` stands in the brackets.
    """
    name, bracket, inside = arch.partition("(")
    if not bracket:
        return arch, {}
    try:
        call = ast.parse(f"f({inside}", mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            raise ValueError("only keyword arguments")
        arguments = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords if k.arg}
        if len(arguments) < len(call.keywords):
            raise ValueError("only keyword arguments")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ArchitectureError(
            f"--arch {arch}: the arguments cannot be read ({type(error).__name__})",
            hint="write them as NAME(argument=value), e.g. vit_small_patch16_224(num_heads=12)",
        ) from error
    return name.strip(), arguments


def with_arguments(name: str, arguments: Mapping[str, Any]) -> str:
    """The inverse of `split_arguments`, arguments sorted by name."""
    if not arguments:
        return name
    return f"{name}({', '.join(f'{key}={arguments[key]!r}' for key in sorted(arguments))})"
