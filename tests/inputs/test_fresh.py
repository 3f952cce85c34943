"""A fresh copy has the shapes of the network and nothing of what it has learned."""

from __future__ import annotations

import timm
import torch
from torch import nn

from clcurv.inputs.fresh import fresh_copy
from clcurv.inputs.live import wrap_module


def trained(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn_like(p) * 3 + 1)
        for name, b in model.named_buffers():
            if "running" in name:
                b.fill_(7.0)
    return model.eval()


def test_every_weight_is_drawn_anew_and_the_original_stays() -> None:
    model = trained(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten()))
    before = {n: t.clone() for n, t in model.state_dict().items()}
    fresh = fresh_copy(wrap_module(model)).model
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert float(fresh[0].weight.detach().abs().max()) <= (1 / 27) ** 0.5 + 1e-6
    assert torch.equal(fresh[1].running_var, torch.ones(8))
    assert torch.equal(fresh[1].weight.detach(), torch.ones(8))
    assert not fresh.training


def test_tokens_and_positions_of_a_vit_are_drawn_too() -> None:
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, embed_dim=24, depth=1, num_heads=2, num_classes=3
    )
    trained(model)
    fresh = fresh_copy(wrap_module(model)).model
    for name, parameter in fresh.named_parameters():
        assert float(parameter.detach().abs().max()) <= 2.0, name
    assert float(fresh.pos_embed.detach().std()) < 0.05


def test_one_seed_one_copy_and_the_global_generator_is_left_alone() -> None:
    loaded = wrap_module(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)))
    state = torch.random.get_rng_state()
    a, b, c = (fresh_copy(loaded, seed=s).model[0].weight for s in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
