"""The comparison of quadratures on a network so small that its dense Hessian says who is right."""

from __future__ import annotations

import importlib
import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

HERE = Path(__file__).parent


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(HERE)
    module = importlib.import_module("spectrum_peers")
    monkeypatch.setitem(module.NETWORKS, "tiny", ("tiny", lambda cache: tiny()))
    return module


@pytest.fixture(autouse=True)
def threads() -> Any:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def tiny() -> tuple[nn.Module, Tensor, Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
        return model.eval(), torch.randn(192, 5), torch.randint(3, (192,))


def dense() -> Tensor:
    model, inputs, labels = tiny()
    model.double()
    parameters = dict(model.named_parameters())
    sizes = [p.numel() for p in parameters.values()]

    def loss(flat: Tensor) -> Tensor:
        parts = zip(parameters.items(), flat.split(sizes), strict=True)
        named = {n: v.view_as(p) for (n, p), v in parts}
        return F.cross_entropy(torch.func.functional_call(model, named, inputs.double()), labels)

    flat = torch.cat([p.detach().reshape(-1) for p in parameters.values()])
    return torch.autograd.functional.hessian(loss, flat)


def test_all_methods_against_the_dense_hessian(
    bench: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, readme = tmp_path / "out.json", tmp_path / "README.md"
    readme.write_text("before\n<!-- spectrum-peers:begin -->\nold\n<!-- spectrum-peers:end -->\n")
    arguments = ["--networks", "tiny", "--threads", "1", "--cache", str(tmp_path / "cache")]
    arguments += ["--probes", "3", "--steps", "12", "--seeds", "2"]
    assert bench.main([*arguments, "--json", str(out), "--markdown", str(readme)]) == 0
    network = json.loads(out.read_text())["networks"]["tiny"]
    values = torch.linalg.eigvalsh(dense())
    truth = network["reference"]
    assert truth["exact"]
    assert truth["lambda_max"] == pytest.approx(float(values[-1]), rel=1e-6)
    assert truth["rank"] == int((values.abs() > 0.01 * values[-1]).sum())
    installed = {n for n, peer in bench.PEERS.items() if importlib.util.find_spec(peer.module)}
    assert set(network["methods"]) == {"clcurv", *installed}
    assert "pyhessian" in installed  # a requirement; the others come with the bench extra
    for name, score in network["methods"].items():
        assert len(score["cost_gradients"]) == (2 if name == "clcurv" else 1)
        assert all(cost > 0 for cost in score["cost_gradients"] + score["cost_flops"])
        assert max(score["lambda_errors"]) < 1e-4
        assert all(0 < rank <= len(values) for rank in score["ranks"])
    assert network["ratio"] > 0
    text = readme.read_text()
    assert "old" not in text
    assert "| clcurv" in text
    assert str(tmp_path) not in text
    assert text.split("begin -->\n")[1].split("<!--")[0].strip() == capsys.readouterr().out.strip()


@pytest.mark.parametrize("name", ["pyhessian", "hessian-eigenthings", "curvlinops"])
def test_a_peers_product_is_the_dense_hessian(bench: ModuleType, name: str) -> None:
    if importlib.util.find_spec(bench.PEERS[name].module) is None:
        pytest.skip("the bench extra is not installed")
    model, inputs, labels = tiny()
    problem = bench.Problem(model, bench.Samples(inputs, labels))
    vector = torch.randn(39, generator=torch.Generator().manual_seed(0))
    with bench.counted_forwards(problem.model) as count:
        peer = bench.PEERS[name].setup(problem)
        count[0] = 0
        product = peer.product(vector)
        assert count[0] == 3  # one forward pass a batch, or the FLOPs would be miscounted
    if name == "pyhessian":
        product = torch.cat([p.reshape(-1) for p in product[1]])
    assert torch.allclose(product.double(), dense() @ vector.double(), atol=1e-5)


def test_an_answer_that_does_not_come_is_wrong(bench: ModuleType) -> None:
    score = bench.Score()
    bench.judge(score, [], bench.Truth(1.0, 5.0, 5.0, 5.0, True), 10)
    assert score.lambda_errors == [float("inf")]
    assert score.inside == [False]


def test_ghosts_are_counted(bench: ModuleType) -> None:
    assert bench.ghosts(np.array([1.0, 1.0 - 1e-6, 0.7, 0.1, 0.1]), 1.0) == 1
    assert bench.ghosts(np.array([0.7, 1.0, 0.9]), 1.0) == 0


def test_chance_is_allowed_for(bench: ModuleType) -> None:
    """Three of ten eigenvalues beyond ε, seen by two probes as 0.25 and 0.4."""
    probes = [
        (np.array([0.0, 1.0]), np.array([0.75, 0.25])),
        (np.array([0.0, 1.0]), np.array([0.6, 0.4])),
    ]
    for rank, inside in ((3.0, True), (9.0, False)):
        score = bench.Score()
        bench.judge(score, probes, bench.Truth(1.0, rank, rank, rank, True), 10)
        assert score.ranks == [pytest.approx(3.25)]
        assert score.inside == [inside]


@pytest.mark.parametrize("bad", [("--networks", "alexnet"), ("--methods", "guessing")])
def test_what_cannot_be_run_is_refused_first(bench: ModuleType, bad: tuple[str, str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        bench.main(list(bad))
    assert stopped.value.code == 2
