"""A live `torch.nn.Module`, given through the Python API."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from clcurv.errors import ArchitectureError
from clcurv.inputs.heads import find_head
from clcurv.inputs.loaded import LoadedModel, Modality, Task
from clcurv.inputs.matching import check_finite
from clcurv.inputs.modules import refuse_complex


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside DataParallel, DistributedDataParallel and `torch.compile`."""
    while True:
        # Second derivatives are refused, or wrong, through compiled modules.
        inner = getattr(model, "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            parallel = type(model).__name__ in ("DataParallel", "DistributedDataParallel")
            inner = getattr(model, "module", None) if parallel else None
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def wrap_module(
    model: nn.Module,
    *,
    arch: str | None = None,
    num_classes: int | None = None,
    modality: Modality | None = None,
    task: Task | None = None,
    head_params: tuple[str, ...] | None = None,
) -> LoadedModel:
    """Describe a live module as if it had been loaded.

    The module is neither copied nor changed; whoever measures it puts it into eval
    mode and back.

    Args:
        model: Any module; parallel and compiled wrappers are taken off.
        arch: Name for the report.
        num_classes: Width of the head, where it cannot be told.
        modality: What it eats, where its timm or Hugging Face config does not say.
        task: What its head does.
        head_params: Names of the head's parameters, where they cannot be told.

    Raises:
        ArchitectureError: No parameters, complex ones, or ones without values.
        NumericalError: NaN or infinite weights.
    """
    inner = unwrap(model)
    _refuse_hollow(inner)
    refuse_complex(inner)
    check_finite(dict(inner.named_parameters()))
    head, width = find_head(inner)
    notes = () if inner is model else (f"measured inside its {type(model).__name__} wrapper",)
    told_modality, preprocess = _data(inner)
    told_task, told_width = _task(inner, head, width)
    return LoadedModel(
        model=inner,
        arch=arch or type(inner).__name__,
        arch_source="given",
        modality=modality or told_modality,
        task=task or told_task,
        num_classes=num_classes if num_classes is not None else told_width,
        head_params=head if head_params is None else head_params,
        preprocess=preprocess,
        notes=notes,
    )


def _refuse_hollow(model: nn.Module) -> None:
    kind = type(model).__name__
    for name, p in model.named_parameters():
        if is_lazy(p):
            raise ArchitectureError(
                f"{kind}: {name} has no shape yet", hint="run the model once on a batch"
            )
        if p.is_meta:
            raise ArchitectureError(
                f"{kind}: {name} is on the device meta, where tensors have no values",
                hint="load the weights first",
            )
    if not any(p.numel() for p in model.parameters()):
        raise ArchitectureError(f"{kind} has no parameters to measure")


def _data(model: nn.Module) -> tuple[Modality, dict[str, Any]]:
    if getattr(model, "pretrained_cfg", None):
        import timm.data

        return "image", dict(timm.data.resolve_data_config({}, model=model))
    name = getattr(model, "main_input_name", None)
    if name == "input_ids":
        return "text", {}
    if name == "pixel_values":
        return "image", {}
    return "array", {}


def _task(model: nn.Module, head: tuple[str, ...], width: int | None) -> tuple[Task, int | None]:
    config = getattr(model, "config", None)
    if hasattr(model, "base_model_prefix") and config is not None:
        from clcurv.inputs.hf_classes import task_of

        task = task_of(type(model).__name__) or "classification"
        if task == "backbone":
            return task, None
        if task == "classification":
            return task, int(config.num_labels)
        return task, int(config.get_text_config().vocab_size)
    if head and width:
        return "classification", width
    return "backbone", None
