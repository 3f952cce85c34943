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

import hostile_pickles as by_hand
import hostile_safetensors as claims
import numpy as np
import timm
import torch
from safetensors.torch import save_file
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


def index_twice(folder: Path) -> Path:
    path = _sharded(folder, "twice", {"w": "a.safetensors"})
    index = path / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"w": "a.safetensors", "w": "b.safetensors"}}')
    return path


def shard_incomplete(folder: Path) -> Path:
    """The index promises a tensor that its shard does not hold."""
    path = _sharded(folder, "incomplete", {"w": "a.safetensors", "b": "a.safetensors"})
    save_file({"w": torch.zeros(2, 2)}, path / "a.safetensors")
    return path


def shard_with_payload(folder: Path) -> Path:
    path = folder / "bin_folder"
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"architectures": ["BertModel"]}))
    torch.save({"w": torch.zeros(2), "x": Payload(folder / "canary")}, path / "pytorch_model.bin")
    return path


def pipe(folder: Path) -> Path:
    """Reading it would wait for ever."""
    path = folder / "pipe.pt"
    os.mkfifo(path)
    return path


def pipe_for_config(folder: Path) -> Path:
    path = folder / "waiting"
    path.mkdir()
    os.mkfifo(path / "config.json")
    save_file({"w": torch.zeros(2)}, path / "model.safetensors")
    return path


def deep_config(folder: Path) -> Path:
    path = folder / "deep_config"
    path.mkdir()
    (path / "config.json").write_text('{"a":' * 200_000)
    save_file({"w": torch.zeros(2)}, path / "model.safetensors")
    return path


def long_name(folder: Path) -> Path:
    return folder / ("x" * 5000)


def flax_folder(folder: Path) -> Path:
    path = folder / "flax"
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"architectures": ["BertModel"]}))
    (path / "flax_model.msgpack").write_bytes(b"\x81\xa6params\x80")
    return path


def deepspeed_folder(folder: Path) -> Path:
    path = folder / "deepspeed"
    (path / "global_step10").mkdir(parents=True)
    (path / "latest").write_text("global_step10")
    return path


def _beginning(name: str, content: bytes) -> Callable[[Path], Path]:
    def build(folder: Path) -> Path:
        path = folder / name
        path.write_bytes(content)
        return path

    build.__name__ = Path(name).suffix.removeprefix(".") + "_file"
    return build


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


def quantised_by_torch(folder: Path) -> Path:
    path = folder / "qint8.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        weight = torch.quantize_per_tensor(torch.ones(4, 4), 0.1, 0, torch.qint8)
    torch.save({"layer.weight": weight}, path)
    return path


def quantised_linear_layers(folder: Path) -> Path:
    """What is left of a model by torch's dynamic quantisation are scales and zero points."""
    path = folder / "dynamic.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 4)))
    torch.save({"epoch": 1, "model": module.state_dict()}, path)
    return path


def quantised_to_4_bits(folder: Path) -> Path:
    """As GPTQ stores a layer."""
    path = folder / "gptq.safetensors"
    layer = {"qweight": torch.zeros(2, 4, dtype=torch.int32), "scales": torch.zeros(1, 4)}
    save_file({f"model.layers.0.mlp.{name}": t for name, t in layer.items()}, path)
    return path


def sparse(folder: Path) -> Path:
    path = folder / "sparse.pt"
    torch.save({"layer.weight": torch.eye(4).to_sparse()}, path)
    return path


def without_values(folder: Path) -> Path:
    path = folder / "meta.pt"
    torch.save({"layer.weight": torch.zeros(4, 4, device="meta")}, path)
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
        *(wrong_path, long_name, empty, empty_folder, pipe, lfs_pointer, html, json_file),
        *(truncated_zip, truncated_legacy, torchscript, exported_program),
        *(pickled_module, pickled_module_legacy, pickle_payload, plain_pickle),
        *(npz, gzipped, tarred, zipped_folder, zip_bomb),
        _beginning("model.onnx", b"\x08\x08\x12\x07pytorch\x1a\x052.1.0"),
        _beginning("model.gguf", b"GGUF\x03\0\0\0"),
        _beginning("model.h5", b"\x89HDF\r\n\x1a\n"),
        _beginning("model.msgpack", b"\x81\xa6params\x80"),
        *(
            claims.safetensors_lie,
            claims.safetensors_short,
            claims.safetensors_twice,
            claims.safetensors_overlap,
        ),
        *(
            claims.safetensors_hole,
            claims.safetensors_overflow,
            claims.safetensors_deep,
            claims.safetensors_header,
        ),
        *(stride_zero, overlapping, legacy_claim),
        *(by_hand.storage_beyond_file, by_hand.storage_beyond_old_file),
        *(by_hand.view_beyond_storage, by_hand.tensor_beyond_storage, by_hand.negative_storage),
        *(by_hand.lost_storage, by_hand.deep_tuples, by_hand.laughing_dicts, by_hand.own_parent),
        by_hand.two_names,
        *(by_hand.codec_bomb, by_hand.buffer_bomb, by_hand.numpy_bomb, by_hand.numpy_type_lie),
        *(by_hand.tensor_constructor, by_hand.endless_lists, by_hand.copies),
        *(by_hand.payload_by_protocol_4, by_hand.two_folders, by_hand.two_cases),
        by_hand.huge_directory,
        *(
            shard_outside,
            shard_absolute,
            shard_missing,
            index_twice,
            shard_incomplete,
            shard_with_payload,
        ),
        *(pipe_for_config, deep_config, flax_folder, deepspeed_folder),
        *(peft_folder, dcp_folder, remote_code, not_a_state_dict, nan_weights),
        *(quantised, quantised_by_torch, quantised_linear_layers, quantised_to_4_bits),
        *(sparse, without_values),
    )
}

# Exit code of the command line: 3 input refused, 4 numerical.
EXIT_CODE: dict[str, int] = {name: 4 if name == "nan_weights" else 3 for name in HOSTILE}
