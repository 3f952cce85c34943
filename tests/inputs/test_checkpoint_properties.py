"""Whatever the bytes: weights come out whole, or one of our errors does, on one line."""

from __future__ import annotations

import argparse
import io
import json
import pathlib
import struct
import uuid
from collections import defaultdict, deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hostile import TINY, tiny_state
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from clcurv.errors import ClcurvError, InputError
from clcurv.inputs.architecture import load_model
from clcurv.inputs.checkpoint import Weights, load_weights
from clcurv.inputs.loaded import LoadedModel

quick = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
STATE = {
    "conv1.weight": torch.arange(24.0).reshape(2, 3, 2, 2),
    "bn1.num_batches_tracked": torch.tensor(7),
    "layer1.0.weight": torch.ones(4, 4, dtype=torch.bfloat16),
    "layer1.0.bias": torch.zeros(0),
    "fc.weight": torch.full((3, 4), 0.5),
}


def as_torch(content: Any, *, legacy: bool = False) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer, _use_new_zipfile_serialization=not legacy)
    return buffer.getvalue()


FORMATS = {
    "zip": as_torch(STATE),
    "legacy": as_torch(STATE, legacy=True),
    "safetensors": save(STATE),
}


def load(folder: Path, content: bytes) -> Weights | None:
    """The weights, or None where they are refused as they should be."""
    path = folder / f"{uuid.uuid4()}.bin"
    path.write_bytes(content)
    message = ""
    try:
        return load_weights(path, max_bytes=10_000_000)
    except InputError as error:
        message = str(error)
    finally:
        path.unlink()
    assert message
    assert "\n" not in message
    return None


BEGINNINGS = st.sampled_from(
    (
        *(b"", b"PK\x03\x04", b"\x80\x02", b"<", b"{", b"\x08", FORMATS["legacy"][:80]),
        *(struct.pack("<Q", 40) + b'{"w":', FORMATS["zip"][:200], FORMATS["legacy"][:600]),
    )
)


@quick
@given(beginning=BEGINNINGS, rest=st.binary(max_size=600))
def test_random_bytes_are_refused(beginning: bytes, rest: bytes, tmp_path: Path) -> None:
    assert load(tmp_path, beginning + rest) is None


@pytest.mark.parametrize("kind", FORMATS)
@quick
@given(data=st.data())
def test_no_part_of_a_file_passes_for_the_whole(
    kind: str, data: st.DataObject, tmp_path: Path
) -> None:
    content = FORMATS[kind]
    length = data.draw(st.integers(0, len(content) - 1))
    assert load(tmp_path, content[:length]) is None


@pytest.mark.parametrize("kind", FORMATS)
@quick
@given(data=st.data())
def test_flipped_bits_lose_no_tensor(kind: str, data: st.DataObject, tmp_path: Path) -> None:
    damaged = bytearray(FORMATS[kind])
    # Where structure lies: the zip's table of contents at its end, the others' heads.
    reach = len(damaged) if kind == "zip" else 1500
    flips = st.tuples(st.integers(0, min(reach, len(damaged)) - 1), st.integers(0, 7))
    for position, bit in data.draw(st.lists(flips, min_size=1, max_size=3)):
        damaged[position] ^= 1 << bit
    weights = load(tmp_path, bytes(damaged))
    if weights is not None:
        assert len(weights.tensors) == len(STATE)


@settings(quick, max_examples=25)
@given(data=st.data())
def test_a_damaged_file_never_fills_a_part_of_a_model(data: st.DataObject, tmp_path: Path) -> None:
    """The older format has no checksums: the model must show damage in names and shapes."""
    content = bytearray(as_torch({"arch": TINY, "state_dict": tiny_state()}, legacy=True))
    position = data.draw(st.integers(150, 6000))
    content[position] ^= 1 << data.draw(st.integers(0, 7))
    path = tmp_path / f"{uuid.uuid4()}.pt"
    path.write_bytes(content)
    loaded: LoadedModel | None = None
    message, code = "", 3
    try:
        loaded = load_model(path)
    except ClcurvError as error:
        message, code = str(error), error.exit_code
    finally:
        path.unlink()
    assert "\n" not in message
    assert code in (3, 4)
    if loaded is not None:
        assert loaded.matched_fraction >= 0.99
        assert not set(loaded.missing) & set(loaded.head_params)


WRAPPERS = st.sampled_from(
    (
        *("state_dict", "model", "model_state_dict", "model_state", "net", "network", "weights"),
        *("module", "state_dict_ema", "model_ema", "ema", "teacher", "student"),
    )
)
PREFIXES = st.sampled_from(
    ("module.", "_orig_mod.", "model.", "net.", "network.", "backbone.", "base_model.", "trunk.")
)


@quick
@given(
    wrappers=st.lists(WRAPPERS, max_size=6),
    prefixes=st.lists(PREFIXES, max_size=4),
    legacy=st.booleans(),
)
def test_wrappers_and_prefixes_come_off_whole(
    wrappers: list[str], prefixes: list[str], legacy: bool, tmp_path: Path
) -> None:
    prefix = "".join(prefixes)
    content: Any = {prefix + name: tensor for name, tensor in STATE.items()}
    for wrapper in reversed(wrappers):
        content = {wrapper: content, "epoch": 3}
    weights = load(tmp_path, as_torch(content, legacy=legacy))
    assert weights is not None
    assert weights.key == (".".join(wrappers) or None)
    assert weights.prefix == prefix
    assert weights.tensors.keys() == STATE.keys()
    for name, tensor in STATE.items():
        assert weights.tensors[name].dtype == tensor.dtype
        assert torch.equal(weights.tensors[name], tensor)
        assert weights.original_names[name] == prefix + name


SIMPLE = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=20)
    | st.floats(width=32).map(np.float32)
    | st.integers(0, 255).map(np.uint8)
    | st.sampled_from([np.arange(6).reshape(2, 3), np.array(["a", "bc"]), torch.tensor(0.5)])
    | st.text("abc/", min_size=1, max_size=9).map(pathlib.PurePosixPath)
)
METADATA = st.recursive(
    SIMPLE,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=5) | st.integers(0, 9), inner, max_size=4)
        | st.lists(inner, max_size=3).map(deque)
        | inner.map(lambda value: defaultdict(list, {"x": value}))
        | inner.map(lambda value: argparse.Namespace(a=value))
    ),
    max_leaves=12,
)


@quick
@given(metadata=st.dictionaries(st.text(max_size=8), METADATA, max_size=5), legacy=st.booleans())
def test_what_lies_beside_the_weights_does_not_matter(
    metadata: dict[str, Any], legacy: bool, tmp_path: Path
) -> None:
    weights = load(tmp_path, as_torch({**metadata, "state_dict": STATE}, legacy=legacy))
    assert weights is not None
    assert weights.key == "state_dict"
    assert weights.tensors.keys() == STATE.keys()
    json.dumps(weights.metadata)  # plain values only
