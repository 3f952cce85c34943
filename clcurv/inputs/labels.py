"""Labels as people write them -> class ids of one model's head.

The rules, in order; the first that covers every label is taken, and none of them ever
renumbers a label silently:

1. a mapping given by the user;
2. integers, as they are;
3. the checkpoint's own class names (``id2label``), case-insensitive;
4. digits in a string (``'0'`` .. ``'9'`` as folder names), as they are;
5. WordNet ids (``n02123045``) and 6. ImageNet class names, for a head as wide as an
   ImageNet;
7. as many names as the head has classes, in sorted order (torchvision's ImageFolder).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from clcurv.errors import DataError, MismatchError

Label = str | int
Rule = Literal["label-map", "integers", "id2label", "digits", "wordnet", "imagenet-names", "sorted"]

_WORDNET = re.compile(r"n\d{8}")
_GENERIC = re.compile(r"label[_ ]?\d+", re.IGNORECASE)
_BACKGROUND = 1001  # TensorFlow-style ImageNet heads keep class 0 for "background"
_SHOWN = 5


@dataclass(frozen=True)
class LabelMap:
    """How the labels of a data set became class ids.

    Attributes:
        ids: Label as written -> class id.
        rule: Which of the module's rules was taken.
        notes: Sentences for the report.
    """

    ids: Mapping[Label, int]
    rule: Rule
    notes: tuple[str, ...] = ()


def resolve_labels(
    labels: Iterable[Label],
    *,
    num_classes: int | None,
    id2label: Mapping[int, str] | None = None,
    label_map: Mapping[str, int] | None = None,
) -> LabelMap:
    """Decide which class id every distinct label stands for.

    Args:
        labels: The distinct labels there are (repeats do no harm).
        num_classes: Width of the head; None for a backbone, whose head is still to come.
        id2label: Class names that the checkpoint states.
        label_map: The user's own mapping, label (as a string) -> class id.

    Raises:
        DataError: No rule covers every label, or two labels would become one class.
    """
    distinct = sorted(set(labels), key=lambda label: (isinstance(label, str), label))
    if not distinct:
        raise DataError("the data set has no labels", hint="name the column with --label-column")
    if label_map is not None:
        return _by_user(distinct, label_map)
    if all(isinstance(label, int) for label in distinct):
        return LabelMap({label: int(label) for label in distinct}, "integers")

    names = [str(label) for label in distinct]
    wordnet = all(_WORDNET.fullmatch(name) for name in names)
    stated = dict(id2label or {})
    if stated and (found := NameIndex(stated).find_all(names)):
        note = "labels matched to the checkpoint's class names"
        return LabelMap(dict(zip(distinct, found, strict=True)), "id2label", (note,))
    if all(name.isascii() and name.isdigit() for name in names):
        return LabelMap(_injective({label: int(label) for label in distinct}), "digits")
    if imagenet := _imagenet(distinct, names, wordnet, num_classes):
        return imagenet
    return _by_order(distinct, names, num_classes, {} if is_generic(id2label) else stated)


def resolve_stated(
    names: Sequence[str],
    *,
    num_classes: int | None,
    id2label: Mapping[int, str] | None = None,
    label_map: Mapping[str, int] | None = None,
) -> LabelMap:
    """Class ids of labels that the data set itself numbers (a `datasets.ClassLabel`).

    Its numbers are taken as they are, unless the user's mapping or the checkpoint's class
    names cover its names: these then decide.

    Args:
        names: Name of label 0, 1, ...
        num_classes, id2label, label_map: As in `resolve_labels`.
    """
    if label_map is not None:
        by_user = _by_user(names, label_map)
        return LabelMap({i: by_user.ids[name] for i, name in enumerate(names)}, "label-map")
    numbers: dict[Label, int] = {i: i for i in range(len(names))}
    if is_generic(id2label) or id2label is None:
        return LabelMap(numbers, "integers")
    found = NameIndex(id2label).find_all(names)
    if found is not None and len(set(found)) == len(found):
        note = "labels matched to the checkpoint's class names"
        return LabelMap(dict(enumerate(found)), "id2label", (note,))
    note = "the data's class names are not the checkpoint's: its label numbers taken as they are"
    return LabelMap(numbers, "integers", (note,))


def check_head(ids: Sequence[int], *, num_classes: int | None, names: Mapping[int, str]) -> None:
    """Refuse class ids that the head cannot predict.

    Args:
        ids: Class id of every sample.
        num_classes: Width of the head; None checks only for negative ids.
        names: Class id -> the label as it is written in the data.

    Raises:
        MismatchError: An id is negative or not below `num_classes`.
    """
    outside = Counter(i for i in ids if i < 0 or (num_classes is not None and i >= num_classes))
    if not outside:
        return
    worst = min(outside) if min(outside) < 0 else max(outside)
    written = names.get(worst, str(worst))
    label = repr(written) if written == str(worst) else f"{written!r} (class {worst})"
    total = sum(outside.values())
    head = "" if num_classes is None else f" of a head with {num_classes} classes"
    also = f", {len(outside)} such labels" if len(outside) > 1 else ""
    raise MismatchError(
        f"label {label} lies outside the classes{head} ({total} of {len(ids)} samples{also})",
        hint="-1 usually marks unlabelled rows: leave them out with --skip-bad, or change --split"
        if worst < 0
        else "the data and the checkpoint belong to different tasks: give the other one of either",
    )


class NameIndex:
    """Finds class ids by name: whole names first, then their comma-separated synonyms."""

    def __init__(self, names: Mapping[int, str]) -> None:
        self._levels: tuple[dict[str, set[int]], ...] = ({}, {}, {})
        for class_id, name in names.items():
            synonyms = [_normal(part) for part in name.split(",")]
            for level, keys in enumerate(([_normal(name)], synonyms[:1], synonyms)):
                for key in keys:
                    self._levels[level].setdefault(key, set()).add(class_id)

    def find(self, name: str) -> int | None:
        """Class id of `name`, None when unknown; DataError when it names two classes."""
        for level in self._levels:
            if hits := level.get(_normal(name)):
                if len(hits) > 1:
                    raise DataError(
                        f"label {name!r} names {len(hits)} classes of the model: "
                        f"{', '.join(map(str, sorted(hits)))}",
                        hint="use WordNet ids or class numbers",
                    )
                return next(iter(hits))
        return None

    def find_all(self, names: Sequence[str]) -> list[int] | None:
        """Class ids of `names`, or None unless every one is known."""
        found = [self.find(name) for name in names]
        known = [class_id for class_id in found if class_id is not None]
        return known if len(known) == len(names) else None


@cache
def imagenet_synsets(num_classes: int) -> tuple[tuple[str, ...], int] | None:
    """WordNet ids in the order of an ImageNet head, and the id of the first of them.

    None when no ImageNet (1k, 12k, 21k variants, timm's numbering) has that many classes.
    """
    from timm.data import ImageNetInfo, infer_imagenet_subset

    offset = 1 if num_classes == _BACKGROUND else 0
    subset = infer_imagenet_subset({"num_classes": num_classes - offset})
    if subset is None:
        return None
    return tuple(ImageNetInfo(subset).label_names()), offset


@cache
def _imagenet_names(num_classes: int) -> NameIndex | None:
    from timm.data import ImageNetInfo, infer_imagenet_subset

    offset = 1 if num_classes == _BACKGROUND else 0
    subset = infer_imagenet_subset({"num_classes": num_classes - offset})
    if subset is None:
        return None
    descriptions = ImageNetInfo(subset).label_descriptions()
    return NameIndex({index + offset: text for index, text in enumerate(descriptions)})


def _imagenet(
    labels: Sequence[Label], names: Sequence[str], wordnet: bool, num_classes: int | None
) -> LabelMap | None:
    if num_classes is None:
        return None
    if not wordnet:
        index = _imagenet_names(num_classes)
        found = index.find_all(names) if index else None
        if found is None:
            return None
        note = f"{len(names)} labels matched ImageNet class names"
        return LabelMap(dict(zip(labels, found, strict=True)), "imagenet-names", (note,))
    listed = imagenet_synsets(num_classes)
    if listed is None:
        return None
    synsets, offset = listed
    position = {synset: index + offset for index, synset in enumerate(synsets)}
    unknown = [name for name in names if name not in position]
    if unknown:
        raise MismatchError(
            f"WordNet ids that are no class of the {num_classes}-class ImageNet head: "
            f"{_listing(unknown)}",
            hint="leave these classes out",
        )
    ids = {label: position[name] for label, name in zip(labels, names, strict=True)}
    note = f"{len(names)} WordNet ids mapped to their classes of the {num_classes}-class head"
    return LabelMap(ids, "wordnet", (note,))


def _by_user(labels: Sequence[Label], label_map: Mapping[str, int]) -> LabelMap:
    lacking = [str(label) for label in labels if str(label) not in label_map]
    if lacking:
        raise DataError(
            f"the label map has no entry for {_listing(lacking)}",
            hint="add them to the map, or leave them out of the data",
        )
    return LabelMap({label: int(label_map[str(label)]) for label in labels}, "label-map")


def _by_order(
    labels: Sequence[Label],
    names: Sequence[str],
    num_classes: int | None,
    stated: Mapping[int, str],
) -> LabelMap:
    if stated:
        # The checkpoint says what its classes are: a guess by order could be silently wrong.
        known = NameIndex(stated)
        unmatched = [name for name in names if known.find(name) is None]
        raise DataError(
            f"labels {_listing(unmatched)} are none of the checkpoint's class names "
            f"({_listing(list(stated.values()))})",
            hint="rename them to the checkpoint's names or to class numbers",
        )
    if num_classes is not None and len(names) > num_classes:
        raise MismatchError(
            f"the data has {len(names)} classes ({_listing(names)}), the head has {num_classes}",
            hint="give data of the task that the checkpoint was trained on",
        )
    if num_classes is not None and len(names) < num_classes:
        raise DataError(
            f"{len(names)} class names ({_listing(names)}) for a head with {num_classes} classes: "
            "which class each one is cannot be told",
            hint="rename them to class numbers (0, 1, ...) or WordNet ids",
        )
    order = sorted(range(len(names)), key=lambda i: names[i])
    ids = {labels[i]: class_id for class_id, i in enumerate(order)}
    shown = ", ".join(f"{names[i]}={k}" for k, i in enumerate(order[:_SHOWN]))
    more = ", ..." if len(order) > _SHOWN else ""
    note = f"class names numbered in sorted order ({shown}{more})"
    return LabelMap(ids, "sorted", (note,))


def _injective(ids: dict[Label, int]) -> dict[Label, int]:
    first: dict[int, Label] = {}
    for label, class_id in ids.items():
        other = first.setdefault(class_id, label)
        if other != label:
            raise DataError(
                f"labels {other!r} and {label!r} are the same class ({class_id})",
                hint="merge them in the data",
            )
    return ids


def is_generic(id2label: Mapping[int, str] | None) -> bool:
    """Whether class names say nothing: none at all, or ``LABEL_0``, ``LABEL_1``, ..."""
    return not id2label or all(_GENERIC.fullmatch(name) for name in id2label.values())


def _normal(name: str) -> str:
    return " ".join(name.replace("_", " ").casefold().split())


def _listing(names: Sequence[Hashable]) -> str:
    shown = ", ".join(repr(name) for name in names[:_SHOWN])
    return shown + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
