"""The facts of a ``clcurv inspect`` report as labels and sentences, once for every text format."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.filesize import decimal

from clcurv.report.text import count, number, percent, printable

if TYPE_CHECKING:
    from clcurv.report.inspect_document import InspectDocument, PartInfo, TensorInfo

_NAMES = 4  # of tensors that are listed in a sentence
_VALUES = 8  # of the metadata
_UNFOLDED = 20  # tensors that are listed one by one

Rows = list[tuple[str, str]]


@dataclass(frozen=True)
class Outline:
    """Tensors whose names differ in numbers only.

    Attributes:
        pattern: The name with ``*`` for every number that varies.
        n: How many there are.
        shape: Of the first; ``...`` behind it where the others differ.
        elements: Of all of them.
    """

    pattern: str
    n: int
    shape: str
    elements: int


def heading(doc: InspectDocument, *, short: bool = False) -> Rows:
    """Label and text: file, weights, model, how they pair up, metadata, data.

    Args:
        doc: The report.
        short: Leave checksums at their first digits.
    """
    rows = [("file", _file(doc))]
    if doc.weights is not None:
        rows.append(("weights", _weights(doc)))
    rows += _model(doc)
    rows += _match(doc)
    if doc.data is not None:
        rows.append(("data", _data(doc)))
    rows += _input(doc)
    if doc.metadata:
        rows.append(("metadata", _metadata(doc)))
    digits = 16 if short else 64
    sums = [x for x in doc.file.files if x.sha256]
    if doc.file.kind == "file" and sums:
        rows.append(("sha256", _cut(str(sums[0].sha256), digits)))
    if doc.weights is not None:
        rows.append(("digest", _cut(doc.weights.digest, digits)))
    return rows


def refusal(doc: InspectDocument) -> Rows:
    """Label and text: why the commands do not take it, and what to try."""
    if doc.refusal is None:
        return []
    rows = [("refused", printable(doc.refusal.message))]
    if doc.refusal.hint:
        rows.append(("hint", printable(doc.refusal.hint)))
    return rows


def notes(doc: InspectDocument) -> list[str]:
    """What loading had to say, without what `heading` says in its own words."""
    said = ("weights taken from key ", "also inside, not used: ", "prefix ")
    return [note for note in doc.notes if not note.startswith(said)]


def advice(doc: InspectDocument) -> str:
    """The report in a sentence."""
    if doc.refusal is not None:
        return f"refused: {printable(doc.refusal.message)}"
    if doc.architecture is None:
        return "no architecture"
    return f"{printable(doc.architecture.name)}, {len(doc.layers)} layers by {doc.layers_by}"


def outline(tensors: Sequence[TensorInfo]) -> list[Outline]:
    """The names at a glance: ``blocks.*.attn.qkv.weight``, 12 times."""
    groups = _grouped(tensors, "")
    if len(tensors) > _UNFOLDED:
        groups = _grouped(tensors, r"(?<![^.])\d+(?=\.)")  # blocks.3.
        if len(groups) > _UNFOLDED:
            groups = _grouped(tensors, r"\d+(?=[._])")  # layer3.0.conv1.
    return [
        Outline(
            pattern=printable(pattern if len(group) > 1 else group[0].name),
            n=len(group),
            shape=shape(group[0].shape) + ("" if len({x.shape for x in group}) == 1 else ", ..."),
            elements=sum(_product(x.shape) for x in group),
        )
        for pattern, group in groups.items()
    ]


def _grouped(tensors: Sequence[TensorInfo], numbers: str) -> dict[str, list[TensorInfo]]:
    groups: dict[str, list[TensorInfo]] = {}
    for tensor in tensors:
        pattern = re.sub(numbers, "*", tensor.name) if numbers else tensor.name
        groups.setdefault(pattern, []).append(tensor)
    return groups


def shape(sizes: Sequence[int]) -> str:
    """``192×3×16×16``; a single number has none."""
    return "×".join(map(str, sizes)) or "scalar"


def _file(doc: InspectDocument) -> str:
    file = doc.file
    parts = [file.format] if file.format else []
    if file.kind == "folder":
        parts.append(f"{len(file.files)} files" if file.files else "folder")
    parts.append(decimal(file.size_bytes))
    if file.format is None and file.begins:
        parts.append(f"begins with {file.begins[: 3 * 8 - 1]}")
    return f"{printable(file.path)}: {', '.join(parts)}"


def _weights(doc: InspectDocument) -> str:
    weights = doc.weights
    assert weights is not None
    total = max(weights.n_elements, 1)
    kinds = list(weights.dtypes.items())
    if len(kinds) == 1:
        types = kinds[0][0]
    else:
        types = ", ".join(f"{name} {_share(n / total)}" for name, n in kinds)
    text = (
        f"{weights.n_tensors} tensors, {count(weights.n_elements)} elements, "
        f"{decimal(weights.size_bytes)}, {types}"
    )
    if weights.key is not None:
        text += f"; under {_quoted(weights.key)}"
    if weights.other_keys:
        text += f"; also in the file: {_listed(weights.other_keys)}"
    if weights.prefix:
        text += f"; {_quoted(weights.prefix)} stripped from the names"
    if weights.aside:
        text += f"; {len(weights.aside)} tensors of a second copy left aside"
    return text


def _model(doc: InspectDocument) -> Rows:
    arch = doc.architecture
    if arch is None:
        return []
    task = arch.task
    if arch.num_classes is not None:
        what = {"causal-lm": "words", "masked-lm": "words", "regression": "outputs"}
        task += f", {arch.num_classes} {what.get(arch.task, 'classes')}"
    rows = [("model", f"{printable(arch.name)}: {task}, {count(arch.n_parameters)} parameters")]
    chosen = [c for c in doc.candidates if c.status == "chosen"]
    return rows + [("evidence", printable(c.evidence)) for c in chosen]


def _input(doc: InspectDocument) -> Rows:
    arch = doc.architecture
    if arch is None:
        return []
    rows = []
    if arch.classes:
        more = ", ..." if (arch.num_classes or 0) > len(arch.classes) else ""
        shown = ", ".join(printable(name, limit=24) for name in arch.classes)
        rows.append(("classes", shown + more))
    if arch.preprocess:
        shown = ", ".join(f"{k} {printable(v, limit=60)}" for k, v in arch.preprocess.items())
        rows.append(("input", f"{arch.modality}: {printable(shown)}"))
    else:
        rows.append(("input", arch.modality))
    return rows


def _match(doc: InspectDocument) -> Rows:
    match = doc.match
    if match is None:
        return []
    rows = []
    if doc.architecture is None:
        rows.append(("compared", f"with {printable(match.arch)}"))
    rows.append(("backbone", _part(match.backbone)))
    head = match.head
    empty = not (head.matched or head.missing or head.unexpected or head.different)
    shared = [name for layer in doc.layers for name in layer.tied_names]
    if not empty:
        rows.append(("head", _part(head)))
    elif shared and doc.architecture is not None and doc.architecture.task != "backbone":
        rows.append(("head", f"shares its weights: {_listed(shared)}"))
    else:
        rows.append(("head", "none"))
    if match.pretraining:
        rows.append(("left over", f"of pretraining: {_listed(match.pretraining)}"))
    return rows


def _part(part: PartInfo) -> str:
    total = part.matched + len(part.missing) + len(part.different)
    text = f"{part.matched} of {total} tensors filled, {count(part.matched_elements)} elements"
    for names, what in (
        (part.missing, "missing from the file"),
        (part.different, "of another shape"),
        (part.unexpected, "without a place in the model"),
    ):
        if names:
            text += f"; {len(names)} {what}: {_listed(names)}"
    return text


def _metadata(doc: InspectDocument) -> str:
    shown = list(doc.metadata.items())[:_VALUES]
    text = ", ".join(f"{printable(k, limit=40)}={_value(v)}" for k, v in shown)
    more = len(doc.metadata) + doc.metadata_left_out - len(shown)
    return f"{text}, and {more} more" if more else text


def _value(value: str | int | float | bool | None) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return printable(str(value), limit=40)


def _data(doc: InspectDocument) -> str:
    data = doc.data
    assert data is not None
    text = f"{printable(data.path or 'given')}: {data.n_samples} samples"
    if data.accuracy is not None:
        text += f", accuracy {percent(data.accuracy)}"
    if data.chance is not None:
        text += f" (chance {percent(data.chance)})"
    if data.mean_loss is not None:
        text += f", mean loss {number(data.mean_loss)}"
    return text


def _quoted(name: str) -> str:
    return f"'{printable(name, limit=60)}'"


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(printable(name, limit=80) for name in names[:_NAMES])
    return shown + (", ..." if len(names) > _NAMES else "")


def _cut(text: str, digits: int) -> str:
    return text if len(text) <= digits else f"{text[:digits]}…"


def _share(part: float) -> str:
    return "< 0.1 %" if 0 < part < 1e-3 else percent(part)


def _product(sizes: Sequence[int]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total
