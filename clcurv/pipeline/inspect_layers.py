"""What the commands would measure as layers, without data where that can be."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from clcurv.errors import InputError, MismatchError
from clcurv.inputs.dataset import Batch
from clcurv.inputs.layers import Layer, discover_layers
from clcurv.inputs.loaded import LoadedModel
from clcurv.inputs.preprocess import image_spec, load_image_processor
from clcurv.inputs.tokens import is_hugging_face, load_tokenizer

_WORDS = 8  # tokens of a made-up text: shorter than any model's limit
_SIDES = (32, 224)  # of images for networks that state no size


def find_layers(loaded: LoadedModel, how: object, batch: Batch | None) -> list[Layer] | None:
    """Layers in order of execution.

    Args:
        loaded: The model.
        how: As ``--layers``.
        batch: Of the user's data; None makes blank inputs of the shape the model takes.

    Returns:
        None where nothing states what the inputs look like, and no usual shape runs.

    Raises:
        MismatchError: The model cannot be run on `batch`.
        UsageError: `how` matches nothing.
    """
    for example in [batch] if batch is not None else blank_inputs(loaded):
        try:
            return discover_layers(
                loaded.model,
                example,
                granularity=how if isinstance(how, str) else "block",
                groups=None if isinstance(how, str) else how,  # type: ignore[arg-type]
                head_params=loaded.head_params,
            )
        except MismatchError:
            if batch is not None:
                raise
    return None


def blank_inputs(loaded: LoadedModel) -> list[Batch]:
    """Inputs of zeros that the model may take, the likeliest first: they are only run, not read."""
    if loaded.modality == "text":
        words = torch.ones(2, _WORDS, dtype=torch.int64)
        if not is_hugging_face(loaded):
            return [_batch(words)]
        return [_batch({"input_ids": words, "attention_mask": torch.ones_like(words)})]
    if loaded.modality == "image":
        try:
            spec = image_spec(loaded)
        except InputError:  # no image processor in the folder
            return []
        sizes = [spec.size] if spec.size else [(side, side) for side in _SIDES]
        return [_images(loaded, spec.channels, *size) for size in sizes]
    return _by_first_module(loaded)


def input_faults(loaded: LoadedModel) -> list[str]:
    """What of the checkpoint's own preprocessing cannot be used, before data need it."""
    try:
        if loaded.modality == "text" and load_tokenizer(loaded) is None:
            return ["no tokenizer beside the weights: token ids can be read as data, texts cannot"]
        if "image_processor" in loaded.preprocess:
            load_image_processor(loaded)
    except InputError as error:
        return [str(error)]
    return []


def _by_first_module(loaded: LoadedModel) -> list[Batch]:
    """What the first module with weights takes, of a network that states nothing."""
    for module in loaded.model.modules():
        if isinstance(module, nn.Linear):
            return [_batch(torch.zeros(2, module.in_features))]
        if isinstance(module, nn.Embedding):
            return [_batch(torch.zeros(2, _WORDS, dtype=torch.int64))]
        if isinstance(module, nn.Conv1d):
            return [_batch(torch.zeros(2, module.in_channels, side)) for side in _SIDES]
        if isinstance(module, nn.Conv2d):
            return [_batch(torch.zeros(2, module.in_channels, side, side)) for side in _SIDES]
    return []


def _images(loaded: LoadedModel, channels: int, height: int, width: int) -> Batch:
    pixels = torch.zeros(2, channels, height, width)
    return _batch({"pixel_values": pixels} if is_hugging_face(loaded) else pixels)


def _batch(inputs: Tensor | dict[str, Tensor]) -> Batch:
    return Batch(inputs, torch.zeros(2, dtype=torch.int64))
