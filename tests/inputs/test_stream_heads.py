"""Fresh and narrowed heads: the right layer, seeded, and the given model left alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch
from datamakers import bert, image_model
from torch import nn

from clcurv.errors import ArchitectureError, MismatchError, UsageError
from clcurv.inputs.heads import fresh_head, narrow_head
from clcurv.inputs.live import wrap_module
from clcurv.inputs.loaded import LoadedModel


def mlp(bias: bool = True) -> LoadedModel:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3, bias=bias))
    return wrap_module(model.eval())


def timm_model(name: str, **more: object) -> LoadedModel:
    return wrap_module(timm.create_model(name, num_classes=5, **more).eval())


def state(loaded: LoadedModel) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in loaded.model.state_dict().items()}


def test_a_fresh_head_is_pytorchs_own_draw_with_the_seed() -> None:
    fresh = fresh_head(mlp(), num_classes=7, seed=11)
    with torch.random.fork_rng():
        torch.manual_seed(11)
        expected = nn.Linear(6, 7)
    head = fresh.model.get_submodule("2")
    assert torch.equal(head.weight, expected.weight)
    assert torch.equal(head.bias, expected.bias)
    assert (fresh.num_classes, fresh.head_params) == (7, ("2.weight", "2.bias"))
    assert not torch.equal(fresh_head(mlp(), seed=12).model.get_submodule("2").weight[:3],
                           expected.weight[:3])  # fmt: skip


@pytest.mark.parametrize("bias", [True, False])
def test_only_the_head_changes_and_only_in_the_copy(bias: bool) -> None:
    loaded = mlp(bias)
    before, drawn = state(loaded), torch.random.get_rng_state()
    fresh = fresh_head(loaded, seed=1)
    assert torch.equal(torch.random.get_rng_state(), drawn)
    assert all(torch.equal(before[name], value) for name, value in state(loaded).items())
    after = state(fresh)
    assert after.keys() == before.keys()
    assert {name for name in after if not torch.equal(after[name], before[name])} == set(
        loaded.head_params
    )


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("resnet18", {}),
        ("vit_tiny_patch16_224", {"img_size": 32, "depth": 1}),
        ("deit_tiny_distilled_patch16_224", {"img_size": 32, "depth": 1}),
        ("convnext_atto", {}),
    ],
)
def test_timm_heads(name: str, more: dict[str, object]) -> None:
    loaded = timm_model(name, **more)
    x = torch.randn(2, 3, 32, 32)
    fresh = fresh_head(loaded, num_classes=9, seed=3)
    assert fresh.model(x).shape == (2, 9)
    assert fresh.model.num_classes == 9
    assert set(fresh.head_params) == set(loaded.head_params)
    narrow = narrow_head(loaded, [4, 1])
    assert torch.allclose(narrow.model(x), loaded.model(x)[:, [4, 1]], atol=1e-5)
    assert loaded.model(x).shape == (2, 5)


def test_a_hugging_face_head_follows_its_own_initialisation(tmp_path: Path) -> None:
    loaded = bert("classification", tmp_path, classes=3)
    loaded = wrap_module(loaded.model)
    fresh = fresh_head(loaded, num_classes=400, seed=2)
    head = fresh.model.get_submodule("classifier")
    assert fresh.model.config.num_labels == 400
    assert not head.bias.any()
    std = float(head.weight.detach().std())
    assert std == pytest.approx(loaded.model.config.initializer_range, rel=0.1)
    tokens = torch.ones(2, 4, dtype=torch.int64)
    assert fresh.model(input_ids=tokens).logits.shape == (2, 400)
    assert loaded.model.config.num_labels == 3


def test_a_backbone_gets_a_head() -> None:
    loaded = wrap_module(timm.create_model("resnet18", num_classes=0).eval())
    fresh = fresh_head(loaded, num_classes=4)
    assert (fresh.task, fresh.head_params) == ("classification", ("fc.weight", "fc.bias"))
    assert fresh.model(torch.randn(2, 3, 32, 32)).shape == (2, 4)
    with pytest.raises(ArchitectureError, match="how many features"):
        fresh_head(image_model(None), num_classes=4)


def test_narrowing_keeps_values_names_and_order() -> None:
    loaded = mlp()
    narrow = narrow_head(loaded, [2, 0])
    old, new = loaded.model.get_submodule("2"), narrow.model.get_submodule("2")
    assert torch.equal(new.weight, old.weight[[2, 0]])
    assert torch.equal(new.bias, old.bias[[2, 0]])
    assert narrow.num_classes == 2
    with pytest.raises(MismatchError, match="output 3 lies outside"):
        narrow_head(loaded, [0, 3])


def test_what_has_no_head_to_exchange(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="language model"):
        fresh_head(bert("masked-lm", tmp_path))
    with pytest.raises(UsageError, match="0 outputs"):
        fresh_head(mlp(), num_classes=0)
    odd = wrap_module(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), head_params=("1.weight",))
    with pytest.raises(ArchitectureError, match="no linear layer"):
        fresh_head(odd, num_classes=2)
