from __future__ import annotations

import argparse
import hashlib
import json
import pathlib
from collections import OrderedDict, defaultdict, deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hostile import EXIT_CODE, HOSTILE, tiny_state
from safetensors.torch import save_file

from clcurv.errors import ClcurvError, InputError, ResourceError, UnsafeFileError
from clcurv.inputs.architecture import load_model
from clcurv.inputs.checkpoint import load_weights

# What the one line must say.
SAYS = {
    "wrong_path": "does not exist",
    "empty": "0 bytes",
    "empty_folder": "empty folder",
    "lfs_pointer": "git-lfs pointer",
    "html": "error page",
    "json_file": "JSON",
    "truncated_zip": "cut short",
    "truncated_legacy": "cut short",
    "torchscript": "TorchScript",
    "exported_program": ".pt2",
    "pickled_module": "pickled Python objects (torch.nn.modules",
    "pickled_module_legacy": "pickled Python objects (torch.nn.modules",
    "pickle_payload": "would run code when opened (posix.mkdir)",
    "plain_pickle": "plain pickle",
    "npz": ".npz",
    "gzipped": "gzip",
    "tarred": "tar archive",
    "zipped_folder": "zipped model folder",
    "zip_bomb": "compressed entry",
    "safetensors_lie": "header claims 10,000,000",
    "safetensors_short": "safetensors",
    "stride_zero": "[1099511627776]",
    "overlapping": "[90, 10]",
    "legacy_claim": "claims 8,000,000,000 bytes",
    "shard_outside": "points outside its folder: '../secret.safetensors'",
    "shard_absolute": "points outside its folder",
    "shard_missing": "lacks the shard",
    "peft_folder": "org/base",
    "dcp_folder": "distributed checkpoint",
    "remote_code": "never run",
    "quantised": "quantised",
    "not_a_state_dict": "list",
    "nan_weights": "conv1.0.weight",
    "long_name": "cannot be opened",
    "pipe": "neither a regular file nor a folder",
    "onnx_file": "ONNX",
    "gguf_file": "GGUF",
    "h5_file": "HDF5",
    "msgpack_file": "Flax",
    "safetensors_twice": "names 'w' twice",
    "safetensors_overlap": "no valid safetensors",
    "safetensors_hole": "no valid safetensors",
    "safetensors_overflow": "no valid safetensors",
    "safetensors_deep": "header is no JSON",
    "safetensors_header": "header of 90.0 MB",
    "storage_beyond_file": "claims 8,000,000,000 bytes for storage '0', which has 16",
    "storage_beyond_old_file": "claims 8,000,000,000 bytes of tensors",
    "view_beyond_storage": "view beyond the end",
    "tensor_beyond_storage": "shape [2, 2] in a storage of 16 bytes",
    "negative_storage": "a storage of -4 elements",
    "lost_storage": "lacks the storage '0'",
    "deep_tuples": "nests tuples",
    "laughing_dicts": "mappings inside each other",
    "own_parent": "no named tensors",
    "two_names": "names 'w' twice",
    "index_twice": "one name twice",
    "codec_bomb": "a codec",
    "buffer_bomb": "a buffer of a length of its own choice",
    "numpy_bomb": "cannot be read safely",
    "numpy_type_lie": "cannot be read safely",
    "tensor_constructor": "torch.FloatTensor",
    "endless_lists": "more objects than weights need",
    "copies": "more objects than weights need",
    "payload_by_protocol_4": "protocol that cannot be read safely",
    "two_folders": "2 folders",
    "two_cases": "two entries of one name",
    "huge_directory": "table of contents of 40.0 MB",
    "shard_incomplete": "lacks 1 of the 2 tensors",
    "shard_with_payload": "would run code when opened (posix.mkdir)",
    "pipe_for_config": "not a regular file",
    "deep_config": "no readable JSON",
    "flax_folder": "Flax",
    "deepspeed_folder": "DeepSpeed",
    "quantised_by_torch": "quantised",
    "quantised_linear_layers": "quantised",
    "quantised_to_4_bits": "quantised",
    "sparse": "torch.sparse_coo",
    "without_values": "on meta",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_bad_files_get_one_line_and_run_nothing(name: str, tmp_path: Path) -> None:
    path = HOSTILE[name](tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ClcurvError) as caught:
        load_model(path)
    message = str(caught.value)
    assert SAYS[name] in message
    assert "\n" not in message
    assert caught.value.exit_code == EXIT_CODE[name]
    assert not (tmp_path / "canary").exists()
    assert sorted(tmp_path.rglob("*")) == before


def test_the_payload_is_live_when_trusted(tmp_path: Path) -> None:
    """The canary would appear if the file were opened without care."""
    torch.load(HOSTILE["pickle_payload"](tmp_path), weights_only=False)
    assert (tmp_path / "canary").exists()


def test_pickled_module_hint_holds_the_two_lines(tmp_path: Path) -> None:
    with pytest.raises(UnsafeFileError) as caught:
        load_weights(HOSTILE["pickled_module"](tmp_path))
    assert caught.value.hint is not None
    assert "torch.load(FILE, weights_only=False)" in caught.value.hint
    assert "torch.save(model.state_dict()" in caught.value.hint


@pytest.mark.parametrize("legacy", [False, True])
def test_bare_state_dict_of_either_format_under_any_name(tmp_path: Path, legacy: bool) -> None:
    state = tiny_state()
    path = tmp_path / "weights.safetensors"  # a lie: content counts
    torch.save(state, path, _use_new_zipfile_serialization=not legacy)
    weights = load_weights(path)
    assert (weights.format, weights.key, weights.prefix) == ("torch", None, "")
    assert weights.tensors.keys() == state.keys()
    assert all(torch.equal(weights.tensors[name], state[name]) for name in state)


def test_safetensors_under_another_name(tmp_path: Path) -> None:
    state = tiny_state()
    save_file(state, tmp_path / "model.bin", metadata={"format": "pt"})
    weights = load_weights(tmp_path / "model.bin")
    assert weights.format == "safetensors"
    assert weights.tensors.keys() == state.keys()


def timm_training_file(state: dict[str, torch.Tensor]) -> dict[str, Any]:
    arguments = argparse.Namespace(
        model="test_resnet", lr=0.1, output=pathlib.Path("out/x"), seen=np.float32(0.5)
    )
    return {
        "epoch": 3,
        "arch": "test_resnet",
        "state_dict": state,
        "optimizer": {"state": {0: {"exp_avg": torch.zeros(3)}}, "param_groups": []},
        "args": arguments,
        "version": 2,
        "metric": np.float64(71.5),
        "history": defaultdict(list, {"loss": [1.0, 0.5]}),
        "recent": deque([1, 2], maxlen=4),
        "curve": np.arange(3),
        "best": torch.tensor(7.5),
    }


def test_timm_training_file(tmp_path: Path) -> None:
    torch.save(timm_training_file(tiny_state()), tmp_path / "last.pth.tar")
    weights = load_weights(tmp_path / "last.pth.tar")
    assert weights.key == "state_dict"
    assert weights.metadata == {
        "epoch": 3,
        "arch": "test_resnet",
        "args": {"model": "test_resnet", "lr": 0.1, "output": "out/x", "seen": 0.5},
        "version": 2,
        "metric": 71.5,
        "history": {"loss": [1.0, 0.5]},
        "recent": [1, 2],
        "curve": [0, 1, 2],
        "best": 7.5,
    }
    json.dumps(weights.metadata)  # plain values only


def test_numpy_one_names_are_read_as_well(tmp_path: Path) -> None:
    """numpy before 2 calls its modules numpy.core."""
    path = tmp_path / "old.pt"
    # The older format has no checksums, so its bytes can be edited.
    torch.save(
        {"w": torch.ones(2), "metric": np.float64(1.5)}, path, _use_new_zipfile_serialization=False
    )
    path.write_bytes(
        path.read_bytes().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")
    )
    assert load_weights(path).metadata == {"metric": 1.5}


@pytest.mark.parametrize(
    "prefix",
    ["module.", "_orig_mod.", "model.", "module._orig_mod.", "module.base_encoder.", "net.model."],
)
def test_prefixes_are_stripped_in_a_loop(tmp_path: Path, prefix: str) -> None:
    state = tiny_state()
    torch.save({f"{prefix}{name}": t for name, t in state.items()}, tmp_path / "x.pt")
    weights = load_weights(tmp_path / "x.pt")
    assert weights.prefix == prefix
    assert weights.tensors.keys() == state.keys()
    assert weights.original_names["fc.weight"] == f"{prefix}fc.weight"


def test_prefixes_only_go_from_the_front(tmp_path: Path) -> None:
    torch.save({"a.module.w": torch.ones(2), "b.model.w": torch.ones(2)}, tmp_path / "x.pt")
    assert set(load_weights(tmp_path / "x.pt").tensors) == {"a.module.w", "b.model.w"}


def test_a_prefix_whose_removal_collides_stays(tmp_path: Path) -> None:
    state = {"model.w": torch.ones(8), "w": torch.zeros(1)}
    torch.save(state, tmp_path / "x.pt")
    assert set(load_weights(tmp_path / "x.pt").tensors) == set(state)


def test_lightning(tmp_path: Path) -> None:
    state = tiny_state()
    mixed = {f"model.{name}": t for name, t in state.items()}
    mixed |= {f"teacher.{name}": t for name, t in state.items()}
    mixed |= {"train_acc.correct": torch.zeros(1), "criterion.weight": torch.ones(3)}
    content = {
        "epoch": 1,
        "pytorch-lightning_version": "2.5.0",
        "state_dict": mixed,
        "hyper_parameters": {"lr": 0.1, "root": pathlib.Path("data")},
        "optimizer_states": [{"state": {}}],
        "callbacks": {"ckpt": {"best": torch.tensor(1.0)}},
    }
    torch.save(content, tmp_path / "last.ckpt")
    weights = load_weights(tmp_path / "last.ckpt")
    assert (weights.key, weights.prefix) == ("state_dict", "model.")
    assert torch.equal(weights.tensors["conv1.0.weight"], state["conv1.0.weight"])
    assert len(weights.aside) == len(state)
    assert weights.metadata["hyper_parameters"] == {"lr": 0.1, "root": "data"}


def test_ema_is_not_preferred_and_key_chooses(tmp_path: Path) -> None:
    plain, ema = tiny_state(), tiny_state()
    torch.save({"state_dict_ema": ema, "state_dict": plain}, tmp_path / "x.pt")
    weights = load_weights(tmp_path / "x.pt")
    assert weights.key == "state_dict"
    assert torch.equal(weights.tensors["conv1.0.weight"], plain["conv1.0.weight"])
    assert any("state_dict_ema" in note and "--key" in note for note in weights.notes)
    chosen = load_weights(tmp_path / "x.pt", key="state_dict_ema")
    assert torch.equal(chosen.tensors["conv1.0.weight"], ema["conv1.0.weight"])
    with pytest.raises(InputError, match="nothing") as caught:
        load_weights(tmp_path / "x.pt", key="nothing")
    assert "state_dict_ema" in str(caught.value.hint)


def test_only_ema_is_used_and_said(tmp_path: Path) -> None:
    torch.save({"model_ema": tiny_state(), "epoch": 1}, tmp_path / "x.pt")
    weights = load_weights(tmp_path / "x.pt")
    assert weights.key == "model_ema"
    assert any("only averaged" in note for note in weights.notes)


def test_dino_takes_the_teacher_and_says_so(tmp_path: Path) -> None:
    student = {f"module.backbone.{n}": t for n, t in tiny_state().items()}
    teacher = {f"backbone.{n}": t for n, t in tiny_state().items()}
    teacher["head.mlp.0.weight"] = torch.ones(2, 2)
    torch.save({"student": student, "teacher": teacher, "args": None}, tmp_path / "x.pt")
    weights = load_weights(tmp_path / "x.pt")
    assert (weights.key, weights.prefix) == ("teacher", "backbone.")
    assert any("student" in note for note in weights.notes)
    assert load_weights(tmp_path / "x.pt", key="student").prefix == "module.backbone."


def test_moco_takes_the_base_encoder(tmp_path: Path) -> None:
    state = {f"module.base_encoder.{n}": t for n, t in tiny_state().items()}
    state |= {f"module.momentum_encoder.{n}": t for n, t in tiny_state().items()}
    torch.save({"state_dict": state, "arch": "test_resnet"}, tmp_path / "x.pt")
    weights = load_weights(tmp_path / "x.pt")
    assert weights.prefix == "module.base_encoder."
    assert {"conv1.0.weight", "fc.weight"} <= weights.tensors.keys()


def test_several_unknown_state_dicts_ask_for_a_key(tmp_path: Path) -> None:
    torch.save({"left": tiny_state(), "right": tiny_state()}, tmp_path / "x.pt")
    with pytest.raises(InputError, match="left, right") as caught:
        load_weights(tmp_path / "x.pt")
    assert "--key" in str(caught.value.hint)
    assert load_weights(tmp_path / "x.pt", key="right").key == "right"


def test_shards_are_put_together(tmp_path: Path) -> None:
    state = tiny_state()
    names = list(state)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, some in parts.items():
        save_file({name: state[name] for name in some}, tmp_path / file)
    weight_map = {name: file for file, some in parts.items() for name in some}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "test_resnet"}))
    weights = load_weights(tmp_path)
    assert weights.format == "timm-folder"
    assert weights.tensors.keys() == state.keys()


