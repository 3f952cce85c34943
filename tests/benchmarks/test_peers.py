"""The comparison on a network so small that its dense Hessian blocks say who is right."""

from __future__ import annotations

import importlib
import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

HERE = Path(__file__).parent


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(HERE)
    module = importlib.import_module("peers")
    monkeypatch.setitem(module.NETWORKS, "tiny", ("tiny", lambda cache: tiny()))
    return module


def tiny() -> tuple[nn.Module, Tensor, Tensor]:
    """Confidently wrong, so that the larger end of its first block is λ_min = -1.2 λ_max."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = nn.Sequential(
            nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Tanh(), nn.Flatten(), nn.Linear(48, 3)
        )
        model[0].weight.data.mul_(5)
        model[4].weight.data.mul_(16)
        return model.eval(), torch.randn(192, 1, 6, 6), torch.randint(3, (192,))


def dense_ends() -> dict[str, tuple[float, float]]:
    """Weight name -> (λ_max, λ_min) of its dense float64 block."""
    model, images, labels = tiny()
    model.double()
    found = {}
    for name in ("0.weight", "4.weight"):

        def loss(weight: Tensor, name: str = name) -> Tensor:
            output = torch.func.functional_call(model, {name: weight}, (images.double(),))
            return F.cross_entropy(output, labels)

        weight = dict(model.named_parameters())[name].detach()
        block = torch.autograd.functional.hessian(loss, weight)
        values = torch.linalg.eigvalsh(block.reshape(weight.numel(), -1))
        found[name] = (float(values[-1]), float(values[0]))
    return found


def run(peers: ModuleType, folder: Path, *more: str) -> dict[str, Any]:
    out = folder / "out.json"
    arguments = ["--networks", "tiny", "--threads", "1", "--cache", str(folder / "cache")]
    assert peers.main([*arguments, "--json", str(out), *more]) == 0
    return json.loads(out.read_text())


@pytest.fixture(autouse=True)
def threads() -> Any:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_all_methods_against_the_dense_blocks(
    peers: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- peers:begin -->\nold\n<!-- peers:end -->\nafter\n")
    found = run(peers, tmp_path, "--seeds", "2", "--markdown", str(readme))
    network = found["networks"]["tiny"]

    ends = dense_ends()
    assert -ends["0.weight"][1] > 1.1 * ends["0.weight"][0]
    for name, (high, low) in ends.items():
        assert network["reference"][name]["s"] == pytest.approx(high, rel=1e-4)
        assert network["reference"][name]["lambda_min"] == pytest.approx(low, abs=1e-3 * high)
    ours = network["methods"]["clcurv"]
    assert ours["worst_error"] < 1e-2
    assert ours["layers_off"] == 0
    assert set(ours["errors"]) == set(ends)
    assert all(len(errors) == 2 for errors in ours["errors"].values())
    # Its own account leaves out the forward pass over the data and the trial on a few samples.
    account = network["clcurv_own_account"][0]
    assert account < ours["cost_flops"][0] < account + 2
    for name, score in network["methods"].items():
        assert len(score["cost_gradients"]) == (2 if name == "clcurv" else 1)
        assert all(cost > 0 for cost in score["cost_gradients"] + score["cost_flops"])
        assert score["worst_error"] < 0.1

    text = readme.read_text()
    assert text.startswith("before\n<!-- peers:begin -->\n")
    assert text.endswith("<!-- peers:end -->\nafter\n")
    assert "old" not in text
    assert "| clcurv" in text
    assert "--seeds 2" in text
    assert str(tmp_path) not in text
    assert text.split("<!-- peers:begin -->\n")[1].split("<!-- peers:end")[0].strip() == (
        capsys.readouterr().out.strip()
    )


def test_a_single_seed_of_a_single_method(peers: ModuleType, tmp_path: Path) -> None:
    found = run(peers, tmp_path, "--methods", "clcurv", "--seeds", "1")
    assert found["networks"]["tiny"]["methods"]["clcurv"]["worst_error"] < 1e-2


def test_arpack_is_asked_where_the_starts_disagree(
    peers: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("curvlinops")
    reference = importlib.import_module("peer_reference")
    monkeypatch.setattr(reference, "AGREED", -1.0)  # they always do
    found = reference.reference(problem_of(peers), tmp_path, lambda *_: None)
    for name, (high, _) in dense_ends().items():
        assert found[name].arpack == pytest.approx(high, rel=1e-4)
    monkeypatch.setattr(reference, "lockstep_extremes", None)  # from the cache this time
    assert reference.reference(problem_of(peers), tmp_path, lambda *_: None) == found


def test_a_reference_is_kept_for_its_network_alone(peers: ModuleType, tmp_path: Path) -> None:
    reference = importlib.import_module("peer_reference")
    problem = problem_of(peers)
    first = reference.digest(problem)
    next(problem.model.parameters()).data.view(-1)[0] += 1e-3
    assert reference.digest(problem) != first


def test_power_iteration_is_compared_with_the_dominant_end(peers: ModuleType) -> None:
    truth = importlib.import_module("peer_reference").Truth(s=1.0, lambda_min=-2.0, spread=0.0)
    assert truth.error(-2.0, dominant=True) == 0.0
    assert truth.error(1.0) == 0.0
    assert truth.error(0.9) == pytest.approx(0.1)
    assert truth.error(float("nan")) == float("inf")


@pytest.mark.parametrize("name", ["pyhessian", "hessian-eigenthings", "curvlinops"])
def test_a_peers_product_is_the_dense_block(peers: ModuleType, name: str) -> None:
    methods = importlib.import_module("peer_methods")
    if importlib.util.find_spec(methods.PEERS[name].module) is None:
        pytest.skip("the bench extra is not installed")
    problem = problem_of(peers)
    weight = problem.weights["4.weight"]
    with methods.only(problem.model, weight), methods.counted_forwards(problem.model) as count:
        block = methods.PEERS[name].setup(problem, "4.weight")
        count[0] = 0
        flops = peers.flops_of(lambda: block.product(torch.ones_like(weight)))
        assert count[0] == 3  # one forward pass a batch, or the FLOPs would be miscounted
        assert flops > 0
    assert all(p.requires_grad and p.grad is None for p in problem.model.parameters())


def test_peers_are_spread_over_the_runs_of_clcurv(peers: ModuleType) -> None:
    tasks = peers.plan(["a", "b", "c", "d"], ["clcurv", "pyhessian", "curvlinops"], 2, 1)
    assert [t.method for t in tasks if t.layer is None] == ["clcurv"] * 2
    assert [t.layer for t in tasks if t.method == "curvlinops"] == ["a", "b", "c", "d"]
    kinds = "".join("c" if t.layer is None else "p" for t in tasks)
    assert kinds == "ppppcppppc"


@pytest.mark.parametrize(
    "bad",
    [("--networks", "alexnet"), ("--methods", "guessing"), ("--markdown", "empty.md")],
)
def test_what_cannot_be_run_is_refused_first(
    peers: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    bad: tuple[str, str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.md").write_text("no marks\n")
    with pytest.raises(SystemExit) as stopped:
        peers.main(list(bad))
    assert stopped.value.code == 2
    assert bad[1] in capsys.readouterr().err


def problem_of(peers: ModuleType) -> Any:
    model, images, labels = tiny()
    return peers.Problem(model, peers.Samples(images, labels))
