"""What a loaded model is, for everything that comes after loading."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn

Modality = Literal["image", "text", "array"]
Task = Literal["classification", "causal-lm", "masked-lm", "regression", "backbone"]


@dataclass(frozen=True)
class LoadedModel:
    """A model with its weights in place, ready for measuring.

    Attributes:
        model: In eval mode, float32 on the CPU, every parameter requiring grad.
        arch: ``timm:resnet18`` | ``torchvision:resnet18`` | ``hf:BertForSequenceClassification``
            | ``module:factory``.
        arch_source: ``option`` | ``metadata`` | ``config`` | ``fingerprint`` | ``loss``
            (several fitted, the lowest loss decided) | ``given`` (a live module) | ``pickle``
            (the module was in the file, and `unsafe_pickle` allowed its code).
        modality: What the model eats; ``array`` for a plain float tensor.
        task: What its head does; ``backbone`` when it has no head.
        num_classes: Width of the head; None for a backbone.
        head_params: Parameter names of the head (empty for a backbone, and for a head
            whose only weight is tied to the embedding).
        preprocess: timm: the resolved data config (input_size, mean, std, interpolation,
            crop_pct). HF: ``{"tokenizer": folder}`` or ``{"image_processor": folder}``.
            Otherwise empty.
        id2label: Class id -> label text where the checkpoint says so.
        missing, unexpected: Tensor names without a partner on the other side.
        matched_fraction: Elements of the backbone filled from the checkpoint, 0..1.
        candidates: Other architectures that fit equally well.
        probe_accuracy: Of a linear probe, each sample predicted by a fit without it; None
            without one. Its accuracy on the sample says little: it was fitted to it.
        notes: Sentences for the report.
    """

    model: nn.Module
    arch: str
    arch_source: str
    modality: Modality
    task: Task
    num_classes: int | None
    head_params: tuple[str, ...] = ()
    preprocess: dict[str, Any] = field(default_factory=dict)
    id2label: dict[int, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    matched_fraction: float = 1.0
    candidates: tuple[str, ...] = ()
    probe_accuracy: float | None = None
    notes: tuple[str, ...] = ()
