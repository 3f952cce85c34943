from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clcurv.training.names import pair_names

NAMES = ["stem.weight", "blocks.1.w", "blocks.10.w", "blocks.10.b", "norm.weight"]


def with_prefix(prefix, names=NAMES):
    return [prefix + n for n in names]


@pytest.mark.parametrize("prefix", ["", "module.", "model.", "_orig_mod.", "net.base_encoder."])
@pytest.mark.parametrize("other", ["", "module.", "backbone."])
def test_one_constant_prefix_on_either_side(prefix, other):
    pairing = pair_names(with_prefix(prefix), with_prefix(other))
    assert pairing.to_model == dict(zip(with_prefix(prefix), with_prefix(other), strict=True))


def test_new_heads_do_not_disturb_the_prefix():
    pairing = pair_names([*NAMES, "head.weight"], [*with_prefix("bert."), "classifier.weight"])
    assert len(pairing.to_model) == len(NAMES)
    assert pairing.prefix_model == "bert."


def test_block_one_is_not_block_ten():
    assert (
        pair_names(["blocks.1.w"], ["blocks.10.w", "blocks.11.w"]).to_model.get("blocks.1.w")
        != "blocks.1.w"
    )
    full = [f"blocks.{i}.w" for i in range(12)]
    pairing = pair_names(["blocks.1.w", "blocks.2.w"], full)
    assert pairing.to_model == {"blocks.1.w": "blocks.1.w", "blocks.2.w": "blocks.2.w"}


def test_exact_names_win_over_any_prefix():
    # an EMA copy under another prefix must not take the names
    pairing = pair_names(NAMES, [*NAMES, *with_prefix("ema.")])
    assert (pairing.prefix_document, pairing.prefix_model) == ("", "")


def test_strangers_do_not_match():
    # a tail that is only "weight" brings one name together at most
    assert len(pair_names(NAMES, ["a.weight", "b.weight", "c.bias"]).to_model) <= 1


parts = st.lists(st.sampled_from(["a", "b", "1", "10", "weight"]), min_size=1, max_size=4)
names = st.lists(parts.map(".".join), min_size=1, max_size=12, unique=True)


@given(names, st.sampled_from(["", "m.", "m.n."]), st.sampled_from(["", "p."]))
def test_any_names_survive_any_prefix(body, mine, theirs):
    pairing = pair_names(with_prefix(mine, body), with_prefix(theirs, body))
    assert len(pairing.to_model) == len(body)
    assert len(set(pairing.to_model.values())) == len(body)
