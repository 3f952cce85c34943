"""Images and texts reach the model the way its own config says."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skimage
import torch
from datamakers import TIMM_CONFIG, WORDS, bert, image_model, picture, save_tokenizer
from PIL import Image
from timm.data import create_transform

from clcurv.errors import DataError, UsageError
from clcurv.inputs import tokens
from clcurv.inputs.dataset import load_samples
from clcurv.inputs.loaded import LoadedModel
from clcurv.inputs.preprocess import (
    array_images,
    array_pipeline,
    image_pipeline,
    image_spec,
    load_image_processor,
    open_image,
)
from clcurv.inputs.tokens import (
    IGNORED,
    Vocabulary,
    encode_text,
    load_tokenizer,
    mask_tokens,
    max_tokens,
    token_inputs,
    vocabulary,
)

CHELSEA = Path(skimage.__file__).parent / "data" / "chelsea.png"
MASK = WORDS.index("[MASK]")


# --- images --------------------------------------------------------------------------------


def test_images_go_through_timms_own_transform() -> None:
    convert, notes = image_pipeline(image_model())
    image = Image.open(CHELSEA)
    assert torch.equal(convert(image), create_transform(**TIMM_CONFIG, is_training=False)(image))
    assert notes == ()


def test_an_image_of_the_models_size_is_only_normalised() -> None:
    image = picture(0)
    pixels = torch.from_numpy(np.array(image)).movedim(-1, 0) / 255
    mean, std = (torch.tensor(TIMM_CONFIG[k]).view(3, 1, 1) for k in ("mean", "std"))
    assert torch.allclose(image_pipeline(image_model())[0](image), (pixels - mean) / std)


def test_grey_models_get_grey_images() -> None:
    model = image_model(channels=1)
    assert image_spec(model).channels == 1  # by its convolution: the config says 3
    assert image_spec(model).mean == pytest.approx((0.4,))
    tensor = image_pipeline(model)[0](Image.open(CHELSEA))
    assert tensor.shape == (1, 16, 16)
    colour = image_pipeline(image_model())[0](picture(1, mode="L"))
    assert colour.shape == (3, 16, 16)


def test_sixteen_bit_grey_is_scaled_not_clipped() -> None:
    grey = Image.fromarray(np.full((16, 16), 32896, dtype=np.uint16))
    tensor = image_pipeline(image_model(channels=1))[0](grey)
    assert tensor.mean().item() == pytest.approx((128 / 255 - 0.4) / 0.25, abs=1e-3)


def test_without_a_config_pixels_are_only_scaled() -> None:
    convert, notes = image_pipeline(image_model(preprocess={}))
    tensor = convert(picture(0, size=(9, 7)))
    assert tensor.shape == (3, 7, 9)
    assert 0 <= tensor.min() < tensor.max() <= 1
    assert "no preprocessing is known" in notes[0]


def test_sizes_must_agree_without_a_config(tmp_path: Path) -> None:
    for label, size in (("a", (9, 9)), ("b", (8, 9))):
        (tmp_path / label).mkdir()
        picture(0, size=size).save(tmp_path / label / "0.png")
    with pytest.raises(DataError, match="different shapes"):
        load_samples(tmp_path, image_model(preprocess={}))


def test_hugging_face_processors(tmp_path: Path) -> None:
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(tmp_path / "model")
    config = ViTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        image_size=16, patch_size=8, num_labels=2,
    )  # fmt: skip
    loaded = LoadedModel(
        model=ViTForImageClassification(config).eval(),
        arch="hf:ViTForImageClassification",
        arch_source="config",
        modality="image",
        task="classification",
        num_classes=2,
        preprocess={"image_processor": str(tmp_path / "model")},
    )
    assert image_spec(loaded).size == (16, 16)
    for label in "ab":
        (tmp_path / "images" / label).mkdir(parents=True)
        Image.new("RGB", (20, 30), (255, 0, 255)).save(tmp_path / "images" / label / "0.png")
    sample = load_samples(tmp_path / "images", loaded)
    assert isinstance(sample.inputs, dict)
    pixels = sample.inputs["pixel_values"]
    assert pixels.shape == (2, 3, 16, 16)
    assert pixels[0, :, 0, 0].tolist() == pytest.approx([1, -1, 1])
    assert loaded.model(**sample.inputs).logits.shape == (2, 2)


def encoded(image: Image.Image, form: str) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form)
    return buffer.getvalue()


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF", "PPM"])
def test_allowed_formats_decode(form: str) -> None:
    assert open_image(encoded(picture(0), form), "a").size == (16, 16)


@pytest.mark.parametrize("form", ["ICO", "SGI", "TGA", "EPS"])
def test_other_formats_are_refused(form: str) -> None:
    with pytest.raises(DataError, match="none of JPEG"):
        open_image(encoded(picture(0), form), "a")


@pytest.mark.parametrize("factor", [1.5, 3.0])
def test_decompression_bombs_are_refused(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(picture(0), "PNG")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", int(256 / factor))
    with pytest.raises(DataError, match="decompression bomb"):
        open_image(data, "a")


def test_cut_images_are_refused() -> None:
    for form in ("PNG", "JPEG", "WEBP"):
        data = encoded(picture(0, size=(64, 64)), form)
        with pytest.raises(DataError, match=r"a\.png: the image does not decode"):
            open_image(data[: len(data) // 2], "a.png")


@pytest.mark.parametrize(
    ("shape", "channels", "first"),
    [((5, 8, 8), 1, False), ((5, 8, 8, 3), 3, False), ((5, 3, 8, 8), 3, True),
     ((5, 1, 8, 8), 1, True), ((5, 3, 8, 3), 3, False), ((5, 1, 8, 8), 3, True)],
)  # fmt: skip
def test_layout_of_arrays(shape: tuple[int, ...], channels: int, first: bool) -> None:
    assert array_images(np.zeros(shape, np.uint8), channels).channels_first is first


@pytest.mark.parametrize(
    ("low", "high", "scale"), [(0, 1, 1), (0, 255, 255), (0, 16, None), (-2, 2, None)]
)
def test_range_of_arrays(low: float, high: float, scale: float | None) -> None:
    array = np.linspace(low, high, 64).reshape(1, 8, 8)
    found = array_images(array, 1)
    assert found.scale == scale
    assert (found.notes == ()) is (scale is not None)


def test_integers_that_are_no_bytes() -> None:
    """They cannot be normalised values, and would be measured as such without a word."""
    model = image_model()
    for dtype, top in ((np.uint8, 255), (np.uint16, 65535)):
        array = np.full((1, 16, 16, 3), top, dtype)
        array[0, 0] = 0
        convert, _ = array_pipeline(model, array_images(array, 3))
        white = [(1 - 0.5) / 0.2, (1 - 0.4) / 0.25, (1 - 0.3) / 0.3]
        assert convert(array[0])[:, 8, 8].tolist() == pytest.approx(white, rel=1e-2)
    for dtype in (np.int64, np.uint32, np.int16):
        with pytest.raises(DataError, match="integers between 0 and 16 are no bytes"):
            array_images(np.linspace(0, 16, 192).reshape(1, 8, 8, 3).astype(dtype), 3)


def test_float_arrays_are_resized_and_normalised() -> None:
    model = image_model()
    array = np.full((1, 8, 8, 3), 0.5, np.float32)
    convert, _ = array_pipeline(model, array_images(array, 3))
    tensor = convert(array[0])
    assert tensor.shape == (3, 16, 16)
    assert tensor[:, 0, 0].tolist() == pytest.approx([0, 0.1 / 0.25, 0.2 / 0.3])


@pytest.mark.parametrize("shape", [(4,), (4, 5), (2, 5, 5, 7)])
def test_arrays_that_are_no_images(shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match="shape"):
        array_images(np.zeros(shape), 3)


# --- text ----------------------------------------------------------------------------------


def test_text_is_padded_and_cut_at_the_models_limit(tmp_path: Path) -> None:
    model = bert("classification", tmp_path)
    encoded = encode_text(["the cat sat", "a dog", "the " * 40], model)
    assert encoded["input_ids"].shape == (3, 12)
    assert encoded["input_ids"][1].tolist() == [2, 6, 8, 3, *[0] * 8]
    assert encoded["attention_mask"].sum(1).tolist() == [5, 4, 12]
    assert all(tensor.dtype == torch.int64 for tensor in encoded.values())
    assert encode_text(["the " * 40], model, max_length=7)["input_ids"].shape == (1, 7)
    assert max_tokens(model, None, 99) == 12


def test_a_length_that_leaves_no_word(tmp_path: Path) -> None:
    model = bert("classification", tmp_path)
    for texts, least in ((["the cat"], 3), ([("the cat", "a dog")], 4)):
        assert encode_text(texts, model, max_length=least)["input_ids"].shape == (1, least)
        with pytest.raises(UsageError, match=f"the tokenizer alone adds {least - 1}") as caught:
            encode_text(texts, model, max_length=least - 1)
        assert caught.value.hint == f"--max-length {least} or more"


def test_very_long_texts_cost_no_more_than_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = bert("classification", tmp_path)
    read: list[int] = []

    class Counting:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def __call__(self, texts: list[str], *rest: Any, **options: Any) -> Any:
            read.extend(map(len, texts))
            return self.inner(texts, *rest, **options)

    monkeypatch.setattr(tokens, "load_tokenizer", lambda m: Counting(load_tokenizer(m)))
    found = encode_text(["the cat " * 4_000_000, "a dog"], model)["input_ids"]
    limit = found.shape[1]
    assert sum(read) <= 2000 * limit + len("a dog")
    assert torch.equal(found, encode_text(["the cat " * limit, "a dog"], model)["input_ids"])


def test_pairs_of_texts(tmp_path: Path) -> None:
    encoded = encode_text([("the cat", "a dog")], bert("classification", tmp_path))
    assert encoded["input_ids"].tolist() == [[2, 5, 7, 3, 6, 8, 3]]
    assert encoded["token_type_ids"].tolist() == [[0, 0, 0, 0, 1, 1, 1]]


def test_text_needs_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no tokenizer"):
        encode_text(["a"], image_model())
    broken = save_tokenizer(tmp_path / "broken")
    (broken / "tokenizer.json").write_text("{")
    (broken / "tokenizer_config.json").write_text("{")
    model = bert("classification", tmp_path / "good")
    model.preprocess["tokenizer"] = str(broken)
    with pytest.raises(DataError, match="cannot be loaded"):
        encode_text(["a"], model)


@pytest.mark.parametrize("family", ["llama", "bert", "gpt2", "xlm-roberta", "t5", "deberta-v2"])
def test_a_folder_without_tokenizer_files_has_none(tmp_path: Path, family: str) -> None:
    """Whatever transformers raises, or makes up, for the family."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    model = image_model(preprocess={"tokenizer": str(tmp_path)})
    assert load_tokenizer(model) is None
    with pytest.raises(DataError, match="no tokenizer to read text with"):
        encode_text(["a"], model)


