"""Tables that are read row by row: of these only a sample is kept."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

from clcurv.errors import DataError
from clcurv.inputs.columns import input_columns, label_columns
from clcurv.inputs.reservoir import draw_from
from clcurv.inputs.source import Columns

# Rows kept beyond those asked for: they stand in for rows that turn out unreadable.
_SPARE = 4
# Rows of a table are cheap; what user code yields may be decoded and augmented.
_MOST_TABLE_ROWS, _MOST_OTHERS = 200, 32


def kept_for(n: int) -> int:
    """Rows to keep where `n` are wanted."""
    return n + max(n // _SPARE, 2)


def most_rows(n: int, *, table: bool) -> int:
    """Rows of a stream without a known end that are read at most."""
    return n * (_MOST_TABLE_ROWS if table else _MOST_OTHERS)


def class_of(label: Any) -> Hashable:
    """What the sample is balanced over; real numbers and missing labels are one class."""
    if isinstance(label, float):
        return int(label) if label.is_integer() else None
    return label if isinstance(label, str | int) and label != "" else None


def sample_rows(
    stream: Any,
    where: str,
    asked: tuple[Columns | None, str, bool],
    *,
    n: int,
    seed: int,
    limit: int | None = None,
) -> tuple[Any, int, str]:
    """A class-balanced sample of a `datasets.IterableDataset`, drawn while it is read.

    Images are not decoded, columns that are not needed are not kept.

    Args:
        stream: The rows. Where only a part of them is read (`limit`), the files that they come
            from are taken in a seeded order.
        where: What to call it in messages.
        asked: Columns, modality, and whether labels are needed, as in `open_source`.
        n: Rows wanted; some more are kept, for those that cannot be read.
        seed: Of the draw.
        limit: Most rows to read; None reads all.

    Returns:
        The sample as a `datasets.Dataset`, how many rows were read, and a note.

    Raises:
        DataError: No rows, or columns that cannot be told.
    """
    import datasets

    columns, modality, needs_labels = asked
    if limit is not None and getattr(stream, "num_shards", 1) > 1:
        stream = stream.shuffle(seed=seed, buffer_size=1)
    names: tuple[str, ...] = ()
    if stream.features is not None:
        labels = label_columns(stream.column_names, where, columns, needs_labels)
        inputs, _ = input_columns(stream, where, columns, modality, labels)
        stream = stream.decode(False).select_columns([*inputs, *labels])
        names = labels

    def rows() -> Iterator[tuple[Hashable, Any]]:
        nonlocal names
        for number, row in enumerate(stream):
            if number == 0 and stream.features is None:
                names = label_columns(list(row), where, columns, needs_labels)
            yield class_of(row[names[0]]) if len(names) == 1 else None, row

    drawn = draw_from(rows(), kept_for(n), seed=seed, limit=limit)
    if not drawn.rows:
        raise DataError(f"{where}: the table has no rows")
    table = datasets.Dataset.from_list(drawn.values, features=stream.features)
    return table, drawn.seen, stream_note(drawn.seen, drawn.ended)


def stream_note(seen: int, ended: bool) -> str:
    """How the sample came about."""
    if ended:
        return f"sample drawn while reading all {seen} rows"
    return f"sample drawn from the first {seen} rows of a stream, which was read no further"
