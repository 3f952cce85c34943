"""Everything that describes a stream -> its tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from clcurv.errors import DataError, UsageError
from clcurv.inputs.arrays import zipped_arrays
from clcurv.inputs.imagefolder import class_root_exists, has_metadata
from clcurv.inputs.source import IMAGE_SUFFIXES, SPLITS, sniff
from clcurv.inputs.stream_checkpoints import natural_key
from clcurv.inputs.stream_generated import GENERATED, generated, pilot
from clcurv.inputs.stream_manifest import Manifest, TaskSpec, parse_manifest, read_mapping
from clcurv.inputs.stream_rows import sort_labels
from clcurv.inputs.stream_tasks import (
    Asked,
    Description,
    StreamTask,
    check_task_array,
    existing,
    read_task_array,
)
from clcurv.inputs.stream_transform import Transform
from clcurv.inputs.tables import is_saved_dataset, table_files

KINDS = (
    "give a manifest (yaml, json), a PILOT json, an npz with x, y, t, a folder with a sub-folder "
    "per task, or permuted:K, split:K, label-shuffle:K over --data"
)
_SPLIT_NAMES = {name for names in SPLITS.values() for name in names}
_MANIFESTS = ("stream.yaml", "stream.yml", "stream.json")


def describe(spec: Any, asked: Asked) -> Description:
    """Tell what kind of description it is, and read it.

    Raises:
        UsageError: K is no number of tasks, or ``data`` is missing or of no use.
        DataError: The file or folder is none of the kinds, or its tasks have no data.
    """
    if not isinstance(spec, str | Path):
        return _from_memory(spec, asked)
    text = str(spec)
    kind, colon, rest = text.partition(":")
    if colon and kind in GENERATED:
        return generated(kind, rest, asked)
    path = Path(spec)
    if not path.exists():
        raise DataError(f"--stream {text}: no such file, folder or generated stream", hint=KINDS)
    if path.is_dir():
        inside = [path / name for name in _MANIFESTS if (path / name).is_file()]
        if not inside:
            _unused(asked, text)
            return _folder(path, asked)
        path = inside[0]
    format_ = sniff(path)
    if format_ == "npz":
        _unused(asked, text)
        return _npz(path, asked)
    if format_ in ("parquet", "arrow") or path.suffix.lower() in (".csv", ".tsv", ".jsonl"):
        raise DataError(
            f"{path}: a table is one data set, not a stream of tasks",
            hint=f"--stream split:K --data {path}",
        )
    content = read_mapping(path)
    if "init_cls" in content and "schema" not in content:
        return pilot(path, content, asked)
    return _manifest(path, parse_manifest(path, content), asked)


def _unused(asked: Asked, what: str) -> None:
    if asked.data is not None:
        raise UsageError(
            f"--data is of no use beside --stream {what}: its tasks have their own data",
            hint="leave --data out, or give --stream permuted:K, split:K or label-shuffle:K",
        )


# --- files and folders ----------------------------------------------------------------------


def _manifest(path: Path, manifest: Manifest, asked: Asked) -> Description:
    root = path.parent
    seed = asked.seed if manifest.seed is None else manifest.seed
    tasks = []
    needs_data = False
    for place, spec in enumerate(manifest.tasks):
        name = spec.name or f"task-{place + 1}"
        train = spec.train or manifest.train
        test = spec.test or (manifest.test if spec.train is None else None)
        where = f"{path}: task {place + 1} ({name})"
        if train is None:
            needs_data = True
            if asked.data is None:
                raise DataError(
                    f"{where} has no data", hint="give it a `train:` path, or add --data PATH"
                )
        data = existing(asked.data) if train is None else existing(_path(root, train), where)
        tasks.append(
            StreamTask(
                name,
                classes=None if spec.classes is None else tuple(spec.classes),
                data=data,
                test=None if test is None else existing(_path(root, test), f"{where}, test"),
                split=spec.split or manifest.split,
                form=spec.format or (manifest.format if spec.train is None else None),
                columns={str(k): v for k, v in [*manifest.columns.items(), *spec.columns.items()]},
                t=spec.t,
                transform=_transform(spec, manifest, place, seed),
                n=spec.n,
                digest=spec.digest,
            )
        )
    if not needs_data:
        _unused(asked, str(path))
    return Description(
        manifest.name or (path.parent.name if path.name in _MANIFESTS else path.stem),
        asked.scenario or manifest.scenario,
        manifest.origin or "manifest",
        tuple(tasks),
        seed,
        asked.modality or manifest.modality,
        class_ids=manifest.class_ids(),
        local=bool(manifest.local),
        notes=tuple(manifest.notes),
    )


def _path(root: Path, text: str) -> Path:
    """Relative to the manifest; nothing is expanded, so what is written is what is opened."""
    return root / text


def _transform(spec: TaskSpec, manifest: Manifest, place: int, seed: int) -> Transform:
    found = spec.transform or manifest.transform
    if found is None or found.kind == "none":
        return Transform()
    number = place if found.number is None else found.number
    return Transform(found.kind, number, seed if found.seed is None else found.seed)


def _npz(path: Path, asked: Asked) -> Description:
    with zipped_arrays(path) as arrays:
        t = read_task_array(path, arrays)
    return _by_task_array(t, path, path.stem, asked)


def _by_task_array(t: np.ndarray[Any, Any], data: Any, name: str, asked: Asked) -> Description:
    values = sort_labels(t.tolist())
    if not values:
        raise DataError(f"{name}: the array of task numbers is empty")
    tasks = tuple(StreamTask(f"t={value}", data=data, t=value) for value in values)
    return Description(
        name, asked.scenario or "class-il", "npz (x, y, t)", tasks, asked.seed, asked.modality
    )


def _folder(path: Path, asked: Asked) -> Description:
    folders = sorted(
        (p for p in path.iterdir() if p.is_dir() and not p.name.startswith((".", "__"))),
        key=lambda p: (natural_key(p.name), p.name),
    )
    if not folders:
        raise DataError(f"{path}: no sub-folder, so no task", hint=KINDS)
    if all(folder.name.lower() in _SPLIT_NAMES for folder in folders) or is_saved_dataset(path):
        raise DataError(
            f"{path}: one data set with its splits, not a folder of tasks",
            hint=f"--stream split:K --data {path}",
        )
    tasks = tuple(StreamTask(folder.name, data=_inside(folder, path)) for folder in folders)
    return Description(
        path.resolve().name,
        asked.scenario or "class-il",
        "folder of tasks",
        tasks,
        asked.seed,
        asked.modality,
    )


def _inside(folder: Path, root: Path) -> Path:
    """The data set in a task's folder: the folder itself, or the one npz in it."""
    if is_saved_dataset(folder) or has_metadata(folder) or class_root_exists(folder):
        return folder
    if table_files(folder):
        return folder
    files = sorted(p for p in folder.iterdir() if p.is_file() and not p.name.startswith("."))
    if any(p.suffix.lower() in IMAGE_SUFFIXES for p in files):
        raise DataError(
            f"{folder}: images without class folders: {root} looks like one image folder, not a "
            "folder of tasks",
            hint=f"--stream split:K --data {root}",
        )
    arrays = [p for p in files if p.suffix.lower() == ".npz"]
    if len(arrays) == 1:
        return arrays[0]
    raise DataError(
        f"{folder}: {'several npz files' if arrays else 'no data'} in the folder of a task",
        hint="a task's folder holds class folders with images, tables, or one npz",
    )