def test_digest_is_of_the_content(tmp_path: Path) -> None:
    state = OrderedDict(b=torch.arange(3.0), a=torch.ones(2, dtype=torch.int64))
    torch.save(state, tmp_path / "one.pt")
    save_file(dict(reversed(state.items())), tmp_path / "two.safetensors")
    expected = hashlib.sha256()
    for name, dtype, shape in (("a", "torch.int64", "[2]"), ("b", "torch.float32", "[3]")):
        expected.update(f"{name}\0{dtype}\0{shape}\0".encode())
        expected.update(state[name].numpy().tobytes())
    one, two = load_weights(tmp_path / "one.pt"), load_weights(tmp_path / "two.safetensors")
    assert one.digest == two.digest == expected.hexdigest()
    torch.save({"a": state["a"], "b": state["b"] + 1}, tmp_path / "one.pt")
    assert load_weights(tmp_path / "one.pt").digest != one.digest


def test_low_precision_is_kept_as_stored(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(3, dtype=torch.bfloat16)}, tmp_path / "x.pt")
    assert load_weights(tmp_path / "x.pt").tensors["w"].dtype == torch.bfloat16


def test_memory_limit(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(10_000)}, tmp_path / "x.pt")
    with pytest.raises(ResourceError, match="limit"):
        load_weights(tmp_path / "x.pt", max_bytes=1000)


