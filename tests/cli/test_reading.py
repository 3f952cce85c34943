"""--max-bytes, --unsafe-pickle and --online, for every command that reads a checkpoint."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hostile import HOSTILE, TINY, tiny_state
from program import BERT, RESNET, VIT, program
from torch import nn

from clcurv.inputs.formats import open_source

COMMANDS = {
    "kappa": (),
    "inspect": (),
    "relimp": ("--past", "old", "--current", "new"),
    "spectrum": ("--stream", "permuted:2", *VIT[1:]),
}


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every attempt to reach another machine fails, and is kept."""
    tried: list[Any] = []

    def refuse(*arguments: Any, **options: Any) -> None:
        tried.append(arguments)
        raise OSError("no network in tests")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return tried


@pytest.fixture
def pickled(tmp_path: Path) -> Path:
    """A whole network in a file, and rows for it."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))
    torch.save(net, tmp_path / "whole.pt")
    x = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32)
    np.savez(tmp_path / "rows.npz", x=x, y=np.arange(12) % 3)
    return tmp_path / "whole.pt"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_limits_the_bytes(command: str, tmp_path: Path) -> None:
    torch.save({"arch": TINY, "state_dict": tiny_state()}, tmp_path / "x.pt")
    ran = program(command, tmp_path / "x.pt", *COMMANDS[command], "--max-bytes", "1KB", "-q")
    assert ran.code == 5
    assert "the limit is 1,000 bytes" in ran.err
    assert "--max-bytes" in ran.err
    ran = program(command, tmp_path / "x.pt", *COMMANDS[command], "--max-bytes", "much")
    assert ran.code == 2
    assert "--max-bytes much: not a size" in ran.err


def test_a_size_counts_where_it_suffices(tmp_path: Path) -> None:
    torch.save({"arch": TINY, "state_dict": tiny_state()}, tmp_path / "x.pt")
    assert program("inspect", tmp_path / "x.pt", "--max-bytes", "10MB", "-q").code == 0


def test_unsafe_pickle_is_loud_and_recorded(pickled: Path) -> None:
    data = pickled.with_name("rows.npz")
    refused = program("kappa", pickled, "--data", data, "-q")
    assert refused.code == 3
    assert "--unsafe-pickle" in refused.err
    ran = program("kappa", pickled, "--data", data, "--unsafe-pickle", "-q", "--json")
    assert ran.code == 0, ran.err
    assert "--unsafe-pickle: code inside the checkpoint will run" in ran.err  # --quiet or not
    model = ran.report["model"]
    assert (model["arch"], model["arch_source"]) == ("Sequential", "pickle")
    assert any(note.startswith("UNSAFE: whole.pt was unpickled") for note in model["notes"])


def test_only_the_command_line_can_ask_for_unsafe_pickle(
    pickled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLCURV_UNSAFE_PICKLE", "1")
    assert program("inspect", pickled, "-q").code == 3
    monkeypatch.chdir(tmp_path)
    for key in ("unsafe-pickle", "online"):
        (tmp_path / "pyproject.toml").write_text(f"[tool.clcurv]\n{key} = true\n")
        ran = program("inspect", pickled, "-q")
        assert ran.code == 2
        assert f"{key} cannot be set in a file" in ran.err


def test_unsafe_pickle_runs_what_it_is_told_to(tmp_path: Path) -> None:
    """That the flag does what it says, and that without it nothing runs."""
    path = HOSTILE["plain_pickle"](tmp_path)
    assert program("inspect", path, "-q").code == 3
    assert not (tmp_path / "canary").exists()
    assert program("inspect", path, "-q", "--unsafe-pickle").code == 3  # no weights in it
    assert (tmp_path / "canary").exists()


def test_no_command_touches_the_network(no_network: list[Any]) -> None:
    for words in (RESNET, BERT, ("hf:nobody/nothing",), ("nobody/nothing",)):
        program("inspect", *words, "-q")
    assert no_network == []


def test_reading_a_table_touches_no_network_from_python_either(
    no_network: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    # As they are where nobody set HF_HUB_OFFLINE before the libraries were imported.
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_UPDATE_DOWNLOAD_COUNTS", True)
    rows = "a,b,label\n" + "".join(f"{i},{i * i % 7},{i % 2}\n" for i in range(8))
    (tmp_path / "x.csv").write_text(rows)
    with open_source(
        tmp_path / "x.csv", split=None, columns=None, modality="array", needs_labels=True
    ) as source:
        assert source.length == 8
    assert no_network == []
    assert datasets.config.HF_UPDATE_DOWNLOAD_COUNTS


def test_a_model_of_the_hub_needs_the_flag(no_network: list[Any]) -> None:
    ran = program("kappa", "hf:nobody/nothing", "-q")
    assert ran.code == 3
    assert "hf:nobody/nothing is not in the local cache" in ran.err
    assert "hint: --online" in ran.err
    ran = program("kappa", "nobody/nothing", "-q")
    assert ran.code == 3
    assert "--online hf:nobody/nothing" in ran.err


def test_online_without_a_network_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = program("kappa", "hf:nobody/nothing", "-q", "--online")
    assert ran.code == 3
    assert "hf:nobody/nothing cannot be downloaded" in ran.err
    ran = program("kappa", "hf:nobody/nothing", "-q", "--online", "--unsafe-pickle")
    assert ran.code == 2
    assert "--unsafe-pickle is for local files" in ran.err


class Hub:
    """Stands for the Hub: what it is asked for, and what it gives."""

    def __init__(self, folder: Path, sizes: dict[str, int]) -> None:
        self.folder, self.sizes = folder, sizes
        self.asked: list[Any] = []

    def model_info(self, name: str, *, revision: str | None, files_metadata: bool) -> Any:
        files = [SimpleNamespace(rfilename=n, size=size) for n, size in self.sizes.items()]
        return SimpleNamespace(sha="abc123", siblings=files)

    def snapshot_download(self, name: str, **options: Any) -> str:
        self.asked.append((name, options))
        return str(self.folder)


def hub(monkeypatch: pytest.MonkeyPatch, folder: Path, sizes: dict[str, int]) -> Hub:
    import huggingface_hub

    made = Hub(folder, sizes)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: made)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", made.snapshot_download)
    return made


def test_what_is_fetched_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save(tiny_state(), tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text(json.dumps({"architecture": TINY}))
    small = {"config.json": 30, "tokenizer.json": 10, "modeling.py": 5, "README.md": 5}
    weights = {"model.safetensors": 900, "pytorch_model.bin": 950, "onnx/model.bin": 999}
    made = hub(monkeypatch, tmp_path, {**small, **weights})
    ran = program("inspect", "hf:org/net@v2", "--online", "--max-bytes", "2MB", "-q", "--json")
    assert ran.code == 0, ran.err
    ((name, options),) = made.asked
    assert (name, options["revision"]) == ("org/net", "abc123")
    assert options["allow_patterns"] == ["config.json", "model.safetensors", "tokenizer.json"]
    assert ran.report["architecture"]["name"] == f"timm:{TINY}"


def test_what_is_too_large_is_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = hub(monkeypatch, tmp_path, {"model.safetensors": 3_000_000})
    ran = program("inspect", "hf:org/net", "--online", "--max-bytes", "1MB", "-q")
    assert ran.code == 5
    made.sizes = {"config.json": 10}
    ran = program("inspect", "hf:org/net", "--online", "-q")
    assert ran.code == 3
    assert "holds no safetensors or torch weights" in ran.err
    assert made.asked == []
