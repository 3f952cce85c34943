"""A model lent and given back as it was, whatever happens in between."""

from __future__ import annotations

import warnings
from contextlib import nullcontext, suppress

import pytest
import timm
import torch
import transformers
from curvature_cases import Attention, ConvNet, spread, unchanged, used
from torch import Tensor, nn

from clcurv.curvature.numerics import borrowed, exact_numerics


class Restless(nn.Module):
    """Writes to its buffers in every forward pass, also in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.bn = nn.Linear(3, 2), nn.BatchNorm1d(2)
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("last", torch.zeros(2))
        self.register_buffer("absent", None)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        out = self.bn(self.fc(x))
        self.last = out.detach()[0]
        return out


def conv() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(4, 1, 6, 6)
    return used(ConvNet(), x), x


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("failure", [None, ValueError, KeyboardInterrupt])
def test_comes_back_as_it_was(dtype: torch.dtype, failure: type[BaseException] | None) -> None:
    model, x = conv()
    with unchanged(model):
        expected = nullcontext() if failure is None else pytest.raises(failure)
        with expected, borrowed(model, [model.fc.weight], dtype=dtype) as lent:
            lent(x.to(dtype)).sum().backward()
            if failure is not None:
                raise failure("in between")


def test_is_lent_in_eval_mode_with_the_parameters_asked_for() -> None:
    model, x = conv()
    with borrowed(model, [model.fc.weight, model.conv1.weight], dtype=torch.float64):
        assert not any(m.training for m in model.modules())
        required = {n for n, p in model.named_parameters() if p.requires_grad}
        assert required == {"fc.weight", "conv1.weight"}
        assert all(p.grad is None for p in model.parameters())
        assert model(x.double()).dtype == torch.float64


def test_buffers_written_or_replaced_are_put_back() -> None:
    model = Restless()
    for dtype in (torch.float32, torch.float64):
        with unchanged(model), borrowed(model, [model.fc.weight], dtype=dtype):
            model(torch.randn(3, 3).to(dtype))
            assert model.calls.item() == 1


def test_nan_in_a_buffer_stays() -> None:
    model = Restless()
    model.last.fill_(float("nan"))
    with borrowed(model, [model.fc.weight]):
        model(torch.randn(3, 3))
    assert model.last.isnan().all()


def test_half_precision_comes_back_bit_for_bit() -> None:
    model = nn.Linear(64, 64).to(torch.bfloat16)
    with unchanged(model), borrowed(model, list(model.parameters()), dtype=torch.float32):
        assert model(torch.zeros(1, 64)).dtype == torch.float32
        model.weight.data += 1  # whatever happens to the copy


def test_tied_parameters_stay_tied() -> None:
    model = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)})
    model["b"].weight = model["a"].weight
    with unchanged(model), borrowed(model, [model["a"].weight], dtype=torch.float64):
        assert model["b"].weight is model["a"].weight
    assert model["b"].weight is model["a"].weight


def test_activation_checkpointing_is_off_meanwhile() -> None:
    vit = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1, num_classes=2)
    vit.set_grad_checkpointing(True)
    config = transformers.BertConfig(
        vocab_size=9, hidden_size=4, num_hidden_layers=1, num_attention_heads=1
    )
    bert = transformers.BertModel(config)
    for m in bert.modules():
        if hasattr(m, "gradient_checkpointing"):
            m.gradient_checkpointing = True
    for model in (vit, bert):
        with unchanged(model), borrowed(model, list(model.parameters())):
            on = [
                getattr(m, name, False)
                for m in model.modules()
                for name in ("grad_checkpointing", "gradient_checkpointing")
            ]
            assert not any(on)


class TestExactNumerics:
    @pytest.mark.parametrize("batch_first", [True, False])
    def test_fused_attention_has_a_second_derivative_inside(self, batch_first: bool) -> None:
        model = nn.TransformerEncoderLayer(4, 2, 8, batch_first=batch_first, dropout=0.0).eval()
        x = torch.randn(3, 5, 4)
        with exact_numerics(model):
            loss = model(x).pow(2).sum()
            params = list(model.parameters())
            first = torch.autograd.grad(loss, params, create_graph=True)
            second = torch.autograd.grad(first[0].sum(), params, allow_unused=True)
        assert second[0] is not None
        assert second[0].isfinite().all()

    def test_masked_attention_too(self) -> None:
        torch.manual_seed(0)
        model = spread(Attention()).eval()
        mask = torch.tensor([[1, 1, 0, 0, 0], [1, 1, 1, 1, 1]])
        with exact_numerics(model):
            out = model(torch.randint(9, (2, 5)), mask).square().sum()
            weight = model.attention.in_proj_weight
            (g,) = torch.autograd.grad(out, weight, create_graph=True)
            (h,) = torch.autograd.grad(g.square().sum(), weight)
        assert h.isfinite().all()

    def test_tf32_is_off_inside_and_back_outside(self) -> None:
        backends = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)
        before = [b.fp32_precision for b in backends]
        try:
            for b in backends:
                b.fp32_precision = "tf32"
            with suppress(ValueError), exact_numerics(nn.Linear(2, 2)):
                assert [b.fp32_precision for b in backends] == ["ieee", "ieee"]
                raise ValueError("in between")
            assert [b.fp32_precision for b in backends] == ["tf32", "tf32"]
        finally:
            for b, precision in zip(backends, before, strict=True):
                b.fp32_precision = precision

    def test_cudnn_is_off_for_recurrent_networks_only(self) -> None:
        before = torch.backends.cudnn.enabled
        with exact_numerics(nn.Sequential(nn.LSTM(2, 2))):
            assert not torch.backends.cudnn.enabled
        with exact_numerics(nn.Linear(2, 2)):
            assert torch.backends.cudnn.enabled == before
        assert torch.backends.cudnn.enabled == before

    def test_attention_kernels_are_back_outside(self) -> None:
        before = torch.backends.cuda.flash_sdp_enabled()
        with exact_numerics(nn.Linear(2, 2)):
            assert not torch.backends.cuda.flash_sdp_enabled()
            assert torch.backends.cuda.math_sdp_enabled()
        assert torch.backends.cuda.flash_sdp_enabled() == before

    def test_says_nothing(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with exact_numerics(nn.Linear(2, 2)):
                pass


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_moves_to_a_gpu_and_back() -> None:
    model, x = conv()
    with unchanged(model), borrowed(model, [model.fc.weight], device="cuda"):
        assert model(x.cuda()).is_cuda
