"""Builds, at test time, the bad checkpoints that people and attackers hand in.

Nothing here carries a live payload: what would run creates a folder named ``canary``
beside the file, and tests check that it never appears.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import struct
import tarfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from torch import nn

TINY = "test_resnet"  # timm's smallest residual network


class Payload:
    """Pickles into a call that creates `canary`."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.canary),)


def tiny_state() -> dict[str, torch.Tensor]:
    """State dict of a small timm model."""
    return dict(timm.create_model(TINY, num_classes=3).state_dict())


def wrong_path(folder: Path) -> Path:
    return folder / "nothing_here.pt"


def empty(folder: Path) -> Path:
    path = folder / "empty.pt"
    path.touch()
    return path


def empty_folder(folder: Path) -> Path:
    path = folder / "empty_folder"
    path.mkdir()
    return path


def lfs_pointer(folder: Path) -> Path:
    path = folder / "model.safetensors"
    path.write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935\nsize 346284714\n"
    )
    return path


def html(folder: Path) -> Path:
    path = folder / "model.pth"
    path.write_text("\n<!DOCTYPE html><html><body>404 Not Found</body></html>")
    return path


def json_file(folder: Path) -> Path:
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": {}}))
    return path


def truncated_zip(folder: Path) -> Path:
    path = folder / "cut.pt"
    torch.save(tiny_state(), path)
    path.write_bytes(path.read_bytes()[:-2000])
    return path


def truncated_legacy(folder: Path) -> Path:
    path = folder / "cut_legacy.pt"
    torch.save(tiny_state(), path, _use_new_zipfile_serialization=False)
    path.write_bytes(path.read_bytes()[:-2000])
    return path


def torchscript(folder: Path) -> Path:
    path = folder / "scripted.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(nn.Linear(2, 2)), str(path))
    return path


def exported_program(folder: Path) -> Path:
    path = folder / "exported.pt2"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(nn.Linear(2, 2), (torch.zeros(1, 2),)), path)
    return path


def pickled_module(folder: Path) -> Path:
    path = folder / "module.pt"
    torch.save(nn.Sequential(nn.Linear(2, 2)), path)
    return path


def pickled_module_legacy(folder: Path) -> Path:
    path = folder / "module_legacy.pt"
    torch.save(nn.Linear(2, 2), path, _use_new_zipfile_serialization=False)
    return path


def pickle_payload(folder: Path) -> Path:
    path = folder / "payload.pt"
    torch.save({"state_dict": tiny_state(), "extra": Payload(folder / "canary")}, path)
    return path


def plain_pickle(folder: Path) -> Path:
    path = folder / "plain.pkl"
    path.write_bytes(pickle.dumps({"weights": Payload(folder / "canary")}))
    return path


def npz(folder: Path) -> Path:
    path = folder / "weights.npz"
    np.savez(path, x=np.zeros((4, 3)), y=np.zeros(4))
    return path


def gzipped(folder: Path) -> Path:
    path = folder / "model.pt.gz"
    path.write_bytes(gzip.compress(b"weights" * 10))
    return path


def tarred(folder: Path) -> Path:
    path = folder / "model.tar"
    with tarfile.open(path, "w") as archive:
        info = tarfile.TarInfo("model.pt")
        info.size = 4
        archive.addfile(info, io.BytesIO(b"data"))
    return path


def zipped_folder(folder: Path) -> Path:
    path = folder / "model.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/config.json", "{}")
        archive.writestr("model/model.safetensors", b"")
    return path


def zip_bomb(folder: Path) -> Path:
    """A torch file whose storage is deflated: 1 kB that unpacks to 1 MB."""
    plain, path = folder / "plain.pt", folder / "bomb.pt"
    torch.save({"weight": torch.zeros(512, 512)}, plain)
    with zipfile.ZipFile(plain) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    plain.unlink()
    return path


def safetensors_lie(folder: Path) -> Path:
    """A header longer than the file."""
    path = folder / "lie.safetensors"
    path.write_bytes(struct.pack("<Q", 10_000_000) + b"{}")
    return path


