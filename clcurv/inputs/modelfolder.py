"""A model folder -> which files hold its weights and what its config says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clcurv.errors import CorruptFileError, NotWeightsError, UnsafeFileError

_WEIGHTS = ("model.safetensors", "pytorch_model.safetensors", "pytorch_model.bin")
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_LOOSE = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")


@dataclass(frozen=True)
class Folder:
    """A folder that holds one model.

    Attributes:
        path: The folder.
        format: ``timm-folder`` | ``hf-folder`` | ``torch`` | ``safetensors`` (no config).
        files: The weight file, or all its shards.
        config: Parsed config.json, None if there is none.
        notes: Sentences for the report.
    """

    path: Path
    format: str
    files: list[Path]
    config: Mapping[str, Any] | None
    notes: tuple[str, ...] = ()


def describe(path: Path) -> Folder:
    """Find the weights of a timm or Hugging Face folder; refuse other folders, naming them.

    Raises:
        NotWeightsError: Adapters, distributed checkpoints, quantised models, no weights.
        CorruptFileError: A shard is missing, or a JSON file cannot be read.
        UnsafeFileError: The shard index points outside the folder.
    """
    entries = {entry.name for entry in path.iterdir()}
    if not entries:
        raise NotWeightsError(f"{path} is an empty folder", hint="give a file or a model folder")
    _refuse_others(path, entries)
    config = read_json(path / "config.json") if "config.json" in entries else None
    if config is not None and "quantization_config" in config:
        raise NotWeightsError(
            f"{path} holds a quantised model, which has no gradients",
            hint="give the float model it was made from",
        )
    files, notes = _weight_files(path, entries)
    if config is None:
        kind = "safetensors" if files[0].name.endswith(".safetensors") else "torch"
        notes = (*notes, f"{path.name} has no config.json; read as bare weights")
    elif "architecture" in config:
        kind = "timm-folder"
    elif "architectures" in config or "model_type" in config:
        kind = "hf-folder"
    else:
        kind = "safetensors" if files[0].name.endswith(".safetensors") else "torch"
        notes = (*notes, "config.json names neither a timm nor a Hugging Face model")
    return Folder(path, kind, files, config, notes)


def _refuse_others(path: Path, entries: set[str]) -> None:
    if "adapter_config.json" in entries and "config.json" not in entries:
        base = read_json(path / "adapter_config.json").get("base_model_name_or_path")
        raise NotWeightsError(
            f"{path} is an adapter (PEFT) folder; the model it adapts "
            f"({base or 'not named in it'}) is missing",
            hint="merge them first: model.merge_and_unload().save_pretrained(DIR)",
        )
    if ".metadata" in entries and any(name.endswith(".distcp") for name in entries):
        raise NotWeightsError(
            f"{path} is a distributed checkpoint (DCP), which is read through pickles",
            hint="convert it: python -m torch.distributed.checkpoint.format_utils dcp_to_torch "
            f"{path} model.pt",
        )
    if "data.pkl" in entries and ("version" in entries or "data" in entries):
        raise NotWeightsError(
            f"{path} is an unzipped torch file",
            hint="give the original file, which is itself a zip archive",
        )
    if "saved_model.pb" in entries:
        raise NotWeightsError(f"{path} is a TensorFlow model folder, not torch weights")


def _weight_files(path: Path, entries: set[str]) -> tuple[list[Path], tuple[str, ...]]:
    for name in _INDEXES:
        if name in entries and name.removesuffix(".index.json") not in entries:
            return _shards(path, name), ()
    for name in _WEIGHTS:
        if name in entries:
            return [path / name], ()
    loose = sorted(n for n in entries if n.endswith(_LOOSE) and not n.startswith("."))
    loose = [n for n in loose if not n.startswith(("optimizer", "scheduler", "training_args"))]
    if len(loose) == 1:
        return [path / loose[0]], (f"weights taken from {loose[0]}",)
    if loose:
        raise NotWeightsError(
            f"{path} holds several weight files ({', '.join(loose[:4])}) and no config.json to "
            "choose",
            hint=f"give one of them: {path / loose[0]}",
        )
    raise NotWeightsError(
        f"{path} is a folder without weights (no model.safetensors or pytorch_model.bin)",
        hint="give the checkpoint file, or a folder made by save_pretrained",
    )


def _shards(path: Path, name: str) -> list[Path]:
    weight_map = read_json(path / name).get("weight_map")
    if not isinstance(weight_map, Mapping) or not weight_map:
        raise CorruptFileError(f"{path / name} has no weight_map")
    files = sorted({str(file) for file in weight_map.values()})
    for file in files:
        # transformers follows such paths; here they stay inside the folder.
        if Path(file).name != file or "\\" in file or file in ("", ".", ".."):
            raise UnsafeFileError(
                f"{path / name} points outside its folder: {file!r}", hint="do not use this folder"
            )
        if not (path / file).is_file():
            raise CorruptFileError(
                f"{path} lacks the shard {file!r} that its index names",
                hint="download the missing file",
            )
    return [path / file for file in files]


def read_json(path: Path) -> dict[str, Any]:
    """Parse a JSON object of at most 50 MB.

    Raises:
        CorruptFileError: Not JSON, or not an object.
    """
    try:
        if path.stat().st_size > 50_000_000:
            raise ValueError("larger than 50 MB")
        content = json.loads(path.read_text("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise CorruptFileError(f"{path} is no readable JSON ({error})") from error
    if not isinstance(content, dict):
        raise CorruptFileError(f"{path} holds a {type(content).__name__}, not an object")
    return content
