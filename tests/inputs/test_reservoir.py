"""The draw from a stream is the draw from a list: balanced, uniform, seeded, and bounded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from clcurv.inputs.reservoir import class_order, draw_from
from clcurv.inputs.sampling import balanced_quotas


@given(st.lists(st.integers(0, 6), min_size=1, max_size=120), st.integers(1, 40), st.integers(0, 9))
def test_classes_get_the_quotas_of_the_whole_stream(labels: list[int], n: int, seed: int) -> None:
    drawn = draw_from(((label, row) for row, label in enumerate(labels)), n, seed=seed)
    counts = Counter(labels)
    order = sorted(counts, key=lambda c: class_order(seed, c))
    quotas = balanced_quotas(counts, n, order)
    assert Counter(drawn.labels) == {c: q for c, q in quotas.items() if q}
    assert drawn.rows == drawn.values == sorted(set(drawn.rows))
    assert [labels[row] for row in drawn.rows] == drawn.labels
    assert (drawn.seen, drawn.counts, drawn.ended) == (len(labels), counts, True)


def test_every_row_of_a_class_is_as_likely() -> None:
    # 40 rows of a class with quota 5, behind and before rows of another: 4000 draws.
    labels = ["a"] * 20 + ["b"] * 60 + ["a"] * 20
    hits = np.zeros(len(labels))
    draws = 4000
    for seed in range(draws):
        rows = draw_from(((label, None) for label in labels), 10, seed=seed).rows
        hits[rows] += 1
    shares = hits / draws
    expected = np.where(np.array(labels) == "a", 5 / 40, 5 / 60)
    # Five standard errors of a binomial share.
    assert (abs(shares - expected) < 5 * np.sqrt(expected * (1 - expected) / draws)).all()


def test_no_more_than_asked_for_is_held() -> None:
    alive = 0
    most = 0

    class Row:
        def __init__(self) -> None:
            nonlocal alive, most
            alive += 1
            most = max(most, alive)

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    def rows() -> Iterator[tuple[int, Row]]:
        for number in range(5000):
            yield number % 7, Row()

    drawn = draw_from(rows(), 32, seed=0)
    assert len(drawn.rows) == 32
    assert most <= 32 + 4  # the one that loses, and those in flight


def test_a_seed_gives_a_draw_and_a_limit_ends_it() -> None:
    def endless() -> Iterator[tuple[int, int]]:
        number = 0
        while True:
            yield number % 3, number
            number += 1

    one, same, other = (draw_from(endless(), 9, seed=s, limit=300) for s in (0, 0, 1))
    assert one == same
    assert one.rows != other.rows
    assert (one.seen, one.ended, max(one.rows) < 300) == (300, False, True)
