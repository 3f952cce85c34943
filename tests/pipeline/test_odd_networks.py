"""Networks and data that are unusual but honest: measured right, or refused in one line."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from program import program
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import clcurv
from clcurv.errors import (
    ArchitectureError,
    ClcurvError,
    DataError,
    MismatchError,
    NumericalError,
    UsageError,
)
from clcurv.inputs.dataset import load_samples
from clcurv.inputs.live import wrap_module

N = 24


def labels(n: int = N) -> Tensor:
    return torch.arange(n) % 3


def vectors() -> tuple[Tensor, Tensor]:
    return torch.randn(N, 8, generator=torch.Generator().manual_seed(1)), labels()


def words() -> tuple[Tensor, Tensor]:
    return torch.randint(0, 50, (N, 4), generator=torch.Generator().manual_seed(1)), labels()


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.l, self.h = nn.Linear(8, 8), nn.Linear(8, 3)

    def middle(self, x: Tensor) -> Tensor:
        return self.l(x).tanh()

    def forward(self, x: Tensor) -> Any:
        return self.h(self.middle(x))


class Turned(Base):
    """Turns pairs by angles that a complex buffer holds, as rotary positions do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("turn", torch.polar(torch.ones(4), torch.arange(4.0)))

    def middle(self, x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(super().middle(x).reshape(-1, 4, 2))
        return torch.view_as_real(pairs * self.turn).flatten(1)


class TurnedByHand(Base):
    """The same without complex numbers."""

    def middle(self, x: Tensor) -> Tensor:
        a, b = super().middle(x).reshape(-1, 4, 2).unbind(2)
        cos, sin = torch.arange(4.0).cos().to(a), torch.arange(4.0).sin().to(a)
        return torch.stack([a * cos - b * sin, a * sin + b * cos], 2).flatten(1)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_complex_buffers_keep_their_imaginary_part(dtype: str) -> None:
    one, other = (
        clcurv.kappa(model, data=vectors(), dtype=dtype).document
        for model in (Turned(), TurnedByHand())
    )
    assert [g.s for g in one.groups] == pytest.approx([g.s for g in other.groups], rel=1e-3)
    assert one.data.mean_loss == pytest.approx(other.data.mean_loss, rel=1e-5)


def test_complex_buffers_keep_it_in_training_too() -> None:
    one, other = (
        clcurv.relimp(model, past=vectors(), current=vectors(), lr=1e-2, epochs=2)
        for model in (Turned(), TurnedByHand())
    )
    assert one.current is not None
    assert other.current is not None
    for name, tensor in one.current.tensors.items():
        torch.testing.assert_close(tensor, other.current.tensors[name], rtol=1e-3, atol=1e-6)


class Complex(Base):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(8, 8, dtype=torch.cfloat))

    def middle(self, x: Tensor) -> Tensor:
        return (super().middle(x).to(self.w.dtype) @ self.w).abs()


class Lazy(Base):
    def __init__(self) -> None:
        super().__init__()
        self.l = nn.LazyLinear(8)


class Truth(Base):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) > 0


class Loss(Base):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).sum()


