"""The comparison of importances on a network so small that every method runs in no time."""

from __future__ import annotations

import importlib
import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

HERE = Path(__file__).parent
BACKPACK = importlib.util.find_spec("backpack") is not None


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(HERE)
    module = importlib.import_module("importance_peers")
    monkeypatch.setitem(module.NETWORKS, "tiny", ("tiny", lambda cache: tiny()))

    def here(network: str, method: str, chosen: Any) -> dict[str, Any]:
        return json.loads(json.dumps(module.child(network, method, chosen.cache, 1)))

    monkeypatch.setattr(module, "measured", here)  # no process of its own
    return module


@pytest.fixture(autouse=True)
def threads() -> Any:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def tiny() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(inplace=True), nn.Linear(4, 3))
        return model.eval(), torch.randn(40, 5), torch.randint(3, (40,))


@pytest.mark.filterwarnings("ignore")  # BackPACK's hooks
def test_all_methods_find_the_same_importances(
    bench: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, readme = tmp_path / "out.json", tmp_path / "README.md"
    readme.write_text("a\n<!-- importance-peers:begin -->\nold\n<!-- importance-peers:end -->\n")
    arguments = ["--networks", "tiny", "--rounds", "2", "--cache", str(tmp_path / "cache")]
    assert bench.main([*arguments, "--json", str(out), "--markdown", str(readme)]) == 0
    methods = json.loads(out.read_text())["networks"]["tiny"]
    assert set(methods) == {m for m in bench.METHODS if BACKPACK or "backpack" not in m}
    for score in methods.values():
        assert score["failure"] is None
        assert len(score["seconds"]) == 2
        assert score["error"] < 1e-4
    text = readme.read_text()
    assert "old" not in text
    assert "| clcurv" in text
    assert str(tmp_path) not in text
    assert capsys.readouterr().out.strip() in text


def test_a_process_that_dies_stops_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(HERE)
    bench = importlib.import_module("importance_peers")
    chosen = bench.options(["--networks", "mlp", "--methods", "loop", "--cache", str(tmp_path)])
    (tmp_path / "importance_methods.py").write_text("import no_such_module\n")
    script = tmp_path / "importance_peers.py"
    script.write_text(Path(bench.__file__).read_text())
    monkeypatch.setattr(bench, "__file__", str(script))
    with pytest.raises(SystemExit, match=r"mlp, loop: exit code 1: .*no_such_module"):
        bench.measured("mlp", "loop", chosen)


def test_what_a_method_cannot_take_is_told(bench: ModuleType, tmp_path: Path) -> None:
    chosen = bench.options(["--networks", "tiny", "--methods", "loop", "--cache", str(tmp_path)])
    score = bench.Score(failure="NotImplementedError: no such layer")
    text = bench.report({"tiny": {"loop": score}}, chosen)
    assert "loop cannot take it: NotImplementedError: no such layer." in text


@pytest.mark.parametrize("bad", [("--networks", "alexnet"), ("--methods", "guessing")])
def test_what_cannot_be_run_is_refused_first(bench: ModuleType, bad: tuple[str, str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        bench.main(list(bad))
    assert stopped.value.code == 2
