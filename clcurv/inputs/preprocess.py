"""Images -> tensors, the way the model's own config says."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor, nn

from clcurv.errors import DataError
from clcurv.inputs.loaded import LoadedModel

# Pillow registers over forty formats; the rest are rarely data and often attack surface.
IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM")
_BYTE = 255.0


@dataclass(frozen=True)
class ImageSpec:
    """What images the model was trained on.

    Attributes:
        channels: 1, 3, ...
        size: Height and width; None when nothing says.
        mean, std: Per channel, of pixels in 0..1; None when nothing says.
        notes: Sentences for the report.
    """

    channels: int
    size: tuple[int, int] | None
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    notes: tuple[str, ...] = ()


def image_spec(loaded: LoadedModel) -> ImageSpec:
    """Read size and normalisation from a timm data config or an HF image processor.

    The first convolution has the last word on the number of channels: the data configs of
    models built with ``in_chans=1`` still say 3.
    """
    config = loaded.preprocess
    if "image_processor" in config:
        processor = load_image_processor(loaded)
        mean, std = getattr(processor, "image_mean", None), getattr(processor, "image_std", None)
        size = _processor_size(processor)
        channels = _first_conv_channels(loaded.model) or (len(mean) if mean else 3)
    else:
        mean, std, stated = config.get("mean"), config.get("std"), config.get("input_size")
        size = (int(stated[-2]), int(stated[-1])) if stated else None
        channels = _first_conv_channels(loaded.model) or (int(stated[0]) if stated else 3)
    if mean is None or std is None:
        return ImageSpec(channels, size, None, None)
    if len(mean) == channels:
        return ImageSpec(channels, size, _floats(mean), _floats(std))
    averaged = [(float(np.mean(values)),) * channels for values in (mean, std)]
    note = f"mean and std of the config averaged for {channels} channel" + "s" * (channels > 1)
    return ImageSpec(channels, size, averaged[0], averaged[1], (note,))


def image_pipeline(loaded: LoadedModel) -> tuple[Callable[[Image.Image], Tensor], tuple[str, ...]]:
    """A function from an image to the tensor ``(C, H, W)`` that the model eats, and notes.

    timm models get ``timm.data.create_transform`` with their own data config (resize, centre
    crop, normalise). An image that already has the model's input size is only normalised.
    Without a config, images are scaled to 0..1 and left at their size.

    Raises:
        DataError: The image processor of the checkpoint cannot be loaded.
    """
    spec = image_spec(loaded)
    if "image_processor" in loaded.preprocess:
        processor = load_image_processor(loaded)

        def through_processor(image: Image.Image) -> Tensor:
            pixels = processor(images=[_to_channels(image, spec.channels)], return_tensors="pt")
            return torch.as_tensor(pixels["pixel_values"][0], dtype=torch.float32)

        return through_processor, spec.notes
    if spec.size is None:
        note = "no preprocessing is known for this model: pixels scaled to 0..1, sizes kept"

        def plain(image: Image.Image) -> Tensor:
            return normalise(_pixels(_to_channels(image, spec.channels)), spec)

        return plain, (*spec.notes, note)

    from timm.data import create_transform

    config = loaded.preprocess
    resize = create_transform(
        input_size=(spec.channels, *spec.size),
        is_training=False,
        interpolation=config.get("interpolation", "bilinear"),
        mean=spec.mean or (0.0,) * spec.channels,
        std=spec.std or (1.0,) * spec.channels,
        crop_pct=config.get("crop_pct"),
        crop_mode=config.get("crop_mode"),
    )

    def through_timm(image: Image.Image) -> Tensor:
        image = _to_channels(image, spec.channels)
        if (image.height, image.width) == spec.size:
            return normalise(_pixels(image), spec)
        tensor: Tensor = resize(image)
        return tensor

    return through_timm, spec.notes


def open_image(source: Path | bytes | Image.Image | np.ndarray[Any, Any], name: str) -> Image.Image:
    """Decode one image fully.

    Args:
        source: A file, an encoded file in memory, a decoded image, or a uint8 array
            ``(H, W)`` or ``(H, W, C)``.
        name: What to call it in a message.

    Raises:
        DataError: It does not decode, is in no listed format, or is a decompression bomb.
    """
    if isinstance(source, Image.Image):
        return source
    if isinstance(source, np.ndarray):
        array = source[..., 0] if source.ndim == 3 and source.shape[-1] == 1 else source
        return Image.fromarray(np.ascontiguousarray(array))
    if isinstance(source, Path) and not source.is_file():
        what = "a device, pipe or folder" if source.exists() else "no such file"
        raise DataError(f"{name}: the image cannot be read ({what})")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            opened = io.BytesIO(source) if isinstance(source, bytes) else source
            with Image.open(opened, formats=IMAGE_FORMATS) as image:
                image.load()
                return image.copy()
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise DataError(f"{name}: a decompression bomb ({error})") from error
    except Exception as error:  # damaged files make Pillow's decoders raise anything at all
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        if isinstance(error, UnidentifiedImageError):
            reason = f"none of {', '.join(IMAGE_FORMATS)}"
        raise DataError(f"{name}: the image does not decode ({reason})") from error


def normalise(pixels: Tensor, spec: ImageSpec) -> Tensor:
    """(pixels - mean) / std per channel, for pixels in 0..1 of shape ``(..., C, H, W)``."""
    if spec.mean is None or spec.std is None:
        return pixels
    mean = torch.tensor(spec.mean).view(-1, 1, 1)
    std = torch.tensor(spec.std).view(-1, 1, 1)
    return (pixels - mean) / std


@dataclass(frozen=True)
class ArrayImages:
    """How images stored as numbers are read, decided once for the whole array.

    Attributes:
        channels_first: ``(C, H, W)`` rather than ``(H, W, C)``.
        scale: Pixels are divided by this; None takes the values as already normalised.
        notes: Sentences for the report.
    """

    channels_first: bool
    scale: float | None
    notes: tuple[str, ...]


def array_images(whole: np.ndarray[Any, Any], channels: int) -> ArrayImages:
    """Decide layout and range of an array of images ``(N, H, W)``, ``(N, H, W, C)`` or
    ``(N, C, H, W)``.

    Values within 0..1 are pixels, as are uint8, uint16, and others that reach past half of
    0..255; other floats are taken as already normalised, and the notes say so.

    Raises:
        DataError: Another number of dimensions or channels, no numbers, or integers of another
            range.
    """
    if whole.ndim not in (3, 4) or whole.dtype.kind not in "uif":
        raise DataError(
            f"an array of shape {whole.shape} and type {whole.dtype} holds no images",
            hint="images are (N, H, W), (N, H, W, C) or (N, C, H, W)",
        )
    first = False
    if whole.ndim == 4:
        known = (channels, 1, 3, 4)
        last_fits, first_fits = whole.shape[3] in known, whole.shape[1] in known
        if not last_fits and not first_fits:
            raise DataError(f"an array of shape {whole.shape} has no axis of 1, 3 or 4 channels")
        first = first_fits and (not last_fits or whole.shape[3] != channels)
    low, high = (float(whole.min()), float(whole.max())) if whole.size else (0.0, 0.0)
    if whole.dtype == np.uint8 or (low >= 0 and _BYTE / 2 < high <= _BYTE):
        return ArrayImages(first, _BYTE, ())
    if low >= 0 and high <= 1:
        return ArrayImages(first, 1.0, ())
    if whole.dtype == np.uint16:
        return ArrayImages(first, float(np.iinfo(np.uint16).max), ("16-bit values",))
    if whole.dtype.kind in "ui":
        raise DataError(
            f"integers between {low:.4g} and {high:.4g} are no bytes, and not normalised",
            hint="save the images as uint8, or divided by their largest value as floats",
        )
    note = f"values between {low:.4g} and {high:.4g} taken as already normalised"
    return ArrayImages(first, None, (note,))


def array_pipeline(
    loaded: LoadedModel, layout: ArrayImages
) -> tuple[Callable[[np.ndarray[Any, Any]], Tensor], tuple[str, ...]]:
    """A function from one array image to the tensor ``(C, H, W)``, and notes.

    uint8 goes through `image_pipeline`, other pixels are resized without a crop, and
    normalised values are taken as they are.
    """
    spec = image_spec(loaded)
    through_image, notes = image_pipeline(loaded)

    def convert(array: np.ndarray[Any, Any]) -> Tensor:
        if layout.channels_first and array.ndim == 3:
            array = np.moveaxis(array, 0, -1)
        if array.dtype == np.uint8:
            return through_image(open_image(array, "array"))
        pixels = torch.from_numpy(np.array(array, dtype=np.float32))
        pixels = pixels[None] if pixels.ndim == 2 else pixels.movedim(-1, 0)
        pixels = _tensor_channels(pixels, spec.channels)
        if layout.scale is None:
            if spec.size is not None and tuple(pixels.shape[1:]) != spec.size:
                raise DataError(
                    f"normalised images of {tuple(pixels.shape[1:])} for a model that takes "
                    f"{spec.size}",
                    hint="save the images as uint8, so that they can be resized",
                )
            return pixels
        pixels = pixels / layout.scale
        if spec.size is not None and tuple(pixels.shape[1:]) != spec.size:
            pixels = nn.functional.interpolate(
                pixels[None], spec.size, mode="bilinear", antialias=True
            )[0]
        return normalise(pixels, spec)

    return convert, (*notes, *layout.notes)


def load_image_processor(loaded: LoadedModel) -> Any:
    """The checkpoint's own image processor: local files only, none of its code run.

    Raises:
        DataError: It cannot be loaded.
    """
    from transformers import AutoImageProcessor

    folder = loaded.preprocess["image_processor"]
    try:
        return AutoImageProcessor.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # a damaged config surfaces as any type
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DataError(f"{folder}: its image processor cannot be loaded ({reason})") from error


def _to_channels(image: Image.Image, channels: int) -> Image.Image:
    if image.mode.startswith("I"):
        # Pillow's own conversion of 16-bit grey clips instead of scaling.
        grey = np.asarray(image).astype(np.float64)
        image = Image.fromarray(np.clip(grey / 257.0, 0, _BYTE).astype(np.uint8))
    if image.mode == "F":
        raise DataError("an image of floating-point pixels, whose range is not known")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # what Pillow would warn about
    mode = {1: "L", 3: "RGB", 4: "RGBA"}.get(channels)
    if mode is None:
        if len(image.getbands()) == channels:
            return image
        raise DataError(f"a {image.mode} image for a model with {channels} input channels")
    return image if image.mode == mode else image.convert(mode)


def _tensor_channels(pixels: Tensor, channels: int) -> Tensor:
    have = pixels.shape[0]
    if have == channels:
        return pixels
    if have == 1:
        return pixels.expand(channels, -1, -1).clone()
    if have in (3, 4) and channels in (1, 3):
        colour = pixels[:3]
        # ITU-R 601-2 luma, as Pillow converts to grey.
        luma = torch.tensor([0.299, 0.587, 0.114], dtype=pixels.dtype).view(3, 1, 1)
        return colour if channels == 3 else (colour * luma).sum(0, keepdim=True)
    raise DataError(f"{have}-channel images for a model with {channels} input channels")


def _pixels(image: Image.Image) -> Tensor:
    array = np.array(image, dtype=np.float32) / _BYTE
    return torch.from_numpy(array[None] if array.ndim == 2 else np.moveaxis(array, -1, 0).copy())


def _first_conv_channels(model: nn.Module) -> int | None:
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            return module.in_channels
    return None


def _processor_size(processor: Any) -> tuple[int, int] | None:
    crop = getattr(processor, "crop_size", None) if getattr(processor, "do_center_crop", 0) else {}
    for size in (crop, getattr(processor, "size", None)):
        height = size and (_get(size, "height") or _get(size, "shortest_edge"))
        width = size and (_get(size, "width") or _get(size, "shortest_edge"))
        if height and width:
            return int(height), int(width)
    return None


def _get(size: Any, key: str) -> Any:
    return size.get(key) if hasattr(size, "get") else getattr(size, key, None)


def _floats(values: Any) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
