"""A Hugging Face folder -> its own model class, never remote code, never the network."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from clcurv.errors import ArchitectureError, MismatchError
from clcurv.inputs.checkpoint import Weights
from clcurv.inputs.heads import find_head
from clcurv.inputs.hf_classes import resolve
from clcurv.inputs.hf_families import Recognised, beside
from clcurv.inputs.loaded import LoadedModel, Modality, Task
from clcurv.inputs.matching import REQUIRED, cast_notes, check_finite, make_ready


def load_huggingface(
    weights: Weights,
    *,
    num_classes: int | None = None,
    known: Recognised | None = None,
    architecture: str | None = None,
    new_head: int | None = None,
) -> LoadedModel:
    """Build the class that the folder's config names and put the weights into it.

    Attention is the "eager" kind: plain matrix products, which have second derivatives.

    Args:
        weights: From a folder with config.json, or any with `known`.
        num_classes: What the user says the head has.
        known: Class and config that were recognised without config.json.
        architecture: Another class than config.json names.
        new_head: The file has no head for this class; it gets one of this width, which
            the caller fills.

    Raises:
        ArchitectureError: The class is unknown to transformers (it would need the
            folder's own code), or its task is not supported.
        MismatchError: Weights missing, left over or of another shape.
        NumericalError: NaN or infinite weights.
    """
    check_finite(weights.tensors)
    if known is not None:
        weights = replace(weights, tensors=known.tensors)
        config = _made_config(known, weights)
        architecture = known.cls
    else:
        config = _config(weights)
    resolved = resolve(weights, config, architecture)
    architecture, cls, task, config = (
        resolved.architecture,
        resolved.cls,
        resolved.task,
        resolved.config,
    )
    config.use_cache = False
    if new_head is not None:
        config.num_labels = new_head
    pooling = _pooling(weights, config) if task == "backbone" else ""
    if task == "classification" and _is_regression(config):
        task = "regression"
    model, info = _instantiate(cls, config, weights, pooling)
    missing, unexpected = _check(
        model, info, weights, architecture, task, headless=new_head is not None
    )
    make_ready(model)
    notes = [*resolved.notes, *([known.note] if known else []), *cast_notes(weights.tensors)]
    modality = _modality(model, architecture)
    head: tuple[str, ...] = ()
    width: int | None = None
    if task == "backbone":
        model = _pool(model, pooling)
        notes.append(_POOLING_NOTES[pooling])
    else:
        head = find_head(model)[0]
        in_labels = task in ("classification", "regression")
        width = int(config.num_labels if in_labels else config.get_text_config().vocab_size)
        if num_classes is not None and in_labels and num_classes != width:
            raise MismatchError(
                f"the checkpoint's head has {width} classes, {num_classes} were asked for",
                hint="leave --num-classes out",
            )
    tied = _tied(model)
    if tied:
        notes.append(f"tied weights, counted once: {'; '.join(' = '.join(t) for t in tied)}")
    labels = config.id2label if task == "classification" else {}
    return LoadedModel(
        model=model,
        arch=known.arch if known is not None else f"hf:{architecture}",
        arch_source="config" if known is None else "fingerprint",
        modality=modality,
        task=task,
        num_classes=width,
        head_params=head,
        preprocess=_preprocess(weights, modality, config, known),
        id2label={} if known else {int(k): str(label) for k, label in (labels or {}).items()},
        missing=missing,
        unexpected=unexpected,
        notes=tuple(notes),
    )


def _preprocess(
    weights: Weights, modality: Modality, config: Any, known: Recognised | None
) -> dict[str, Any]:
    if known is None:
        kind = "tokenizer" if modality == "text" else "image_processor"
        return {kind: str(weights.path)}
    if modality == "text":
        folder = beside(weights.path)
        return {"tokenizer": str(folder)} if folder else {}
    size = getattr(config, "image_size", None)
    if not isinstance(size, int):
        return {}
    # What most image processors of the hub do; the note of `known` says that it is a guess.
    return {
        "input_size": (int(getattr(config, "num_channels", 3)), size, size),
        "mean": (0.5, 0.5, 0.5),
        "std": (0.5, 0.5, 0.5),
        "interpolation": "bilinear",
        "crop_pct": 1.0,
    }


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars and reports: what was loaded is reported by clcurv itself."""
    log = logging.getLogger("transformers")
    before = log.level
    bars = transformers.utils.logging.is_progress_bar_enabled()
    log.setLevel(logging.ERROR)
    transformers.utils.logging.disable_progress_bar()
    try:
        yield
    finally:
        log.setLevel(before)
        if bars:
            transformers.utils.logging.enable_progress_bar()


def _config(weights: Weights) -> Any:
    try:
        with _quiet():
            return transformers.AutoConfig.from_pretrained(
                str(weights.path), local_files_only=True, trust_remote_code=False
            )
    except Exception as error:
        # transformers raises KeyError, OSError, ValueError, validation errors of its own.
        own = " (it needs the folder's own code, which is never run)" * (
            "auto_map" in (weights.config or {})
        )
        raise ArchitectureError(
            f"{weights.path}: config.json cannot be used{own} ({str(error).splitlines()[0][:200]})"
        ) from error


def _made_config(known: Recognised, weights: Weights) -> Any:
    kinds = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    try:
        with _quiet():
            config = kinds[known.model_type](**known.config)
            if config.is_encoder_decoder:
                raise ValueError("where a decoder starts stands only in the config")
            return config
    except Exception as error:
        # Configs validate themselves with errors of many types.
        raise ArchitectureError(
            f"{weights.path}: no {known.cls} of these sizes can be built "
            f"({(str(error).splitlines() or [''])[0][:200]})",
            hint=_NEEDS_CONFIG,
        ) from error


def _is_regression(config: Any) -> bool:
    return config.problem_type == "regression" or (
        config.problem_type is None and config.num_labels == 1
    )


def _instantiate(
    cls: Any, config: Any, weights: Weights, pooling: str
) -> tuple[nn.Module, Mapping[str, Any]]:
    extra = {"add_pooling_layer": False} if pooling in ("mean", "cls") else {}
    arguments = {
        "config": config,
        "state_dict": dict(weights.tensors),
        "output_loading_info": True,
        "ignore_mismatched_sizes": True,  # reported by `_check`, in our words
        "attn_implementation": "eager",
        "dtype": torch.float32,
    }
    with _quiet():
        try:
            try:
                model, info = cls.from_pretrained(None, **arguments, **extra)
            except TypeError:
                # Not every backbone can leave its pooler out.
                model, info = cls.from_pretrained(None, **arguments)
        except Exception as error:
            raise ArchitectureError(
                f"{weights.path}: transformers cannot build {cls.__name__} "
                f"({str(error).splitlines()[0][:200]})"
            ) from error
    return model, info


def _check(
    model: nn.Module,
    info: Mapping[str, Any],
    weights: Weights,
    name: str,
    task: Task,
    *,
    headless: bool = False,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    mismatched = [
        f"{key} is {list(theirs)} in the checkpoint and {list(ours)} in the model"
        for key, theirs, ours in info["mismatched_keys"]
    ]
    if mismatched:
        raise _misfit(weights, name, "shapes differ", mismatched)
    state = model.state_dict()
    missing = sorted(info["missing_keys"])
    lost = [key for key in missing if "position_ids" not in key]
    head = set(find_head(model)[0])
    if headless:
        lost = [key for key in lost if key not in head]
    if any(key in head for key in lost):
        raise _misfit(weights, name, "the checkpoint lacks the model's head", lost)
    total = sum(tensor.numel() for tensor in state.values())
    absent = sum(state[key].numel() for key in lost if key in state)
    if absent > (1 - REQUIRED) * total:
        raise _misfit(weights, name, "weights are missing", lost)
    unexpected = sorted(info["unexpected_keys"])
    over = sum(weights.tensors[k].numel() for k in unexpected if k in weights.tensors)
    # A backbone read from a folder with a head or pooler leaves these over.
    if task != "backbone" and over > (1 - REQUIRED) * total:
        strangers = [key for key in unexpected if not key.startswith("cls.")]
        if strangers:
            raise _misfit(weights, name, "the model has no place for", strangers)
    return tuple(missing), tuple(unexpected)


_NEEDS_CONFIG = "put the model's config.json beside the file"


def _misfit(weights: Weights, name: str, what: str, items: list[str]) -> MismatchError:
    told = "check that config.json belongs to these weights"
    shown = "; ".join(items[:3]) + (f"; and {len(items) - 3} more" if len(items) > 3 else "")
    return MismatchError(
        f"{weights.path} does not fit {name}: {what}: {shown}",
        hint=told if weights.format == "hf-folder" else _NEEDS_CONFIG,
    )


def _modality(model: nn.Module, architecture: str) -> Modality:
    name = getattr(model, "main_input_name", "input_ids")
    if name == "input_ids":
        return "text"
    if name == "pixel_values":
        return "image"
    raise ArchitectureError(f"{architecture} takes {name!r}; only text and image models are read")


def _tied(model: nn.Module) -> list[tuple[str, ...]]:
    """Groups of names that are one parameter."""
    names: dict[int, list[str]] = {}
    for name, param in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(param), []).append(name)
    return [tuple(group) for group in names.values() if len(group) > 1]


# How a backbone's token features become one vector per sample.
_POOLING_NOTES = {
    "mean": "backbone output: mean of the last hidden state over the attention mask",
    "cls": "backbone output: last hidden state of the first token",
    "pooler": "backbone output: the model's own pooler",
}


def _pooling(weights: Weights, config: Any) -> str:
    modules = weights.path / "1_Pooling" / "config.json"
    if (weights.path / "modules.json").is_file() and modules.is_file():
        try:
            said = json.loads(modules.read_text())
            return "cls" if said.get("pooling_mode_cls_token") is True else "mean"
        except (ValueError, OSError, AttributeError):
            return "mean"
    if any("pooler" in name.split(".") for name in weights.tensors):
        return "pooler"
    if any("post_layernorm" in name for name in weights.tensors):
        return "pooler"  # CLIP's towers normalise the class token after the last hidden state
    kinds = transformers.models.auto.modeling_auto
    causal = type(config) in kinds.MODEL_FOR_CAUSAL_LM_MAPPING
    masked = type(config) in kinds.MODEL_FOR_MASKED_LM_MAPPING
    if causal and not masked:
        return "mean"
    # Convolutional backbones pool without weights.
    return "cls" if hasattr(config, "num_attention_heads") else "pooler"


def _pool(model: nn.Module, pooling: str) -> nn.Module:
    """Make ``model(**inputs)`` return features (n, d).

    A forward hook keeps the parameter names as the checkpoint has them, which a
    wrapping module would not.
    """

    def pool(
        module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> Tensor:
        hidden: Tensor | None = getattr(output, "last_hidden_state", None)
        pooled: Tensor | None = getattr(output, "pooler_output", None)
        if pooling == "pooler" and pooled is not None:
            return pooled.flatten(1)
        if hidden is None:
            raise ArchitectureError(f"{type(module).__name__} returns no hidden state to pool")
        if hidden.ndim == 4:
            return hidden.flatten(2).mean(2)
        if pooling == "mean":
            mask: Tensor | None = kwargs.get("attention_mask")
            if mask is None:
                return hidden.mean(1)
            weight = mask.to(hidden.dtype).unsqueeze(-1)
            return torch.sum(hidden * weight, 1) / torch.sum(weight, 1).clamp(min=1)
        return hidden[:, 0]

    model.register_forward_hook(pool, with_kwargs=True)
    return model
