"""How work is laid out in a memory budget."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from clcurv.curvature.probe import Probe
from clcurv.diagnostics.layout import basis_bytes, default_chunk, lay_out, waves


def trial(bytes_per_sample: int = 1000) -> Probe:
    return Probe(frozenset(), {}, bytes_per_sample, 1.0, 1.0, {})


def layers(*sizes: int, dtype: torch.dtype = torch.float32) -> dict[str, list[nn.Parameter]]:
    return {f"l{i}": [nn.Parameter(torch.empty(n, dtype=dtype))] for i, n in enumerate(sizes)}


def test_a_sixteenth_of_the_sample_but_not_too_small() -> None:
    assert default_chunk(512) == 32
    assert default_chunk(500) == 32
    assert default_chunk(100) == 8
    assert default_chunk(3) == 8


def test_all_fits() -> None:
    found = lay_out(512, layers(10, 10), trial(), batch_size=None, budget=10**9)
    assert (found.chunk, found.n_chunks, found.kept) == (32, 16, 16)
    assert found.bytes_graph == 32_000
    assert found.bytes_basis == 2 * basis_bytes(layers(10)["l0"])
    assert found.bytes_total == found.bytes_basis + 16 * 32_000


def test_no_memory_keeps_nothing_but_goes_on() -> None:
    found = lay_out(512, layers(10, 10), trial(), batch_size=None, budget=0)
    assert (found.chunk, found.kept) == (1, 0)
    assert found.bytes_basis == basis_bytes(layers(10)["l0"])


def test_the_batch_size_asked_for_is_taken() -> None:
    assert lay_out(50, layers(10), trial(), batch_size=7, budget=0).n_chunks == 8
    assert lay_out(50, layers(10), trial(), batch_size=99, budget=10**9).chunk == 50


def test_smaller_micro_batches_where_memory_asks_for_it() -> None:
    found = lay_out(512, layers(1), trial(), batch_size=None, budget=20_000)
    assert found.chunk == 10
    assert found.n_chunks == 52


def test_basis_of_double_takes_twice() -> None:
    single, double = layers(10), layers(10, dtype=torch.float64)
    assert basis_bytes(double["l0"]) == 2 * basis_bytes(single["l0"])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 5000), min_size=1, max_size=12), st.integers(0, 10**6))
def test_waves_hold_every_layer_once_in_order(sizes: list[int], budget: int) -> None:
    given_layers = layers(*sizes)
    found = list(waves(given_layers, budget))
    assert [name for wave in found for name in wave] == list(given_layers)
    for wave in found:
        assert wave
        taken = sum(basis_bytes(p) for p in wave.values())
        assert taken <= budget // 2 or len(wave) == 1
    for one, following in pairwise(found):
        first = basis_bytes(next(iter(following.values())))
        assert sum(basis_bytes(p) for p in one.values()) + first > budget // 2


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 3000), st.integers(1, 10**6), st.integers(0, 10**9))
def test_what_is_promised_fits_the_budget(n: int, per_sample: int, budget: int) -> None:
    found = lay_out(n, layers(20), trial(per_sample), batch_size=None, budget=budget)
    assert 1 <= found.chunk <= n
    assert found.n_chunks == math.ceil(n / found.chunk)
    assert 0 <= found.kept <= found.n_chunks
    if found.kept:
        assert found.bytes_basis + found.kept * found.bytes_graph <= budget


@pytest.mark.parametrize("bytes_per_sample", [1, 10**12])
def test_extreme_graphs(bytes_per_sample: int) -> None:
    found = lay_out(64, layers(10), trial(bytes_per_sample), batch_size=None, budget=10**9)
    assert found.chunk == (8 if bytes_per_sample == 1 else 1)