def test_no_code_of_the_checkpoint_runs(tmp_path: Path) -> None:
    folder, marker = save_tokenizer(tmp_path / "folder"), tmp_path / "ran"
    (folder / "evil.py").write_text(f"open({str(marker)!r}, 'w')\nclass Evil: pass\n")
    entry = {"AutoTokenizer": ["evil.Evil", None], "AutoImageProcessor": "evil.Evil"}
    for name, kind in (("tokenizer", "tokenizer_class"), ("preprocessor", "image_processor_type")):
        config = {"auto_map": entry, kind: "Evil"}
        (folder / f"{name}_config.json").write_text(json.dumps(config))
    model = image_model(preprocess={"tokenizer": str(folder), "image_processor": str(folder)})
    for read in (lambda: encode_text(["a"], model), lambda: load_image_processor(model)):
        with pytest.raises(DataError, match="cannot be loaded"):
            read()
    assert not marker.exists()


def test_causal_targets_are_the_tokens_without_padding(tmp_path: Path) -> None:
    model = bert("causal-lm", tmp_path)
    sample = load_samples((["the cat sat on the mat", "a dog"], None), model)
    assert isinstance(sample.inputs, dict)
    ids, mask = sample.inputs["input_ids"], sample.inputs["attention_mask"]
    assert torch.equal(sample.targets[mask == 1], ids[mask == 1])
    assert (sample.targets[mask == 0] == IGNORED).all()
    assert (mask == 0).any()


