"""A stream of tasks: manifest, folder, npz, PILOT json or generated -> samples of each task."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from clcurv.errors import DataError, UsageError
from clcurv.inputs.dataset import Samples, load_samples
from clcurv.inputs.heads import fresh_head, narrow_head
from clcurv.inputs.loaded import LoadedModel
from clcurv.inputs.source import Columns, Source
from clcurv.inputs.stream_checkpoints import order_checkpoints, pair_checkpoints
from clcurv.inputs.stream_manifest import SCENARIOS, SCHEMA, SCHEMA_VERSION
from clcurv.inputs.stream_numbering import (
    check_head,
    class_ids,
    head_width,
    own_classes,
    stream_ids,
)
from clcurv.inputs.stream_rows import TaskLabels, content_digest, plain_labels, read_labels
from clcurv.inputs.stream_specs import describe
from clcurv.inputs.stream_tasks import (
    Asked,
    Description,
    StreamTask,
    naming,
    open_task,
    task_labels,
)
from clcurv.inputs.stream_transform import permute_inputs, task_permutation

__all__ = [
    "Stream",
    "StreamTask",
    "open_stream",
    "order_checkpoints",
    "pair_checkpoints",
    "task_permutation",
]

_LANGUAGE = ("causal-lm", "masked-lm")


def open_stream(
    spec: Any,
    *,
    data: Any = None,
    seed: int = 0,
    scenario: str | None = None,
    split: str | None = None,
    columns: Columns | None = None,
    modality: str | None = None,
) -> Stream:
    """Read what a stream consists of. Places are checked; rows only where K needs the classes.

    Args:
        spec: A manifest (YAML or JSON, ``schema: clcurv.stream``), a PILOT json, an npz with x,
            y, t, a folder with a sub-folder per task (or with a stream.yaml), ``permuted:K``
            (the first task is the identity), ``split:K`` (groups of classes in a seeded order;
            ``split:K:sorted`` in their own), ``label-shuffle:K``; in memory: ``(x, y, t)`` arrays,
            a list of data sets, or a mapping of names to data sets.
        data: The data set behind a generated stream, a PILOT json, or a manifest's tasks that
            have none: a path or what `load_samples` takes.
        seed: Of class orders and permutations; a manifest's or PILOT json's own seed wins.
        scenario: ``class-il`` (one head, classes of all tasks) | ``task-il`` (a head, or a part
            of it, per task) | ``domain-il`` (one head, every task has its classes); None is what
            the description says or usually is.
        split, columns: Of `data`, where its classes have to be known; see `load_samples`.
        modality: ``image`` | ``text`` | ``array``, where no model says it.

    Raises:
        UsageError: K is no number of tasks or above the number of classes; ``data`` missing or
            of no use.
        DataError: None of these kinds; a manifest with unknown keys or two tasks of one name; a
            task without data.
    """
    if scenario is not None and scenario not in SCENARIOS:
        raise UsageError(f"unknown scenario {scenario!r}", hint=f"one of {', '.join(SCENARIOS)}")
    if seed < 0:
        raise UsageError(f"--seed {seed}: must not be negative", hint="--seed 0")
    return Stream(describe(spec, Asked(data, seed, scenario, modality, split, columns)))


@dataclass(frozen=True)
class Stream:
    """Tasks in their order. Index 0 is the first task."""

    description: Description
    _seen: dict[Any, TaskLabels] = field(default_factory=dict, repr=False, compare=False)

    @property
    def name(self) -> str:
        return self.description.name

    @property
    def scenario(self) -> str:
        return self.description.scenario

    @property
    def modality(self) -> str | None:
        return self.description.modality

    @property
    def origin(self) -> str:
        return self.description.origin

    @property
    def tasks(self) -> tuple[StreamTask, ...]:
        return self.description.tasks

    @property
    def notes(self) -> tuple[str, ...]:
        return self.description.notes

    def __len__(self) -> int:
        return len(self.tasks)

    def samples(
        self,
        index: int,
        loaded: LoadedModel,
        *,
        n: int = 512,
        seed: int = 0,
        loss: str | None = None,
        columns: Columns | None = None,
        skip_bad: bool = False,
        split: str | None = None,
        max_length: int | None = None,
    ) -> Samples:
        """A fixed, class-balanced sample of one task, prepared for a model.

        Labels become class ids by the rules of `clcurv.inputs.stream_numbering`; where they are
        numbered within the task, the notes say so.

        Args:
            index: Of the task, from 0.
            loaded: The model that meets it, after `adapt`.
            n, seed, loss, columns, skip_bad, split, max_length: As in `load_samples`; the same
                seed draws the same rows for every task of a permuted stream.

        Raises:
            MismatchError: A label outside the head.
            Error: As in `load_samples`, with the task's name in front.
        """
        task = self.tasks[index]
        language = loaded.task in _LANGUAGE
        notes: tuple[str, ...] = ()
        with naming(index, task):
            with open_task(
                task,
                modality=loaded.modality,
                split=split,
                columns=columns,
                needs_labels=not language,
                n=n,
            ) as source:
                self._check_stated(task, source, split)
                if not language and loaded.task != "regression" and source.labels is not None:
                    source, notes = self._numbered(index, loaded, source, split, columns)
                drawn = load_samples(
                    source,
                    loaded,
                    n=n,
                    seed=seed,
                    max_length=max_length,
                    skip_bad=skip_bad,
                    loss=loss,
                )
            if task.transform.kind == "permute":
                drawn = permute_inputs(drawn, loaded, task.transform)
        if task.transform.kind == "label-shuffle" and task.transform.number:
            notes += (f"classes permuted: {task.transform}",)
        return replace(
            drawn,
            source="given" if task.path is None else "path",
            notes=tuple(dict.fromkeys((*drawn.notes, *notes))),
        )

    def adapt(
        self,
        index: int,
        loaded: LoadedModel,
        *,
        head: str = "keep",
        seed: int = 0,
        split: str | None = None,
        columns: Columns | None = None,
    ) -> LoadedModel:
        """The model with the head that the task is met with; the given one is left as it was.

        ``keep``: the head it has. A task of a task-incremental stream concerns its own outputs
        of a wider head only, so a copy of the model with these outputs is returned.
        ``fresh``: a copy with a new head, drawn with `seed`: as wide as the task has classes in a
        task-incremental stream, else as the classes of the whole stream ask for.

        Raises:
            DataError: The classes cannot be told.
            MismatchError: The head has no outputs for the task's classes.
            UsageError: An unknown head, or a language model's, which is no classifier.
        """
        if head not in ("keep", "fresh"):
            raise UsageError(f"unknown head {head!r}", hint="--head keep or fresh")
        labels_of = self._labels_of(loaded.modality, split, columns)
        with naming(index, self.tasks[index]):
            if head == "fresh":
                classifies = loaded.task in ("classification", "backbone")
                width = head_width(self.description, index, labels_of) if classifies else None
                return fresh_head(loaded, num_classes=width, seed=seed)
            if self.scenario != "task-il" or loaded.task != "classification":
                return loaded
            own = labels_of(index)
            order = own_classes(self.tasks[index], own)
            if own.real or loaded.num_classes in (None, len(order)):
                return loaded
            ids, _ = stream_ids(self.description, index, loaded, labels_of)
            check_head(loaded, own, ids)
            return narrow_head(loaded, [ids[label] for label in order if label in ids])

    def resolved(
        self,
        loaded: LoadedModel | None = None,
        *,
        split: str | None = None,
        columns: Columns | None = None,
        digests: bool = True,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> dict[str, Any]:
        """What the stream consists of, for reports; all data are read once.

        Without `loaded` the result is itself a manifest, as long as the data are in files.

        Args:
            loaded: Classes and histograms are then class ids of its head (after `adapt`), else
                labels as written.
            split, columns: As in `load_samples`.
            digests: Whether to hash the content of all rows.
            progress: Called with (stage, done, total).

        Raises:
            DataError: A task without rows, or that is not what the manifest says.
        """
        tasks, contents = [], dict[Any, str]()
        for index, task in enumerate(self.tasks):
            if progress is not None:
                progress("resolving the stream", index, len(self))
            with naming(index, task):
                one = self._resolved_task(
                    index, loaded, split, columns, contents if digests else None
                )
                tasks.append(one)
        notes = list(self.notes)
        sets = {tuple(map(str, task.get("classes", ()))) for task in tasks}
        if self.scenario == "class-il" and len(tasks) > 1 and len(sets) == 1 and sets != {()}:
            notes.append("all tasks have the same classes: that is rather domain-il")
        numbers = dict(self.description.class_ids)
        return {
            "schema": SCHEMA,
            "schema_version": SCHEMA_VERSION,
            "name": self.name,
            "scenario": self.scenario,
            "modality": self.modality if loaded is None else loaded.modality,
            **({"classes": numbers} if numbers else {}),
            **({"local": True} if self.description.local else {}),
            "origin": self.origin,
            "seed": self.description.seed,
            "notes": list(dict.fromkeys(notes)),
            "tasks": tasks,
        }

    def _resolved_task(
        self,
        index: int,
        loaded: LoadedModel | None,
        split: str | None,
        columns: Columns | None,
        contents: dict[Any, str] | None,
    ) -> dict[str, Any]:
        task = self.tasks[index]
        modality = self.modality if loaded is None else loaded.modality
        key = _key(task, modality, split, columns)
        digest = None
        with open_task(
            task, modality=modality, split=split, columns=columns, needs_labels=False
        ) as source:
            self._check_stated(task, source, split)
            own = self._seen.setdefault(key, read_labels(source))
            if contents is not None:
                if key not in contents:
                    contents[key] = content_digest(source)
                digest = _with_transform(contents[key], task)
        if digest and task.digest and digest != task.digest and split in (None, task.split):
            raise DataError(
                f"the data have changed since the stream was resolved (digest {digest[:12]}, "
                f"not {task.digest[:12]})",
                hint="clcurv stream resolve writes the digest of what is there now",
            )
        classes: list[Any] = list(own_classes(task, own))
        histogram: dict[Any, int] = dict(own.counts)
        if loaded is not None and loaded.task == "classification" and not own.real:
            labels_of = self._labels_of(modality, split, columns)
            ids, _ = class_ids(self.description, index, loaded, labels_of)
            histogram = dict(sorted((ids[x], k) for x, k in own.counts.items()))
            classes = list(histogram)
        place, taken = task.place(split)
        return {
            "name": task.name,
            **({} if task.path is None else {"train": str(Path(place).resolve())}),
            **({} if taken is None else {"split": taken}),
            **({} if loaded is not None else {"format": own.form}),
            **({"columns": dict(task.columns)} if task.columns else {}),
            **({} if task.t is None else {"t": task.t}),
            **({} if task.transform.kind == "none" else {"transform": asdict(task.transform)}),
            "n": own.length,
            **({"classes": classes} if classes else {}),
            "label_histogram": {str(label): count for label, count in histogram.items()},
            "digest": digest,
        }

    def _numbered(
        self,
        index: int,
        loaded: LoadedModel,
        source: Source,
        split: str | None,
        columns: Columns | None,
    ) -> tuple[Source, tuple[str, ...]]:
        """The source with class ids for labels; real numbers are left for `load_samples`."""
        own = read_labels(source)
        if own.real or not own.counts:
            return source, ()
        self._seen[_key(self.tasks[index], loaded.modality, split, columns)] = own
        labels_of = self._labels_of(loaded.modality, split, columns)
        ids, notes = class_ids(self.description, index, loaded, labels_of)
        check_head(loaded, own, ids)
        labels = [None if x is None else ids[x] for x in plain_labels(source)]
        return replace(source, labels=labels, class_names=None), notes

    def _labels_of(
        self, modality: str | None, split: str | None, columns: Columns | None
    ) -> Callable[[int], TaskLabels]:
        """Labels of a task, read once for all tasks on the same rows."""

        def labels_of(index: int) -> TaskLabels:
            task = self.tasks[index]
            key = _key(task, modality, split, columns)
            if key not in self._seen:
                with naming(index, task):
                    self._seen[key] = task_labels(
                        task, modality=modality, split=split, columns=columns
                    )
            return self._seen[key]

        return labels_of

    @staticmethod
    def _check_stated(task: StreamTask, source: Source, split: str | None) -> None:
        if task.n is not None and task.n != source.length and split in (None, task.split):
            raise DataError(
                f"{source.length} samples, but the manifest says {task.n}",
                hint="clcurv stream resolve writes a manifest of what is there now",
            )


def _key(
    task: StreamTask, modality: str | None, split: str | None, columns: Columns | None
) -> tuple[Any, ...]:
    """Tasks with the same key have the same rows and labels."""
    data, wanted = task.place(split)
    return (
        str(data) if isinstance(data, str | Path) else id(data),
        modality,
        wanted,
        repr(sorted({**(columns or {}), **task.columns}.items())),
        task.t,
        task.classes,
        task.transform if task.transform.kind == "label-shuffle" else None,
    )


def _with_transform(content: str, task: StreamTask) -> str:
    """Labels are hashed as the transform leaves them; a permutation of inputs is added here."""
    if task.transform.kind != "permute" or not task.transform.number:
        return content
    return hashlib.sha256(f"{content}|{task.transform}".encode()).hexdigest()