class Random(Base):
    def middle(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(super().middle(x))


REFUSED: list[tuple[Callable[[], nn.Module], type[ClcurvError], str]] = [
    (Complex, ArchitectureError, "w is complex"),
    (Lazy, ArchitectureError, "no shape yet"),
    (lambda: Base().to("meta"), ArchitectureError, "device meta"),
    (Truth, MismatchError, "bool"),
    (Loss, MismatchError, r"of shape \(\)"),
    (Random, NumericalError, "not deterministic"),
]


@pytest.mark.parametrize(("make", "kind", "says"), REFUSED)
@pytest.mark.parametrize("command", [clcurv.kappa, clcurv.relimp])
def test_what_cannot_be_measured(
    command: Callable[..., Any], make: Callable[[], nn.Module], kind: type[ClcurvError], says: str
) -> None:
    data = "data" if command is clcurv.kappa else "past"
    with pytest.raises(kind, match=says):
        command(make(), **{data: vectors()})


class Statistics(Base):
    def __init__(self) -> None:
        super().__init__()
        self.n = nn.BatchNorm1d(8, track_running_stats=False)

    def middle(self, x: Tensor) -> Tensor:
        return self.n(super().middle(x))


@pytest.mark.parametrize("size", [None, 4])
def test_outputs_that_depend_on_the_batch_are_refused(size: int | None) -> None:
    with pytest.raises(MismatchError, match="depends on the others in its batch"):
        clcurv.kappa(Statistics(), data=vectors(), batch_size=size)
    usual = Statistics()
    usual.n = nn.BatchNorm1d(8)
    clcurv.kappa(usual, data=vectors(), batch_size=size)


class Words(nn.Module):
    def __init__(self, **more: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.e, self.h = nn.Embedding(50, 6, **more), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.h(self.e(x).mean(1).tanh())


def test_sparse_gradients_are_measured_as_dense_ones() -> None:
    model = Words(sparse=True)
    one, other = (clcurv.kappa(m, data=words()).document for m in (model, Words()))
    assert [g.s for g in one.groups] == pytest.approx([g.s for g in other.groups], rel=1e-5)
    ours, theirs = (
        clcurv.relimp(m, past=words(), current=words(), epochs=1) for m in (model, Words())
    )
    for name, tensor in ours.past.tensors.items():
        torch.testing.assert_close(tensor, theirs.past.tensors[name])
    assert model.e.sparse


class Counting(Base):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x)


@pytest.mark.parametrize("command", [clcurv.kappa, clcurv.relimp])
@pytest.mark.parametrize(
    ("model", "data"), [(Words(max_norm=1.0), words()), (Counting(), vectors())]
)
def test_what_the_forward_pass_writes_to_is_put_back(
    command: Callable[..., Any], model: nn.Module, data: tuple[Tensor, Tensor]
) -> None:
    before = copy.deepcopy(model.state_dict())
    command(model, **{"data" if command is clcurv.kappa else "past": data})
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_parametrised_weights_are_measured() -> None:
    model = parametrizations.spectral_norm(nn.Linear(8, 3)).eval()
    x, y = vectors()
    report = clcurv.kappa(model, data=(x, y), layers="tensor", dtype="float64", tol=1e-6)
    xs = x.double()
    params = {n: p.detach().double() for n, p in model.named_parameters()}
    model.double()

    def loss(bias: Tensor) -> Tensor:
        out = torch.func.functional_call(model, {**params, "bias": bias}, xs)
        return nn.functional.cross_entropy(out, y)

    dense = torch.autograd.functional.hessian(loss, params["bias"])
    found = next(g.s for g in report.document.groups if g.name == "bias")
    assert found == pytest.approx(float(torch.linalg.eigvalsh(dense)[-1]), rel=1e-6)


def test_parameters_without_elements_are_left_out() -> None:
    model = Base()
    model.extra = nn.Parameter(torch.zeros(0))
    document = clcurv.kappa(model, data=vectors()).document
    assert [g.name for g in document.groups] == ["l", "h"]
    assert any("extra" in text for text in document.warnings)


def test_a_token_that_the_model_does_not_know() -> None:
    x, y = words()
    x[-3:] = 77
    with pytest.raises(MismatchError, match="cannot be run on the data"):
        clcurv.kappa(Words(), data=(x, y))


@pytest.mark.parametrize("given", [None, 3, [Base()]])
def test_what_is_no_checkpoint(given: Any) -> None:
    with pytest.raises(UsageError, match="not the path of a checkpoint"):
        clcurv.kappa(given)


def test_inspect_says_that_it_reads_files() -> None:
    with pytest.raises(UsageError, match="a Base is not the path") as caught:
        clcurv.inspect(Base())  # type: ignore[arg-type]
    assert "torch.save" in str(caught.value.hint)


class Broken(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return N

    def __getitem__(self, row: int) -> Any:
        if row == 20:
            raise OSError("image file is truncated\nby 7 bytes")
        return vectors()[0][row], row % 3


def dying() -> Iterator[Any]:
    yield vectors()
    raise RuntimeError("worker died")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (Broken(), r"sample 20 cannot be read \(OSError: image file is truncated\)"),
        (dying(), r"batch 1 cannot be read \(RuntimeError: worker died\)"),
        (((torch.zeros(N, 4), torch.zeros(N, 5)), labels()), "a tuple of 2 tensors"),
    ],
)
def test_data_that_fail_are_the_datas_fault(data: Any, says: str) -> None:
    with pytest.raises(DataError, match=says):
        clcurv.kappa(Base(), data=data)


def test_complex_arrays_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=vectors()[0].numpy().astype("c8"), y=labels().numpy())
    with pytest.raises(DataError, match="complex numbers"):
        load_samples(tmp_path / "a.npz", wrap_module(Base()), n=8)


EXITS = """
import sys
import torch
from torch import nn

def build():
    return nn.Linear(8, 3)

def stops():
    sys.exit(0)

class Stops(nn.Linear):
    def forward(self, x):
        sys.exit(0)

def later():
    return Stops(8, 3)

def loss(output, targets):
    sys.exit()
"""


@pytest.mark.parametrize("more", [("stops",), ("later",), ("build", "--loss", "loss")])
def test_code_that_exits_is_no_success(tmp_path: Path, more: tuple[str, ...]) -> None:
    code = tmp_path / "mine.py"
    code.write_text(EXITS)
    torch.save(nn.Linear(8, 3).state_dict(), tmp_path / "a.pt")
    np.savez(tmp_path / "a.npz", x=vectors()[0].numpy(), y=labels().numpy())
    arch, *rest = more
    told = [f"{code}:{w}" if w == "loss" else w for w in rest]
    data = ("--data", tmp_path / "a.npz", "--arch", f"{code}:{arch}", "--trust-code")
    ran = program("kappa", tmp_path / "a.pt", *data, *told, "-o", tmp_path / "r.json", "--quiet")
    assert ran.code == 3
    assert ran.out == ""
    assert ran.err.startswith("clcurv: error: code that was run called sys.exit(")
    assert not (tmp_path / "r.json").exists()


class Whole(nn.Module):
    """A frozen table of bytes as a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 3)
        self.table = nn.Parameter(torch.zeros(3, dtype=torch.int8), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) + self.table


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(3))


@pytest.mark.parametrize(
    ("make", "says"),
    [("Whole", "parameter table of type torch.int8 has no gradient"), ("lazy", "a lazy module")],
)
def test_parameters_without_a_gradient_or_a_shape(tmp_path: Path, make: str, says: str) -> None:
    torch.save(
        {
            "a.weight": torch.zeros(3, 8),
            "a.bias": torch.zeros(3),
            "table": torch.zeros(3, dtype=torch.int8),
        },
        tmp_path / "w.pt",
    )
    for run in (clcurv.kappa, clcurv.relimp):
        given = (
            {"data": vectors()}
            if run is clcurv.kappa
            else {"past": vectors(), "current": vectors()}
        )
        with pytest.raises(ArchitectureError, match=says):
            run(tmp_path / "w.pt", arch=f"{__name__}:{make}", trust_code=True, **given)


def test_an_output_without_gradient_in_spectrum() -> None:
    class Detached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 5), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x).relu()).detach()

    with pytest.raises(NumericalError, match="does not depend on any of the parameters"):
        clcurv.spectrum(Detached(), stream="label-shuffle:2", data=vectors(), samples=16)