def test_masking_follows_the_published_shares() -> None:
    vocab = Vocabulary(1000, frozenset(range(5)), mask=4, pad=0)
    rng = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 1000, (400, 100), generator=rng)
    ids[:, 0], ids[:, -1] = 2, 3
    attention = torch.ones_like(ids)
    attention[:, 80:] = 0
    inputs, targets = mask_tokens({"input_ids": ids, "attention_mask": attention}, vocab, seed=1)
    assert isinstance(inputs, dict)
    scored = targets != IGNORED
    words = (attention == 1) & (ids >= 5)
    assert not (scored & ~words).any()
    assert scored[words].float().mean().item() == pytest.approx(0.15, abs=0.01)
    assert torch.equal(targets[scored], ids[scored])
    shown = inputs["input_ids"]
    assert torch.equal(shown[~scored], ids[~scored])
    assert (shown[scored] == 4).float().mean().item() == pytest.approx(0.8, abs=0.02)
    assert (shown[scored] == ids[scored]).float().mean().item() == pytest.approx(0.1, abs=0.02)
    again = mask_tokens({"input_ids": ids, "attention_mask": attention}, vocab, seed=1)
    assert torch.equal(again[1], targets)


def test_every_row_is_scored_somewhere(tmp_path: Path) -> None:
    model = bert("masked-lm", tmp_path)
    sample = load_samples((["a", "the cat", "dog"], None), model)
    assert ((sample.targets != IGNORED).sum(1) >= 1).all()
    assert isinstance(sample.inputs, dict)
    assert model.model(**sample.inputs).logits.shape == (*sample.targets.shape, len(WORDS))


def test_token_ids_given_as_numbers(tmp_path: Path) -> None:
    model = bert("classification", tmp_path)
    inputs = token_inputs([np.array([2, 5, 3]), np.array([2, 3])], model)
    assert isinstance(inputs, dict)
    assert inputs["input_ids"].tolist() == [[2, 5, 3], [2, 3, 0]]
    assert inputs["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    with pytest.raises(DataError, match="do not fit a vocabulary of 16"):
        token_inputs([np.array([2, 99])], model)
    with pytest.raises(DataError, match="whole numbers"):
        token_inputs([np.array([0.5])], model)


def test_vocabulary_without_tokenizer_comes_from_the_config(tmp_path: Path) -> None:
    model = bert("classification", tmp_path)
    model.preprocess.clear()
    found = vocabulary(model)
    assert (found.size, found.pad, found.mask) == (16, 0, None)
    assert 0 not in found.words()
    with pytest.raises(DataError, match="vocabulary is not known"):
        vocabulary(image_model())
