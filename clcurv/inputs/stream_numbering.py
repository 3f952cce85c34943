"""Labels of a stream as written -> class ids of a model's head. Nothing is renumbered silently.

What a task's classes mean for the head depends on the scenario (van de Ven, Tuytelaars and Tolias
2022, "Three types of incremental learning"):

- ``class-il``: one head for the classes of all tasks; a class is the same output in every task.
- ``task-il``: each task has a head, or its own outputs of a wider one, and numbers its classes
  within the task.
- ``domain-il``: one head, and every task has the same classes (as the data number them; where a
  generated split makes the tasks, each numbers its own classes from 0).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from clcurv.errors import DataError, MismatchError
from clcurv.inputs.labels import Label, resolve_labels, resolve_stated
from clcurv.inputs.loaded import LoadedModel
from clcurv.inputs.stream_rows import TaskLabels, sort_labels
from clcurv.inputs.stream_tasks import Description, StreamTask

_MAX_EMPTY = 20  # outputs of a head per class seen, beyond which the numbering is a mistake
_SHOWN = 5

LabelsOf = Callable[[int], TaskLabels]
Ids = dict[Label, int]


def class_ids(
    description: Description, index: int, loaded: LoadedModel, labels_of: LabelsOf
) -> tuple[Ids, tuple[str, ...]]:
    """Class id of every label of one task, and notes.

    Args:
        description: Of the stream.
        index: Of the task, from 0.
        loaded: The model whose head it is.
        labels_of: Task -> its labels; other tasks are only asked for where labels are names.

    Raises:
        DataError: A label that the stream's list of classes lacks, or names that cannot be told.
        MismatchError: More classes than outputs.
    """
    own = labels_of(index)
    order = own_classes(description.tasks[index], own)
    task_il = description.scenario == "task-il" and loaded.num_classes == len(order)
    if task_il or description.local:
        ids = {label: number for number, label in enumerate(order)}
        if ids == {label: label for label in order}:
            return ids, ()
        return ids, (f"labels numbered within the task ({_listing(ids)})",)
    return stream_ids(description, index, loaded, labels_of)


def stream_ids(
    description: Description, index: int, loaded: LoadedModel, labels_of: LabelsOf
) -> tuple[Ids, tuple[str, ...]]:
    """Class ids in a head for the whole stream; takes and raises what `class_ids` does."""
    own = labels_of(index)
    if description.class_ids:
        return _by_stream(description.class_ids, own), ()
    if own.numbered and own.names is None:
        return {label: int(label) for label in own.counts}, ()
    everyone = [labels_of(i) for i in range(len(description.tasks))]
    if all(x.numbered for x in everyone):
        names = {x.names for x in everyone}
        if len(names) == 1 and own.names is not None:
            stated = resolve_stated(
                own.names, num_classes=loaded.num_classes, id2label=loaded.id2label
            )
            return {x: stated.ids.get(x, int(x)) for x in own.counts}, stated.notes
    mapping = resolve_labels(
        _union(everyone), num_classes=loaded.num_classes, id2label=loaded.id2label
    )
    ids: Ids = {}
    for label in own.counts:
        name = _named(label, own)
        ids[label] = mapping.ids[name if name in mapping.ids else str(name)]
    return ids, mapping.notes


def own_classes(task: StreamTask, own: TaskLabels) -> tuple[Label, ...]:
    """A task's classes in the order of a head of its own: the stated one, else sorted."""
    if task.classes is None:
        return sort_labels({*own.counts, *own.declared})
    numbers = {name: number for number, name in enumerate(own.names or ())}
    written = {str(label): label for label in own.counts}
    return tuple(
        numbers[c] if isinstance(c, str) and c in numbers else written.get(str(c), c)
        for c in task.classes
    )


def head_width(description: Description, index: int, labels_of: LabelsOf) -> int:
    """Outputs of a new head: for the task's classes (task-il), else for the stream's.

    Raises:
        DataError: Labels so far apart that they cannot be class numbers.
    """
    if description.scenario == "task-il":
        return len(own_classes(description.tasks[index], labels_of(index)))
    if description.class_ids:
        return max(description.class_ids.values()) + 1
    everyone = [labels_of(i) for i in range(len(description.tasks))]
    if description.local:
        pairs = zip(description.tasks, everyone, strict=True)
        return max(len(own_classes(task, own)) for task, own in pairs)
    if all(x.numbered for x in everyone) and len({x.names for x in everyone}) == 1:
        if everyone[0].names is not None:
            return len(everyone[0].names)
        labels = {x for own in everyone for x in own.counts}
    else:
        labels = _union(everyone)
    if not labels:
        raise DataError("the stream has no labels", hint="name them with --label-column NAME")
    if not all(isinstance(x, int) or (x.isascii() and x.isdigit()) for x in labels):
        return len(labels)
    width = max(int(x) for x in labels) + 1
    if width > _MAX_EMPTY * len(labels):
        raise DataError(
            f"labels up to {width - 1} for {len(labels)} classes are no class numbers",
            hint="list the classes in the order of the head's outputs in a manifest",
        )
    return max(width, 1)


def check_head(loaded: LoadedModel, own: TaskLabels, ids: Mapping[Label, int]) -> None:
    """Refuse a task with a class that the head has no output for.

    Raises:
        MismatchError: A class id is negative or not below the head's width.
    """
    width = loaded.num_classes
    if width is None:
        return
    outside = [x for x in own.counts if not 0 <= ids[x] < width]
    if not outside:
        return
    worst = max(outside, key=lambda x: ids[x])
    label = repr(_named(worst, own)) + ("" if worst == ids[worst] else f" (class {ids[worst]})")
    rows = sum(own.counts[x] for x in outside)
    more = f", {len(outside)} such labels" if len(outside) > 1 else ""
    raise MismatchError(
        f"label {label} lies outside the head with {width} classes "
        f"({rows} of {own.length} samples{more})",
        hint="-1 usually marks unlabelled rows: leave them out of the data"
        if ids[worst] < 0
        else "--head fresh gives the network a new head for the stream's classes",
    )


def _by_stream(numbers: Mapping[str, int], own: TaskLabels) -> Ids:
    ids: Ids = {}
    for label in own.counts:
        name = str(_named(label, own))
        found = numbers.get(name, numbers.get(str(label)))
        if found is None:
            raise DataError(
                f"label {name!r} is not among the classes of the stream "
                f"({', '.join(list(numbers)[:_SHOWN])}{', ...' if len(numbers) > _SHOWN else ''})",
                hint="add it to `classes`, or leave it out with the task's own `classes`",
            )
        ids[label] = found
    return ids


def _named(label: Label, own: TaskLabels) -> Label:
    names = own.names or ()
    return names[label] if isinstance(label, int) and 0 <= label < len(names) else label


def _union(everyone: list[TaskLabels]) -> set[Label]:
    """Labels of all tasks; a number that another task writes as a string is one with it."""
    labels = {_named(x, own) for own in everyone for x in (*own.counts, *own.declared)}
    return {x for x in labels if isinstance(x, str) or str(x) not in labels}


def _listing(ids: Mapping[Label, int]) -> str:
    shown = ", ".join(f"{label}={number}" for label, number in list(ids.items())[:_SHOWN])
    return shown + (", ..." if len(ids) > _SHOWN else "")
