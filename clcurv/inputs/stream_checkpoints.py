"""Which checkpoint meets which task."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from pathlib import Path

from clcurv.errors import InputError, UsageError


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key under which ``task-2`` comes before ``task-10``; upper and lower case alike."""
    parts = re.split(r"(\d+)", name.casefold())
    return tuple((0, int(p), "") if p.isdecimal() else (1, 0, p) for p in parts)


def order_checkpoints(paths: Sequence[str]) -> list[str]:
    """Checkpoints in the order of the stream.

    Patterns that no shell has expanded (``'ckpt/*.pt'``) are expanded. Names that differ only in
    their numbers are ordered by these, and so is a list in the order of the alphabet, which is
    what a shell makes of a pattern (``task-1, task-10, task-2``); any other order was chosen and
    is kept (``init.pt after-1.pt after-2.pt``).

    Raises:
        InputError: A pattern that matches nothing.
        UsageError: No paths at all.
    """
    names: list[str] = []
    for path in paths:
        text = str(path)
        if any(sign in text for sign in "*?[") and not Path(text).exists():
            found = sorted(glob.glob(text, recursive=True))
            if not found:
                raise InputError(
                    f"{text}: no file matches the pattern", hint="check the folder and the suffix"
                )
            names += found
        else:
            names.append(text)
    if not names:
        raise UsageError("no checkpoint is given", hint="give one, or one per task")
    if _one_pattern(names) or _alphabetical(names):
        return sorted(names, key=natural_key)
    return names


def pair_checkpoints(paths: Sequence[str], n_tasks: int) -> list[str]:
    """The checkpoint that each task meets: the network reached before it.

    Args:
        paths: One for the whole stream; or one per task, the k-th (see `order_checkpoints`) meets
            task k; or one more, the last of which is the network after the stream and meets no
            task.
        n_tasks: Tasks of the stream.

    Returns:
        `n_tasks` paths.

    Raises:
        InputError: A pattern that matches nothing.
        UsageError: Another number of checkpoints.
    """
    ordered = order_checkpoints(paths)
    if len(ordered) == 1:
        return ordered * n_tasks
    if len(ordered) in (n_tasks, n_tasks + 1):
        return ordered[:n_tasks]
    shown = f"{ordered[0]} ... {ordered[-1]}"
    raise UsageError(
        f"{len(ordered)} checkpoints ({shown}) for a stream of {n_tasks} "
        f"task{'' if n_tasks == 1 else 's'}",
        hint=f"give 1 (for all tasks), {n_tasks} (the network before each task), or {n_tasks + 1} "
        "(and the one after the last)",
    )


def _one_pattern(names: Sequence[str]) -> bool:
    return len({re.sub(r"\d+", "#", name) for name in names}) == 1


def _alphabetical(names: Sequence[str]) -> bool:
    """In the order of some locale: by code point, without case, or by letters and digits only."""
    keys = (
        lambda name: name,
        str.casefold,
        lambda name: re.sub(r"[\W_]", "", name).casefold(),
    )
    return any([*map(key, names)] == sorted(map(key, names)) for key in keys)
