"""The draw: balanced, seeded, and stable when rows are left out."""

from __future__ import annotations

from collections import Counter

import torch
from hypothesis import given
from hypothesis import strategies as st

from clcurv.inputs.sampling import balanced_quotas, draw_rows, sample_digest

class_sizes = st.lists(st.integers(1, 30), min_size=1, max_size=8)


@given(class_sizes, st.integers(1, 200))
def test_quotas_are_even_as_far_as_classes_go(sizes: list[int], n: int) -> None:
    counts = dict(enumerate(sizes))
    quotas = balanced_quotas(counts, n, list(counts))
    assert sum(quotas.values()) == min(n, sum(sizes))
    assert all(quotas[c] <= counts[c] for c in counts)
    open_classes = [quotas[c] for c in counts if quotas[c] < counts[c]]
    assert not open_classes or max(quotas.values()) - min(open_classes) <= 1


@given(class_sizes, st.integers(1, 60), st.integers(0, 5))
def test_a_draw_is_balanced_distinct_and_repeatable(sizes: list[int], n: int, seed: int) -> None:
    classes = [c for c, size in enumerate(sizes) for _ in range(size)]
    rows = draw_rows(classes, len(classes), n, seed=seed)
    assert rows == draw_rows(classes, len(classes), n, seed=seed)
    assert len(set(rows)) == len(rows) == min(n, len(classes))
    counts = Counter(classes[row] for row in rows)
    assert Counter(balanced_quotas(Counter(classes), n, range(len(sizes))).values()) == Counter(
        counts[c] for c in range(len(sizes))
    )


@given(st.integers(0, 20), st.data())
def test_leaving_rows_out_keeps_the_others(seed: int, data: st.DataObject) -> None:
    classes = [0] * 20 + [1] * 20
    first = draw_rows(classes, 40, 10, seed=seed)
    bad = data.draw(st.sets(st.sampled_from(first), max_size=4))
    second = draw_rows(classes, 40, 10, seed=seed, without=frozenset(bad))
    assert set(first) - bad <= set(second)
    assert not bad & set(second)
    assert Counter(classes[row] for row in second) == {0: 5, 1: 5}


def test_classes_are_mixed_in_the_order() -> None:
    classes = [0] * 100 + [1] * 100
    rows = draw_rows(classes, 200, 64, seed=0)
    halves = [Counter(classes[row] for row in part) for part in (rows[:32], rows[32:])]
    assert all(min(half.values()) > 5 for half in halves)


def test_digest_sees_values_shapes_types_and_names() -> None:
    x, y = torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64)
    variants = [
        (x, y),
        (x.reshape(2, 4), y),
        (x.double(), y),
        (x, y.int()),
        (x + 1, y),
        ({"a": x}, y),
        ({"b": x}, y),
    ]
    assert len({sample_digest(*variant) for variant in variants}) == len(variants)
    assert sample_digest({"a": x, "b": y}, y) == sample_digest({"b": y, "a": x}, y)
    # sha256 of the documented bytes, written out.
    import hashlib

    written = b"inputs|torch.float32|(1,)|\0\0\x80?targets|torch.int64|(1,)|" + b"\2" + b"\0" * 7
    one, two = torch.ones(1), torch.tensor([2])
    assert sample_digest(one, two) == hashlib.sha256(written).hexdigest()