def test_views_of_one_storage_count_in_full(tmp_path: Path) -> None:
    base = torch.ones(1000)
    torch.save({f"v{i}": base[:] for i in range(100)}, tmp_path / "x.pt")
    with pytest.raises(ResourceError):
        load_weights(tmp_path / "x.pt", max_bytes=100_000)


def test_any_damage_is_one_clean_error(tmp_path: Path) -> None:
    """Flip bytes all over a torch file: it loads or is refused, never anything else."""
    path = tmp_path / "x.pt"
    for legacy in (False, True):
        torch.save(
            {"w": torch.ones(4), "n": "text"}, path, _use_new_zipfile_serialization=not legacy
        )
        content = path.read_bytes()
        for position in range(0, min(len(content), 900), 3):
            damaged = bytearray(content)
            damaged[position] ^= 0xFF
            path.write_bytes(damaged)
            message = ""
            try:
                load_weights(path)
            except InputError as error:
                message = str(error)
            assert "\n" not in message


def test_an_archive_that_torch_would_read_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was looked at must be what is opened."""

    class Other:
        def __init__(self, stream: object) -> None:
            pass

        def get_record(self, name: str) -> bytes:
            return b"another pickle"

    torch.save(tiny_state(), tmp_path / "x.pt")
    load_weights(tmp_path / "x.pt")
    monkeypatch.setattr(torch._C, "PyTorchFileReader", Other)
    with pytest.raises(UnsafeFileError, match="different programs read differently"):
        load_weights(tmp_path / "x.pt")
