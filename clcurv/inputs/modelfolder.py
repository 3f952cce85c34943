"""A model folder -> which files hold its weights and what its config says."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clcurv.errors import CorruptFileError, InputError, NotWeightsError, UnsafeFileError

_WEIGHTS = ("model.safetensors", "pytorch_model.safetensors", "pytorch_model.bin")
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_LOOSE = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")
# Weights of other frameworks, where torch's are missing.
_ELSEWHERE = (
    (("saved_model.pb", "tf_model.h5"), "TensorFlow"),
    (("flax_model.msgpack", "flax_model.msgpack.index.json"), "Flax"),
    (("model.onnx",), "ONNX"),
)


@dataclass(frozen=True)
class Folder:
    """A folder that holds one model.

    Attributes:
        path: The folder.
        format: ``timm-folder`` | ``hf-folder`` | ``peft-folder`` | ``torch`` | ``safetensors``
            (no config).
        files: The weight file, or all its shards.
        config: Parsed config.json (of an adapter: adapter_config.json), None if there is none.
        notes: Sentences for the report.
        index: Of shards: name of a tensor -> the file said to hold it.
    """

    path: Path
    format: str
    files: list[Path]
    config: Mapping[str, Any] | None
    notes: tuple[str, ...] = ()
    index: Mapping[str, str] = field(default_factory=dict)


def describe(path: Path) -> Folder:
    """Find the weights of a timm or Hugging Face folder; refuse other folders, naming them.

    Raises:
        NotWeightsError: Adapters without their base, distributed checkpoints, quantised models,
            no weights.
        CorruptFileError: A shard is missing, or a JSON file cannot be read.
        UnsafeFileError: The shard index points outside the folder.
    """
    try:
        entries = {entry.name for entry in path.iterdir()}
    except OSError as error:
        raise InputError(f"{path} cannot be listed ({error.strerror})") from error
    if not entries:
        raise NotWeightsError(f"{path} is an empty folder", hint="give a file or a model folder")
    _refuse_others(path, entries)
    if "adapter_config.json" in entries and not entries & {*_WEIGHTS, *_INDEXES}:
        return _adapter(path, entries)
    config = read_json(path / "config.json") if "config.json" in entries else None
    if config is not None and config.get("quantization_config"):
        raise NotWeightsError(
            f"{path} holds a quantised model, which has no gradients",
            hint="give the float model it was made from",
        )
    files, notes, index = _weight_files(path, entries)
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
    return Folder(path, kind, files, config, notes, index)


def _refuse_others(path: Path, entries: set[str]) -> None:
    if any(name.endswith(".distcp") for name in entries):
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
    if "latest" in entries and any(name.startswith("global_step") for name in entries):
        raise NotWeightsError(
            f"{path} is a DeepSpeed checkpoint, whose weights are spread over the workers",
            hint=f"convert it: python {path}/zero_to_fp32.py {path} DIR",
        )


def _adapter(path: Path, entries: set[str]) -> Folder:
    said = read_json(path / "adapter_config.json")
    if adapter_base(path, said) is None:
        named = said.get("base_model_name_or_path")
        raise NotWeightsError(
            f"{path} is an adapter (PEFT) folder; the model it adapts "
            f"({named or 'not named in it'}) is missing",
            hint="set base_model_name_or_path in its adapter_config.json to the local folder of "
            "that model, or merge them: model.merge_and_unload().save_pretrained(DIR)",
        )
    for name in ("adapter_model.safetensors", "adapter_model.bin"):
        if name in entries:
            return Folder(path, "peft-folder", [path / name], said)
    raise NotWeightsError(f"{path} is an adapter folder without adapter_model.safetensors")


def adapter_base(path: Path, said: Mapping[str, Any]) -> Path | None:
    """The local folder of the model that an adapter adapts; nothing is downloaded.

    Args:
        path: The adapter's folder; a relative name counts from the working folder, then from it.
        said: Its adapter_config.json.
    """
    named = said.get("base_model_name_or_path")
    if not isinstance(named, str) or not named:
        return None
    for folder in (Path(named), path / named):
        if (folder / "config.json").is_file():
            return folder
    return None


def _weight_files(
    path: Path, entries: set[str]
) -> tuple[list[Path], tuple[str, ...], Mapping[str, str]]:
    for name in _INDEXES:
        if name in entries and name.removesuffix(".index.json") not in entries:
            index = _index(path, name)
            return [path / file for file in sorted(set(index.values()))], (), index
    for name in _WEIGHTS:
        if name in entries:
            return [path / name], (), {}
    loose = sorted(n for n in entries if n.endswith(_LOOSE) and not n.startswith("."))
    loose = [n for n in loose if not n.startswith(("optimizer", "scheduler", "training_args"))]
    if len(loose) == 1:
        return [path / loose[0]], (f"weights taken from {loose[0]}",), {}
    if loose:
        raise NotWeightsError(
            f"{path} holds several weight files ({', '.join(loose[:4])}) and no config.json to "
            "choose",
            hint=f"give one of them: {path / loose[0]}",
        )
    for files, framework in _ELSEWHERE:
        if entries & {*files}:
            raise NotWeightsError(
                f"{path} holds {framework} weights only, which torch cannot differentiate",
                hint="convert them: Model.from_pretrained(DIR).save_pretrained(NEW) in torch",
            )
    raise NotWeightsError(
        f"{path} is a folder without weights (no model.safetensors or pytorch_model.bin)",
        hint="give the checkpoint file, or a folder made by save_pretrained",
    )


def _index(path: Path, name: str) -> Mapping[str, str]:
    weight_map = read_json(path / name, once=True).get("weight_map")
    if not isinstance(weight_map, Mapping) or not weight_map:
        raise CorruptFileError(f"{path / name} has no weight_map")
    index = {str(tensor): file for tensor, file in weight_map.items()}
    for file in sorted({str(file) for file in index.values()}):
        # transformers follows such paths; here they stay inside the folder.
        if Path(file).name != file or "\\" in file or "\0" in file or file in ("", ".", ".."):
            raise UnsafeFileError(
                f"{path / name} points outside its folder: {file!r}", hint="do not use this folder"
            )
        if not (path / file).is_file():
            raise CorruptFileError(
                f"{path} lacks the shard {file!r} that its index names",
                hint="download the missing file",
            )
    return {tensor: str(file) for tensor, file in index.items()}


def check_complete(folder: Folder, names: Collection[str]) -> None:
    """Refuse shards without a tensor that their index promises.

    Raises:
        CorruptFileError: One is missing.
    """
    lost = [name for name in folder.index if name not in names]
    if lost:
        raise CorruptFileError(
            f"{folder.path} lacks {len(lost)} of the {len(folder.index)} tensors that its index "
            f"names ({lost[0]!r}, ...)",
            hint="download the folder again: its files are of different versions",
        )


def read_json(path: Path, *, once: bool = False) -> dict[str, Any]:
    """Parse a JSON object of at most 50 MB.

    Args:
        path: The file.
        once: Refuse an object in which one name comes twice.

    Raises:
        CorruptFileError: Not JSON, or not an object.
    """

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        content = dict(found)
        if once and len(content) != len(found):
            raise ValueError("it has one name twice")
        return content

    try:
        if not path.is_file():
            raise ValueError("not a regular file")
        if path.stat().st_size > 50_000_000:
            raise ValueError("larger than 50 MB")
        content = json.loads(path.read_text("utf-8-sig"), object_pairs_hook=pairs)
    except (OSError, ValueError, RecursionError) as error:
        raise CorruptFileError(f"{path} is no readable JSON ({str(error)[:200]})") from error
    if not isinstance(content, dict):
        raise CorruptFileError(f"{path} holds a {type(content).__name__}, not an object")
    return content
