"""A PEFT folder and the local model it adapts -> a model whose adapter tensors are its layers.

The base is frozen: its weights become buffers, so that everything after loading (layers, products,
importances) meets the adapter's parameters alone, under the names that PEFT gives them.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from clcurv.errors import ArchitectureError, InputError, MismatchError, NotWeightsError
from clcurv.inputs.checkpoint import Weights, load_weights
from clcurv.inputs.loaded import LoadedModel
from clcurv.inputs.matching import cast_notes, check_finite, make_ready
from clcurv.inputs.modelfolder import adapter_base

_AUTO = {
    "SEQ_CLS": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING",
    "TOKEN_CLS": "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING",
    "CAUSAL_LM": "MODEL_FOR_CAUSAL_LM_MAPPING",
    "FEATURE_EXTRACTION": "MODEL_MAPPING",
}
_HEADED = ("SEQ_CLS", "TOKEN_CLS")


def load_adapter(weights: Weights, *, num_classes: int | None = None) -> LoadedModel:
    """Build the base, put the adapter on it, and leave only the adapter's parameters.

    Args:
        weights: Of the adapter, from a folder with adapter_config.json.
        num_classes: What the user says the head has.

    Raises:
        InputError: PEFT is not installed, or the base is refused.
        NotWeightsError: A prompt, which has no place in a network, or no local base.
        ArchitectureError: PEFT cannot build the adapter, or the task is not supported.
        MismatchError: The tensors are not those of the adapter.
        NumericalError: NaN or infinite weights.
    """
    try:
        import peft
    except ImportError as error:
        raise InputError(
            f"{weights.path} is an adapter; reading it needs the package peft",
            hint="pip install peft",
        ) from error
    check_finite(weights.tensors)
    said = dict(weights.config or {})
    folder = adapter_base(weights.path, said)
    if folder is None:
        raise NotWeightsError(f"{weights.path}: the model that the adapter adapts is missing")
    base = _load_base(load_weights(folder), said, weights)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            config = peft.PeftConfig.from_pretrained(str(weights.path))
            if config.is_prompt_learning:
                raise NotWeightsError(
                    f"{weights.path} holds a learned prompt ({said.get('peft_type')}), not "
                    "weights of a network"
                )
            config.inference_mode = False
            model = peft.get_peft_model(base.model, config)
            wanted = peft.get_peft_model_state_dict(model)
            _compare(weights, wanted)
            peft.set_peft_model_state_dict(model, dict(weights.tensors))
    except (NotWeightsError, MismatchError):
        raise
    except Exception as error:
        # PEFT raises whatever its parts raise.
        raise ArchitectureError(
            f"{weights.path}: PEFT cannot build this adapter "
            f"({type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]})"
        ) from error
    learned = {name for name, p in model.named_parameters() if p.requires_grad}
    _freeze(model, learned)
    make_ready(model)
    head = tuple(n for n in learned if ".modules_to_save." in n and not _inside(n, base))
    names = [name for name, _ in model.named_parameters()]
    kind = str(said.get("peft_type") or "PEFT").upper()
    numel = sum(p.numel() for p in model.parameters())
    notes = (
        *weights.notes,
        *base.notes,
        *cast_notes(weights.tensors),
        f"{kind} adapter of {numel:,} parameters on {folder}; the base is frozen and not measured",
    )
    if num_classes is not None and base.num_classes != num_classes:
        raise MismatchError(
            f"the model has {base.num_classes} classes, {num_classes} were asked for",
            hint="leave --num-classes out",
        )
    return replace(
        base,
        model=model,
        arch=f"{base.arch}+{kind}",
        head_params=tuple(sorted(head, key=names.index)),
        missing=(),
        unexpected=(),
        matched_fraction=1.0,
        notes=notes,
    )


def _load_base(base: Weights, said: Mapping[str, Any], adapter: Weights) -> LoadedModel:
    from clcurv.inputs.architecture import load_model

    if base.format == "peft-folder":
        raise NotWeightsError(
            f"{adapter.path} adapts {base.path}, which is itself an adapter",
            hint="merge that one first: model.merge_and_unload().save_pretrained(DIR)",
        )
    if base.format != "hf-folder":
        return load_model(base)
    from clcurv.inputs.huggingface import load_huggingface

    task = said.get("task_type")
    if not task:
        return load_huggingface(base)
    if task not in _AUTO:
        raise ArchitectureError(
            f"{adapter.path}: adapters for the task {task} are not read",
            hint=f"these are: {', '.join(_AUTO)}",
        )
    architecture = _class_for(base, task)
    rows = _head_rows(adapter.tensors) if task in _HEADED else None
    return load_huggingface(base, architecture=architecture, new_head=rows)


def _class_for(base: Weights, task: str) -> str:
    """transformers' class for a task, by the base's type; its own where that has the task."""
    from transformers.models.auto import modeling_auto

    names = getattr(modeling_auto, f"{_AUTO[task]}_NAMES")
    kind = (base.config or {}).get("model_type")
    found = names.get(kind)
    if found is None:
        raise ArchitectureError(f"{base.path}: transformers has no class for {task} of {kind}")
    return str(found if isinstance(found, str) else found[0])


def _head_rows(tensors: Mapping[str, Tensor]) -> int | None:
    """Outputs of the head that lies in the adapter's file."""
    rows = [
        tensor.shape[0]
        for name, tensor in tensors.items()
        if name.endswith(".weight") and ".lora_" not in name and tensor.ndim == 2
    ]
    return int(rows[-1]) if rows else None


def _compare(weights: Weights, wanted: Mapping[str, Tensor]) -> None:
    """Every tensor of the adapter, no other, and of its shape."""
    missing = sorted(wanted.keys() - weights.tensors.keys())
    unexpected = sorted(weights.tensors.keys() - wanted.keys())
    wrong = sorted(
        name
        for name in wanted.keys() & weights.tensors.keys()
        if wanted[name].shape != weights.tensors[name].shape
    )
    for what, names in (
        ("the file lacks", missing),
        ("its config has no place for", unexpected),
        ("shapes differ from its config's and the base's", wrong),
    ):
        if names:
            shown = "; ".join(names[:3]) + (f"; and {len(names) - 3} more" * (len(names) > 3))
            raise MismatchError(
                f"{weights.path}: the adapter does not fit its base: {what}: {shown}",
                hint="check base_model_name_or_path in adapter_config.json",
            )


def _freeze(model: nn.Module, learned: set[str]) -> None:
    """Turn every other parameter into a buffer of its module."""
    for path, module in model.named_modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if f"{path}.{name}".lstrip(".") not in learned:
                del module._parameters[name]
                module.register_buffer(name, parameter.detach())


def _inside(name: str, base: LoadedModel) -> bool:
    """Whether a fully trained module lies in the base's body rather than in its head."""
    if not base.head_params:
        return True
    original = name.removeprefix("base_model.model.").replace(".modules_to_save.default", "")
    return original not in base.head_params
