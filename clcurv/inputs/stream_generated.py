"""Streams made of one data set: permuted:K, split:K, label-shuffle:K, and PILOT's json."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from clcurv.errors import DataError, UsageError
from clcurv.inputs.labels import Label
from clcurv.inputs.stream_rows import sort_labels
from clcurv.inputs.stream_tasks import Asked, Description, StreamTask, existing, task_labels
from clcurv.inputs.stream_transform import Transform

GENERATED = ("permuted", "split", "label-shuffle")
_MOST_TASKS = 100_000


def generated(kind: str, rest: str, asked: Asked) -> Description:
    """``kind:rest`` over the data asked for.

    Raises:
        UsageError: K is no number of tasks or above the number of classes, or no data.
        DataError: The data cannot be read or have no classes.
    """
    spec = f"{kind}:{rest}"
    match = re.fullmatch(r"(\d{1,9})(:sorted)?", rest)
    if match is None or (match[2] and kind != "split") or not 1 <= int(match[1]) <= _MOST_TASKS:
        also = " (or split:K:sorted for classes in their own order)" if kind == "split" else ""
        raise UsageError(
            f"--stream {spec}: K is not a number of tasks from 1 to {_MOST_TASKS}",
            hint=f"--stream {kind}:10{also}",
        )
    if asked.data is None:
        raise UsageError(
            f"--stream {spec} is generated over a data set, and none is given",
            hint="add --data PATH",
        )
    k = int(match[1])
    existing(asked.data)
    if kind == "split":
        return _split(spec, k, asked, in_order=bool(match[2]))
    step = "permute" if kind == "permuted" else "label-shuffle"
    tasks = tuple(
        StreamTask(
            f"{kind}-{number + 1}",
            data=asked.data,
            transform=Transform(step, number, asked.seed),  # type: ignore[arg-type]
        )
        for number in range(k)
    )
    what = "inputs" if kind == "permuted" else "class labels"
    note = f"{what} permuted with seed {asked.seed}; the first task is the data set as it is"
    scenario = asked.scenario or "domain-il"
    return Description(spec, scenario, spec, tasks, asked.seed, asked.modality, notes=(note,))


def _split(spec: str, k: int, asked: Asked, *, in_order: bool) -> Description:
    classes = _classes_of(asked)
    if k > len(classes):
        raise UsageError(
            f"--stream {spec}: the data set has {len(classes)} "
            f"class{'es' if len(classes) > 1 else ''}, too few for {k} tasks",
            hint=f"--stream split:{len(classes)} at most",
        )
    order = list(range(len(classes)))
    if not in_order:
        order = np.random.default_rng(asked.seed).permutation(len(classes)).tolist()
    groups = np.array_split(np.array(order), k)  # the first ones are larger by one
    tasks = tuple(
        StreamTask(
            f"split-{number + 1}", classes=tuple(classes[int(i)] for i in group), data=asked.data
        )
        for number, group in enumerate(groups)
    )
    drawn = "in their own order" if in_order else f"in an order drawn with seed {asked.seed}"
    note = f"{len(classes)} classes {drawn}, {_sizes([len(g) for g in groups])} to a task"
    scenario = asked.scenario or "class-il"
    local = scenario == "domain-il"  # one head that every task numbers its classes for
    return Description(
        spec, scenario, spec, tasks, asked.seed, asked.modality, local=local, notes=(note,)
    )


def _sizes(sizes: Sequence[int]) -> str:
    low, high = min(sizes), max(sizes)
    return str(low) if low == high else f"{low} to {high}"


def _classes_of(asked: Asked) -> tuple[Label, ...]:
    found = task_labels(
        StreamTask("data", data=asked.data),
        modality=asked.modality,
        split=asked.split,
        columns=asked.columns,
    )
    if found.real:
        raise DataError(
            "the labels are real numbers, not classes to split", hint="--stream permuted:K"
        )
    classes = sort_labels(found.counts)
    if not classes:
        raise DataError("the data set has no labels", hint="name them with --label-column NAME")
    return classes


# --- PILOT ----------------------------------------------------------------------------------


def pilot(path: Path, content: Mapping[str, Any], asked: Asked) -> Description:
    """The json of PILOT and PyCIL: ``init_cls`` classes first, then ``increment`` at a time.

    The order of the classes is theirs (``DataManager``): the first permutation that
    ``numpy.random.RandomState(seed)`` draws, and a class's number is its place in it.
    """
    if asked.data is None:
        raise UsageError(
            f"{path}: a PILOT json describes the order of classes, not where the data are",
            hint="add --data PATH",
        )
    existing(asked.data)
    first, step = (_whole(path, content, key) for key in ("init_cls", "increment"))
    shuffle = content.get("shuffle", False)
    if not isinstance(shuffle, bool):
        raise DataError(f"{path}: shuffle: neither true nor false")
    seeds = content.get("seed", 1993)
    seed = seeds[0] if isinstance(seeds, list) and seeds else seeds
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**32:
        raise DataError(f"{path}: seed: not a whole number from 0 to 4294967295")
    classes = _classes_of(asked)
    if not all(isinstance(label, int) for label in classes):
        classes = tuple(sorted(classes, key=str))  # torchvision's ImageFolder, which PILOT reads
    elif list(classes) != list(range(len(classes))):
        raise DataError(
            f"{path}: PILOT numbers classes from 0 without gaps, the data have {len(classes)} "
            f"labels up to {classes[-1]}",
            hint="give a manifest that lists the classes of every task",
        )
    if first > len(classes):
        raise DataError(f"{path}: init_cls is {first}, the data have {len(classes)} classes")
    order = list(range(len(classes)))
    if shuffle:
        order = np.random.RandomState(seed).permutation(len(classes)).tolist()
    ordered = [classes[i] for i in order]
    bounds = [0, *range(first, len(classes), step), len(classes)]
    tasks = tuple(
        StreamTask(f"task-{k}", classes=tuple(ordered[low:high]), data=asked.data)
        for k, (low, high) in enumerate(pairwise(bounds), 1)
    )
    notes = ["classes are numbered by their place in PILOT's order, as PILOT does"]
    notes.append(f"order drawn with seed {seed}" if shuffle else "order not shuffled")
    if isinstance(seeds, list) and len(seeds) > 1:
        notes.append(f"the json names {len(seeds)} seeds, the first was taken")
    return Description(
        path.stem,
        asked.scenario or "class-il",
        "PILOT json",
        tasks,
        seed,
        asked.modality,
        class_ids={str(label): number for number, label in enumerate(ordered)},
        notes=tuple(notes),
    )


def _whole(path: Path, content: Mapping[str, Any], key: str) -> int:
    value = content.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise DataError(f"{path}: {key}: {'missing' if value is None else 'not a number above 0'}")
    return value
