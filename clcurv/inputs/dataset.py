"""A folder, table, array or generator -> a fixed sample of inputs and targets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from clcurv.errors import DataError, UsageError
from clcurv.inputs.formats import open_source
from clcurv.inputs.given import given_source
from clcurv.inputs.loaded import LoadedModel
from clcurv.inputs.preprocess import (
    array_images,
    array_pipeline,
    image_pipeline,
    image_spec,
    open_image,
)
from clcurv.inputs.sampling import draw_rows, sample_digest
from clcurv.inputs.source import Source
from clcurv.inputs.targets import Targets, read_targets
from clcurv.inputs.tokens import (
    IGNORED,
    causal_targets,
    encode_text,
    is_hugging_face,
    is_token_row,
    load_tokenizer,
    mask_tokens,
    token_inputs,
    token_targets,
    vocabulary,
)

_Convert = Callable[[Any, str], Any]
Inputs = Tensor | Mapping[str, Tensor]
_NAMED = 3


@dataclass(frozen=True)
class Batch:
    """Inputs for one forward pass: a tensor (``model(x)``) or keywords (``model(**x)``).

    Targets: int64 class ids ``(n,)``; float ``(n, k)`` for regression; int64 token ids
    ``(n, t)`` with -100 where a token is not scored, not shifted (the objective shifts).
    """

    inputs: Inputs
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)


@dataclass(frozen=True)
class Samples:
    """The frozen sample that everything is measured on.

    Attributes:
        inputs: As in `Batch`, N rows.
        targets: As in `Batch`, N rows.
        source: ``path`` | ``generated`` | ``given``.
        label_source: ``data`` | ``model`` (sampled from the model's own prediction).
        format: ``imagefolder`` | ``npz`` | ``csv`` | ``jsonl`` | ... | ``generated``.
        class_counts: Class id -> how many of the sample.
        available: Samples in the data set before the draw.
        seed: Of the draw.
        digest: sha256 (hex) over inputs and targets.
        skipped: Files or rows that could not be read (only with ``skip_bad``).
        notes: Sentences for the report.
    """

    inputs: Inputs
    targets: Tensor
    source: Literal["path", "generated", "given"] = "given"
    label_source: Literal["data", "model"] = "data"
    format: str = "given"
    class_counts: dict[int, int] = field(default_factory=dict)
    available: int = 0
    seed: int = 0
    digest: str = ""
    skipped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the person who asked must be told."""
        if not self.skipped:
            return ()
        named = "; ".join(self.skipped[:_NAMED])
        more = f"; and {len(self.skipped) - _NAMED} more" if len(self.skipped) > _NAMED else ""
        return (f"{len(self.skipped)} samples could not be used and were left out: {named}{more}",)

    def split(self, size: int) -> list[Batch]:
        """Consecutive micro-batches of at most `size` samples; the last may be ragged."""
        return list(self._iter(size))

    def _iter(self, size: int) -> Iterator[Batch]:
        for start in range(0, len(self), size):
            rows = slice(start, start + size)
            if isinstance(self.inputs, Tensor):
                yield Batch(self.inputs[rows], self.targets[rows])
            else:
                yield Batch({k: v[rows] for k, v in self.inputs.items()}, self.targets[rows])


def load_samples(
    data: Any,
    loaded: LoadedModel,
    *,
    n: int = 512,
    seed: int = 0,
    split: str | None = None,
    columns: Mapping[str, Any] | None = None,
    label_map: Mapping[str, int] | None = None,
    max_length: int | None = None,
    skip_bad: bool = False,
    loss: str | None = None,
) -> Samples:
    """Draw a fixed, class-balanced sample and prepare it the way the model wants it.

    The same data, model, `n` and `seed` always give the same sample: files are taken in
    the order of their names, tables in the order of their rows.

    Args:
        data: A path (image folder, npz, csv, tsv, json(l), parquet, arrow, WebDataset tar,
            save_to_disk folder, folder of tables or tars), an object in memory, see
            `given_source`, or an open `Source`.
        loaded: The model, whose preprocessing and class names are used.
        n: Samples wanted; fewer are drawn when there are fewer.
        seed: Of the draw and of the masking of masked language models.
        split: ``train``, ``val``, ``test`` or a name in the data; by default the first
            there is.
        columns: Names of the columns (or npz arrays): ``image``, ``text`` (one or two),
            ``array``, ``label``; and ``label_map``, see `clcurv.inputs.source.Columns`.
        label_map: Label as written -> class id; see `clcurv.inputs.labels` for what
            happens without one.
        max_length: Cut texts at this many tokens, below the model's own limit.
        skip_bad: Replace what cannot be read by other draws instead of refusing.
        loss: ``mse`` asks for float targets also of a classifier (one-hot then).

    Raises:
        DataError: It cannot be read, is empty, has no labels, or fewer than two samples.
        MismatchError: Labels or token ids that do not fit the model.
        UnsafeFileError: It would execute code or exhaust the machine.
        UsageError: `n` is not positive.
    """
    if isinstance(data, Samples):
        return data
    if n < 1:
        raise UsageError(f"a sample of {n} was asked for", hint="give --samples 512")
    language = loaded.task in ("causal-lm", "masked-lm")
    with _opened(data, loaded, n, seed, split, columns, needs_labels=not language) as source:
        if source.length < 2:
            if source.length == 0:
                raise DataError("the data set is empty, nothing can be measured on it")
            raise DataError(
                f"{source.name(0)}: the data set has a single sample, nothing can be measured on it"
            )
        targets = None
        if not language:
            targets = read_targets(
                source, loaded, label_map=label_map, loss=loss, skip_bad=skip_bad
            )
        convert, converted = _converter(source, loaded)
        rows, values, skipped = _draw(source, convert, targets, n, seed, skip_bad)
        notes = (*source.notes, *(targets.notes if targets else ()), *converted)

    inputs = _assemble(values, source.kind, loaded, max_length)
    if targets is not None:
        chosen = targets.values[torch.tensor(rows)]
    elif (own := _own_targets(source, rows, inputs, loaded)) is not None:
        chosen = own
        notes += (f"scored on the labels given, {int((own != IGNORED).sum())} tokens",)
    elif loaded.task == "masked-lm":
        vocab = vocabulary(loaded, load_tokenizer(loaded))
        inputs, chosen = mask_tokens(inputs, vocab, seed=seed)
        notes += ("15 % of the words masked, once and for all",)
    else:
        chosen = causal_targets(inputs)
    if targets is None and source.labels is not None and own is None:
        notes += ("labels left out: they are not one per token",)
    classes = targets.classes if targets else None
    counts = Counter(classes[row] for row in rows) if classes else Counter[int]()
    if len(rows) < n:
        notes += (f"{n} samples were asked for, {len(rows)} can be used",)
    if len(counts) == 1:
        notes += ("all samples are of one class",)
    if skipped:
        notes += (f"{len(skipped)} samples could not be used and were left out",)
    return Samples(
        inputs=inputs,
        targets=chosen,
        source="path" if isinstance(data, str | Path) else "given",
        label_source="data",
        format=source.format,
        class_counts=dict(sorted(counts.items())),
        available=source.length if source.population is None else source.population,
        seed=seed,
        digest=sample_digest(inputs, chosen),
        skipped=skipped,
        notes=notes,
    )


def _own_targets(
    source: Source, rows: list[int], inputs: Inputs, loaded: LoadedModel
) -> Tensor | None:
    """The data's own labels of tokens, where every drawn row has them."""
    found = None if source.labels is None else [source.labels[row] for row in rows]
    if found is None or source.kind == "text" or not all(map(is_token_row, found)):
        return None
    ids = inputs if isinstance(inputs, Tensor) else inputs["input_ids"]
    names = [source.name(row) for row in rows]
    return token_targets(found, ids, vocabulary(loaded, load_tokenizer(loaded)).size, names)


@contextmanager
def _opened(
    data: Any,
    loaded: LoadedModel,
    n: int,
    seed: int,
    split: str | None,
    columns: Mapping[str, Any] | None,
    *,
    needs_labels: bool,
) -> Iterator[Source]:
    if isinstance(data, Source):
        yield data
    elif isinstance(data, str | Path):
        with open_source(
            Path(data),
            split=split,
            columns=columns,
            modality=loaded.modality,
            needs_labels=needs_labels,
            n=n,
            seed=seed,
        ) as source:
            yield source
    else:
        yield given_source(
            data,
            n=n,
            seed=seed,
            split=split,
            columns=columns,
            modality=loaded.modality,
            needs_labels=needs_labels,
        )


def _converter(source: Source, loaded: LoadedModel) -> tuple[_Convert, tuple[str, ...]]:
    """From what the source reads to one row of the model's input, and notes."""
    takes = {"image": ("image", "array"), "text": ("text",), "array": ("array", "text", "image")}
    if source.kind != "prepared" and loaded.modality not in takes[source.kind]:
        raise DataError(
            f"the data holds {source.kind}s, the model {loaded.arch} takes {loaded.modality}s",
            hint="check --data, or name the columns (--image-column, --text-column)",
        )
    if source.kind == "text":
        return _text, ()
    if source.kind == "prepared":
        return _prepared, ()
    if source.kind == "array":
        return (_as_is, ()) if loaded.modality == "text" else (_float_row, ())
    first = source.whole
    if first is None and isinstance(peek := _first_readable(source), np.ndarray):
        first = peek[None]
    if first is None:
        through_image, notes = image_pipeline(loaded)
        return lambda value, name: through_image(open_image(value, name)), notes
    layout = array_images(first, image_spec(loaded).channels)
    through_array, notes = array_pipeline(loaded, layout)
    return lambda value, name: through_array(value), notes


def _first_readable(source: Source) -> Any:
    first: DataError | None = None
    for row in range(source.length):
        try:
            return source.read(row)
        except DataError as error:
            first = first or error
    raise DataError(f"none of {source.length} samples can be read: {first}") from first


def _text(value: Any, name: str) -> Any:
    parts = (value,) if isinstance(value, str) else value
    if not any(part.strip() for part in parts):
        raise DataError(f"{name}: the text is empty")
    return value


def _prepared(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _prepared(part, name) for key, part in value.items()}
    tensor = torch.as_tensor(value)
    return tensor.float() if tensor.is_floating_point() else tensor.to(torch.int64)


def _as_is(value: Any, name: str) -> Any:
    return value


def _float_row(value: Any, name: str) -> Tensor:
    try:
        row = torch.from_numpy(np.array(value, dtype=np.float32))
    except (TypeError, ValueError) as error:
        raise DataError(f"{name}: not an array of numbers ({error})") from error
    if not torch.isfinite(row).all():
        raise DataError(f"{name}: holds values that are not finite")
    return row


def _draw(
    source: Source,
    convert: _Convert,
    targets: Targets | None,
    n: int,
    seed: int,
    skip_bad: bool,
) -> tuple[list[int], list[Any], tuple[str, ...]]:
    """Rows of the sample, their converted values, and what was left out and why."""
    missing = targets.missing if targets else ()
    skipped = {row: f"{source.name(row)}: no label" for row in missing}
    values: dict[int, Any] = {}
    while True:
        rows = draw_rows(
            targets.classes if targets else None,
            source.length,
            n,
            seed=seed,
            without=frozenset(skipped),
        )
        bad: dict[int, DataError] = {}
        for row in rows:
            if row not in values:
                try:
                    values[row] = convert(source.read(row), source.name(row))
                except DataError as error:
                    bad[row] = error
        if not bad:
            break
        first = bad[min(bad)]
        if not skip_bad:
            more = f" ({len(bad)} of the {len(rows)} drawn cannot be read)"
            hint = "leave such samples out with --skip-bad" if len(bad) < len(rows) else first.hint
            raise DataError(str(first) + more, hint=hint)
        skipped |= {row: str(error) for row, error in bad.items()}
        if len(skipped) == source.length:
            raise DataError(f"none of {source.length} samples can be read: {first}")
    if len(rows) < min(n, 2):
        raise DataError(f"{source.name(rows[0])}: the only sample that can be read")
    return rows, [values[row] for row in rows], tuple(skipped[row] for row in sorted(skipped))


def _assemble(
    values: list[Any], kind: str, loaded: LoadedModel, max_length: int | None
) -> Tensor | dict[str, Tensor]:
    """Rows -> what the model is called with."""
    if kind == "text":
        return encode_text(values, loaded, max_length=max_length)
    first = values[0]
    if loaded.modality == "text" and not isinstance(first, Mapping):
        return token_inputs([np.asarray(value)[:max_length] for value in values], loaded)
    if isinstance(first, Mapping):
        return {name: _stack([value[name] for value in values]) for name in first}
    stacked = _stack(values)
    if loaded.modality == "image" and is_hugging_face(loaded):
        return {"pixel_values": stacked}
    return stacked


def _stack(rows: list[Tensor]) -> Tensor:
    shapes = sorted({tuple(row.shape) for row in rows})
    if len(shapes) > 1:
        raise DataError(
            f"the samples have different shapes: {shapes[0]}, {shapes[1]}"
            + (", ..." if len(shapes) > 2 else ""),
            hint="bring them to one size; the model's own config names none",
        )
    return torch.stack(rows)
