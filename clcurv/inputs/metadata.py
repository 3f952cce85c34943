"""What a checkpoint says about itself: its model's name and arguments, preprocessing, classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clcurv.inputs.checkpoint import Weights

# Where training scripts write the model's name.
_NAME_KEYS = ("arch", "architecture", "model", "model_name", "model_arch", "backbone", "net")
_ARGUMENT_GROUPS = ("args", "hyper_parameters", "config", "cfg", "hparams")
_DATA_KEYS = ("input_size", "mean", "std", "interpolation", "crop_pct", "crop_mode")


def named_in(metadata: Mapping[str, Any]) -> list[str]:
    """Known architectures that the metadata names, timm first."""
    import timm
    import torchvision

    groups = [metadata, *(metadata.get(group) for group in _ARGUMENT_GROUPS)]
    vision = torchvision.models.list_models(module=torchvision.models)
    names: list[str] = []
    for group in groups:
        if not isinstance(group, Mapping):
            continue
        for key in _NAME_KEYS:
            value = group.get(key)
            if not isinstance(value, str):
                continue
            name = value.rsplit(":", 1)[-1].rsplit("/", 1)[-1]
            if timm.is_model(name.split(".", 1)[0]):
                names.append(f"timm:{name}")
            if name in vision:
                names.append(f"torchvision:{name}")
    return list(dict.fromkeys(names))


def arguments_in(weights: Weights) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the checkpoint says to `timm.create_model`, and of its preprocessing."""
    model: dict[str, Any] = {}
    data: dict[str, Any] = {}
    groups = [weights.metadata, *(weights.metadata.get(g) for g in _ARGUMENT_GROUPS)]
    for group in groups:
        if not isinstance(group, Mapping):
            continue
        for key in ("model_kwargs", "model_args"):
            if isinstance(group.get(key), Mapping):
                model |= dict(group[key])
        for key in ("img_size", "input_size", "mean", "std", "interpolation", "crop_pct"):
            if group.get(key) is not None:
                data[key] = group[key]
    config = weights.config or {}
    if weights.format == "timm-folder":
        model |= dict(config.get("model_args") or {})
        cfg = config.get("pretrained_cfg")
        if isinstance(cfg, Mapping):
            data |= {k: v for k, v in cfg.items() if k in _DATA_KEYS and v is not None}
    refused = {"num_classes", "pretrained", "checkpoint_path", "cache_dir", "pretrained_cfg"}
    return {k: v for k, v in model.items() if k not in refused}, data


def labels_in(weights: Weights) -> dict[int, str]:
    """Class names that the checkpoint carries."""
    metadata = weights.metadata
    cfg = (weights.config or {}).get("pretrained_cfg")
    listed = cfg.get("label_names") if isinstance(cfg, Mapping) else None
    listed = listed or (weights.config or {}).get("label_names")
    listed = listed or metadata.get("classes") or metadata.get("class_names")
    if isinstance(listed, list):
        return {index: str(name) for index, name in enumerate(listed)}
    ids = metadata.get("class_to_idx")
    if isinstance(ids, Mapping):
        return {index: str(name) for name, index in ids.items() if isinstance(index, int)}
    labels = metadata.get("id2label")
    if isinstance(labels, Mapping):
        return {int(index): str(name) for index, name in labels.items() if str(index).isdigit()}
    return {}
