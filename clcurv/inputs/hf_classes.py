"""Which class of transformers a folder's config asks for, and what of it is measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import transformers

from clcurv.errors import ArchitectureError
from clcurv.inputs import hf_families
from clcurv.inputs.checkpoint import Weights
from clcurv.inputs.loaded import Task

_TASKS: tuple[tuple[str, Task], ...] = (
    ("ForSequenceClassification", "classification"),
    ("ForImageClassification", "classification"),
    ("ForTokenClassification", "classification"),
    ("ForCausalLM", "causal-lm"),
    ("LMHeadModel", "causal-lm"),
    ("ForMaskedLM", "masked-lm"),
    ("WithLMHeadModel", "masked-lm"),
)


@dataclass(frozen=True)
class Resolved:
    """A class of transformers to build.

    Attributes:
        architecture: Its name.
        cls: The class.
        task: What its head does.
        config: For it: a tower's own where the folder's holds several.
        notes: Where it is not what config.json names.
    """

    architecture: str
    cls: Any
    task: Task
    config: Any
    notes: tuple[str, ...] = ()


def task_of(architecture: str) -> Task | None:
    """What a transformers class does, from its name; None when unsupported."""
    for suffix, task in _TASKS:
        if architecture.endswith(suffix):
            return task
    if architecture.endswith("Model"):
        return "backbone"
    return None


def resolve(weights: Weights, config: Any, architecture: str | None = None) -> Resolved:
    """Choose the class.

    Pretraining classes give their encoder (or, for text, their masked-language head), and models
    of text and images together their vision tower. A config that names no class is asked for
    its type, and the tensors for the head.

    Args:
        weights: For the names of the tensors.
        config: Of transformers.
        architecture: Another class than the config names.

    Raises:
        ArchitectureError: transformers has no such class (the folder's own code is never run),
            or it is neither a classifier, a language model nor a backbone.
    """
    named = list(
        getattr(config, "architectures", None) or (weights.config or {}).get("architectures") or []
    )
    wanted = architecture or (str(named[0]) if named else _by_names(weights, config))
    name, notes = _measured(wanted, config)
    if name != wanted and getattr(config, "vision_config", None) is not None:
        config = config.vision_config
    if wanted.startswith("ViTMAE"):
        # Its own forward pass hides three patches of four, at random.
        keys = transformers.ViTConfig().to_dict().keys()
        config = transformers.ViTConfig(
            **{k: v for k, v in config.to_dict().items() if k in keys and k != "model_type"}
        )
    cls = getattr(transformers, name, None) if name.isidentifier() else None
    if not (isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel)):
        own = " (it needs the folder's own code, which is never run)" * (
            "auto_map" in (weights.config or {})
        )
        raise ArchitectureError(
            f"{weights.path}: transformers has no class {name or '(none named)'!r}{own}",
            hint="name your own factory: --arch package.module:factory",
        )
    task = task_of(name)
    if task is None:
        raise ArchitectureError(
            f"{weights.path}: {name} is neither a classifier, a language model nor a backbone",
            hint="name your own factory: --arch package.module:factory",
        )
    return Resolved(name, cls, task, config, notes)


def _measured(name: str, config: Any) -> tuple[str, tuple[str, ...]]:
    """The class in place of one that is only for pretraining, or that takes text and images."""
    if name in ("ViTMAEForPreTraining", "ViTMAEModel"):
        return "ViTModel", (f"{name}: its encoder is read as ViTModel, which hides no patches",)
    for suffix in ("ForPreTraining", "ForMaskedImageModeling"):
        if name.endswith(suffix):
            stem = name.removesuffix(suffix)
            masked = f"{stem}ForMaskedLM"
            if suffix == "ForPreTraining" and hasattr(transformers, masked):
                return masked, (f"{name} is read as {masked}",)
            return f"{stem}Model", (f"{name}: its encoder is read as {stem}Model",)
    if name.endswith("Model") and getattr(config, "vision_config", None) is not None:
        tower = f"{name.removesuffix('Model')}VisionModel"
        if hasattr(transformers, tower):
            return tower, (f"{name}: its vision tower is read as {tower}, the text tower left out",)
    return name, ()


def _by_names(weights: Weights, config: Any) -> str:
    """The class whose tensors these are; config.json says only the family."""
    found = hf_families.class_by_names(weights, config.model_type)
    return found or ""
