"""Tiny networks with data, one for every kind of layer and loss that has gone wrong somewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import timm
import torch
import transformers
from torch import Tensor, nn

from clcurv.curvature.objective import Objective
from clcurv.inputs.dataset import Samples
from clcurv.inputs.layers import Layer, discover_layers


@dataclass
class Case:
    model: nn.Module
    samples: Samples
    objective: Objective
    head: tuple[str, ...] = ()

    def layers(self, granularity: str = "block") -> list[Layer]:
        return discover_layers(
            self.model, self.samples.split(2)[0], granularity=granularity, head_params=self.head
        )

    def double(self) -> Case:
        """The same numbers in float64, for the oracle."""
        self.model.double()
        return self


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 3, 3, bias=False), nn.BatchNorm2d(3)
        self.conv2, self.bn2 = nn.Conv2d(3, 4, 2), nn.BatchNorm2d(4)
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.bn1(self.conv1(x)))
        x = torch.nn.functional.gelu(self.bn2(self.conv2(x)))
        return self.fc(x.mean((2, 3)))


class Attention(nn.Module):
    """nn.MultiheadAttention on embedded tokens, called by keyword with a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 3)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.embed(ids)
        x = x + self.attention(x, x, x, key_padding_mask=mask == 0, need_weights=False)[0]
        return self.head((self.norm(x) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))


class TiedLanguageModel(nn.Module):
    """The output layer's weight is the embedding's."""

    def __init__(self, *, tie: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.mix = nn.GRUCell(4, 4)
        self.out = nn.Linear(4, 7)
        if tie:
            self.out.weight = self.embed.weight

    def forward(self, input_ids: Tensor) -> Tensor:
        state, states = input_ids.new_zeros(len(input_ids), 4).to(self.embed.weight), []
        for t in range(input_ids.shape[1]):
            state = self.mix(self.embed(input_ids[:, t]), state)
            states.append(state)
        return self.out(torch.stack(states, 1))


def conv(n: int = 23) -> Case:
    torch.manual_seed(1)
    model = ConvNet()
    for _ in range(3):
        model(2 + 3 * torch.randn(16, 1, 6, 6))  # running statistics that are not trivial
    spread(model)
    x, y = torch.randn(n, 1, 6, 6), torch.randint(3, (n,))
    return Case(model, Samples(x, y), Objective(), ("fc.weight", "fc.bias"))


def vit(n: int = 19) -> Case:
    torch.manual_seed(2)
    model = timm.create_model(
        "vit_tiny_patch16_224",
        img_size=8,
        patch_size=4,
        in_chans=1,
        embed_dim=6,
        depth=2,
        num_heads=2,
        mlp_ratio=1,
        num_classes=3,
    )
    spread(model)
    x, y = torch.randn(n, 1, 8, 8), torch.randint(3, (n,))
    return Case(model, Samples(x, y), Objective(), ("head.weight", "head.bias"))


def attention(n: int = 21) -> Case:
    torch.manual_seed(3)
    model = spread(Attention())
    ids, lengths = torch.randint(9, (n, 5)), torch.randint(1, 6, (n,))
    mask = (torch.arange(5) < lengths[:, None]).long()
    y = torch.randint(3, (n,))
    inputs = {"ids": ids, "mask": mask}
    return Case(model, Samples(inputs, y), Objective(), ("head.weight", "head.bias"))


def next_token(n: int = 17) -> Case:
    torch.manual_seed(4)
    model = spread(TiedLanguageModel())
    ids = torch.randint(7, (n, 6))
    targets = ids.masked_fill(torch.rand(n, 6) < 0.4, -100)
    targets[3] = -100  # a sample without a scored token
    return Case(model, Samples({"input_ids": ids}, targets), Objective("next-token"))


def masked(n: int = 18) -> Case:
    torch.manual_seed(5)
    config = transformers.BertConfig(
        vocab_size=9,
        hidden_size=4,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=5,
        max_position_embeddings=6,
        type_vocab_size=1,
    )
    model = transformers.BertForMaskedLM(config)
    spread(model)
    ids = torch.randint(1, 9, (n, 5))
    mask = (torch.arange(5) < torch.randint(2, 6, (n, 1))).long()
    targets = ids.masked_fill((torch.rand(n, 5) < 0.5) | (mask == 0), -100)
    inputs = {"input_ids": ids, "attention_mask": mask}
    return Case(model, Samples(inputs, targets), Objective("masked-lm"))


def regression(n: int = 20) -> Case:
    torch.manual_seed(6)
    model = spread(nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2)))
    return Case(model, Samples(torch.randn(n, 5), torch.randn(n, 2)), Objective("mse"))


def one_hot(n: int = 20) -> Case:
    case = regression(n)
    targets = torch.randint(2, (n,))
    return Case(case.model, Samples(case.samples.inputs, targets), Objective("mse"))


CASES: dict[str, Callable[..., Case]] = {
    "conv": conv,
    "vit": vit,
    "attention": attention,
    "next_token": next_token,
    "masked": masked,
    "regression": regression,
    "one_hot": one_hot,
}


def case_of(name: str) -> Case:
    """A case in float64, its data included."""
    case = CASES[name]().double()
    inputs, targets = case.samples.inputs, case.samples.targets
    if isinstance(inputs, Tensor):
        inputs = inputs.double()
    if targets.is_floating_point():
        targets = targets.double()
    case.samples = Samples(inputs, targets)
    return case


def spread(model: nn.Module) -> nn.Module:
    """Weights of size that makes every part matter, also norms and biases."""
    for p in model.parameters():
        p.data += 0.3 * torch.randn_like(p)
    return model


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Everything that a caller could notice is the same after as before."""

    def state() -> list[tuple]:
        return [
            *(("mode", n, m.training) for n, m in model.named_modules()),
            *(("hooks", n, _hooks(m)) for n, m in model.named_modules()),
            *(
                ("param", n, id(p), p.data_ptr(), p.dtype, p.device, p.requires_grad, id(p.grad))
                for n, p in model.named_parameters(remove_duplicate=False)
            ),
            *(("buffer", n, id(b), b.data_ptr(), b.dtype) for n, b in model.named_buffers()),
            *(
                ("checkpointing", n, getattr(m, "grad_checkpointing", None))
                for n, m in model.named_modules()
            ),
            *(
                ("checkpointing", n, getattr(m, "gradient_checkpointing", None))
                for n, m in model.named_modules()
            ),
        ]

    before = state()
    values = {n: t.clone() for n, t in model.state_dict().items()}
    grads = {n: None if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}
    yield
    assert state() == before
    for n, t in model.state_dict().items():
        assert torch.equal(t, values[n]), n
    for n, p in model.named_parameters():
        assert (p.grad is None) == (grads[n] is None)
        assert grads[n] is None or torch.equal(p.grad, grads[n])


def _hooks(m: nn.Module) -> int:
    kinds = (m._forward_hooks, m._forward_pre_hooks, m._backward_hooks, m._backward_pre_hooks)
    return sum(len(k) for k in kinds)


def used(model: nn.Module, x: Tensor) -> nn.Module:
    """In the midst of training: modes mixed, some frozen, gradients there, hooks registered."""
    model.train()
    model(x).square().mean().backward()
    children = list(model.children())
    children[1].eval()
    for i, p in enumerate(model.parameters()):
        p.requires_grad_(i % 3 != 0)
    children[0].register_forward_hook(lambda *_: None)
    return model