# --- in memory ------------------------------------------------------------------------------


def _from_memory(spec: Any, asked: Asked) -> Description:
    _unused(asked, "of data in memory")
    if isinstance(spec, tuple) and len(spec) == 3 and all(hasattr(a, "shape") for a in spec):
        arrays = tuple(np.asarray(a) for a in spec)
        t = check_task_array(arrays[2], "the third array")
        described = _by_task_array(t, (arrays[0], arrays[1], t), "given", asked)
        return replace(described, origin="given (x, y, t)")
    if isinstance(spec, Mapping):
        if spec and {str(name).lower() for name in spec} <= _SPLIT_NAMES:
            raise DataError(
                "one data set with its splits is given, not a stream",
                hint="open_stream('split:K', data=...)",
            )
        named = [(str(name), data) for name, data in spec.items()]
    elif isinstance(spec, Sequence):
        named = [(f"task-{k}", data) for k, data in enumerate(spec, 1)]
    else:
        raise DataError(
            f"a {type(spec).__name__} is not read as a stream",
            hint="give a path, permuted:K, (x, y, t), a list of data sets or a mapping of them",
        )
    if not named:
        raise DataError("the given stream has no tasks")
    tasks = tuple(
        StreamTask(name, data=existing(data, f"task {k} ({name})"))
        for k, (name, data) in enumerate(named, 1)
    )
    scenario = asked.scenario or "class-il"
    return Description("given", scenario, "given data sets", tasks, asked.seed, asked.modality)
