from __future__ import annotations

import pytest
import timm
import torch
from torch import nn

from clcurv.errors import ArchitectureError, UsageError
from clcurv.inputs.heads import grow_head
from clcurv.inputs.live import wrap_module


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 6)
        self.fc = nn.Linear(6, 3)

    def forward(self, x):
        return self.fc(torch.relu(self.body(x)))


def plain():
    torch.manual_seed(0)
    return wrap_module(Plain()), torch.randn(5, 4)


def vit():
    torch.manual_seed(0)
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=16, patch_size=8, embed_dim=8, depth=1, num_heads=2,
        num_classes=3,
    )  # fmt: skip
    nn.init.normal_(model.head.weight)
    return wrap_module(model), torch.randn(2, 3, 16, 16)


def resnet():
    torch.manual_seed(0)
    return wrap_module(timm.create_model("resnet10t", num_classes=3)), torch.randn(2, 3, 32, 32)


def bert():
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=8, max_position_embeddings=8, num_labels=3,
    )  # fmt: skip
    return wrap_module(BertForSequenceClassification(config)), torch.randint(0, 20, (2, 6))


def logits(model, x):
    with torch.no_grad():
        out = model.eval()(x)
    return getattr(out, "logits", out)


@pytest.mark.parametrize("make", [plain, vit, resnet, bert])
def test_old_logits_stay_bit_for_bit(make):
    loaded, x = make()
    before = {n: t.clone() for n, t in loaded.model.state_dict().items()}
    old = logits(loaded.model, x)
    random = torch.get_rng_state()
    grown = grow_head(loaded, 5, seed=1)
    assert torch.equal(torch.get_rng_state(), random)
    new = logits(grown.model, x)
    assert new.shape == (len(x), 5)
    torch.testing.assert_close(new[:, :3], old)
    for name, tensor in grown.model.state_dict().items():
        rows = len(before[name]) if tensor.ndim else None
        assert torch.equal(tensor[:rows] if rows is not None else tensor, before[name]), name
    assert grown.num_classes == 5
    assert grown.head_params == loaded.head_params
    assert "2 drawn with seed 1" in grown.notes[-1]
    for name, tensor in loaded.model.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert loaded.num_classes == 3


def test_new_rows_are_drawn_by_seed():
    loaded, _ = plain()
    first, again, other = (
        grow_head(loaded, 5, seed=s).model.fc.weight[3:].detach() for s in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert float(first.abs().min()) > 0
    assert float(first.abs().max()) <= 6**-0.5  # nn.Linear's own bound


def test_a_hugging_face_model_draws_its_own_way():
    loaded, _ = bert()
    grown = grow_head(loaded, 503)
    new = grown.model.classifier.weight[3:].detach()
    assert float(new.std()) == pytest.approx(grown.model.config.initializer_range, rel=0.1)
    assert float(grown.model.classifier.bias[3:].detach().abs().max()) == 0
    assert grown.model.config.num_labels == grown.model.num_labels == 503


def test_frozen_stays_frozen_and_names_are_kept():
    loaded, _ = plain()
    loaded.model.body.requires_grad_(False)
    grown = grow_head(loaded, 4, id2label={3: "new"})
    flags = {n: p.requires_grad for n, p in grown.model.named_parameters()}
    assert flags == {"body.weight": False, "body.bias": False, "fc.weight": True, "fc.bias": True}
    assert grown.id2label == {3: "new"}


def test_the_same_width_is_a_plain_copy():
    loaded, x = plain()
    same = grow_head(loaded, 3)
    assert same.model is not loaded.model
    assert torch.equal(logits(same.model, x), logits(loaded.model, x))
    assert same.notes == loaded.notes


def test_a_backbone_gets_a_head():
    torch.manual_seed(0)
    loaded = wrap_module(timm.create_model("resnet10t", num_classes=0))
    grown = grow_head(loaded, 4)
    assert logits(grown.model, torch.randn(2, 3, 32, 32)).shape == (2, 4)
    assert grown.task == "classification"


def test_what_cannot_grow_is_refused():
    import dataclasses

    loaded, _ = plain()
    with pytest.raises(UsageError, match="cannot grow from 3 to 2"):
        grow_head(loaded, 2)
    with pytest.raises(UsageError, match="no classes to add"):
        grow_head(dataclasses.replace(loaded, task="causal-lm"), 9)
    with pytest.raises(ArchitectureError, match="no linear layer with 7 outputs"):
        grow_head(dataclasses.replace(loaded, num_classes=7), 9)