def safetensors_short(folder: Path) -> Path:
    """A header that claims more data than there is."""
    path = folder / "short.safetensors"
    header = json.dumps({"w": {"dtype": "F32", "shape": [1000], "data_offsets": [0, 4000]}})
    path.write_bytes(struct.pack("<Q", len(header)) + header.encode() + b"\0" * 16)
    return path


def stride_zero(folder: Path) -> Path:
    """2**40 elements in 1.5 kB."""
    path = folder / "stride.pt"
    torch.save({"weight": torch.zeros(1).expand(2**40)}, path)
    return path


def overlapping(folder: Path) -> Path:
    path = folder / "overlap.pt"
    torch.save({"weight": torch.zeros(100).as_strided((90, 10), (1, 1))}, path)
    return path


def legacy_claim(folder: Path) -> Path:
    """The old format, whose pickle claims more elements than the file has bytes."""
    path = folder / "claim.pt"
    torch.save({"weight": torch.zeros(70_000)}, path, _use_new_zipfile_serialization=False)
    content = path.read_bytes()
    claim = content.replace(struct.pack("<i", 70_000), struct.pack("<i", 2_000_000_000))
    path.write_bytes(claim)
    return path


def _sharded(folder: Path, name: str, weight_map: dict[str, str]) -> Path:
    path = folder / name
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"architectures": ["BertModel"]}))
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return path


def shard_outside(folder: Path) -> Path:
    return _sharded(folder, "outside", {"w": "../secret.safetensors"})


def shard_absolute(folder: Path) -> Path:
    return _sharded(folder, "absolute", {"w": "/etc/hostname"})


def shard_missing(folder: Path) -> Path:
    return _sharded(folder, "missing", {"w": "model-00001-of-00002.safetensors"})


def peft_folder(folder: Path) -> Path:
    path = folder / "adapter"
    path.mkdir()
    (path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "org/base"}))
    (path / "adapter_model.safetensors").write_bytes(b"")
    return path


def dcp_folder(folder: Path) -> Path:
    path = folder / "distributed"
    path.mkdir()
    (path / ".metadata").write_bytes(pickle.dumps(Payload(folder / "canary")))
    (path / "__0_0.distcp").write_bytes(b"")
    return path


def remote_code(folder: Path) -> Path:
    path = folder / "remote"
    path.mkdir()
    config = {
        "architectures": ["EvilModel"],
        "model_type": "evil",
        "auto_map": {"AutoModel": "evil.EvilModel"},
    }
    (path / "config.json").write_text(json.dumps(config))
    canary = str(folder / "canary")
    (path / "evil.py").write_text(f"import os; os.mkdir({canary!r})\n")
    torch.save({"weight": torch.zeros(2, 2)}, path / "pytorch_model.bin")
    return path


def quantised(folder: Path) -> Path:
    path = folder / "int8.pt"
    torch.save({"layer.weight": torch.zeros(4, 4, dtype=torch.int8)}, path)
    return path


def not_a_state_dict(folder: Path) -> Path:
    path = folder / "list.pt"
    torch.save([1, 2, 3], path)
    return path


def nan_weights(folder: Path) -> Path:
    path = folder / "nan.pt"
    state = tiny_state()
    state["conv1.0.weight"] = torch.full_like(state["conv1.0.weight"], float("nan"))
    torch.save({"arch": TINY, "state_dict": state}, path)
    return path


# Name -> builder: a folder in, the path of the bad checkpoint out.
HOSTILE: dict[str, Callable[[Path], Path]] = {
    build.__name__: build
    for build in (
        *(wrong_path, empty, empty_folder, lfs_pointer, html, json_file),
        *(truncated_zip, truncated_legacy, torchscript, exported_program),
        *(pickled_module, pickled_module_legacy, pickle_payload, plain_pickle),
        *(npz, gzipped, tarred, zipped_folder, zip_bomb),
        *(safetensors_lie, safetensors_short, stride_zero, overlapping, legacy_claim),
        *(shard_outside, shard_absolute, shard_missing),
        *(peft_folder, dcp_folder, remote_code, quantised, not_a_state_dict, nan_weights),
    )
}

# Exit code of the command line: 3 input refused, 4 numerical.
EXIT_CODE: dict[str, int] = {name: 4 if name == "nan_weights" else 3 for name in HOSTILE}
