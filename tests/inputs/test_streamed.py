"""Data sets that are only iterated: a sample is drawn, the rest is never kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from datamakers import bert, image_model, picture
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from clcurv.errors import DataError
from clcurv.inputs.dataset import load_samples
from clcurv.inputs.loaded import LoadedModel

ROWS = [{"text": f"the {w}", "label": i % 10 // 8} for i, w in enumerate(["cat", "dog"] * 100)]


@pytest.fixture(scope="module")
def bert_model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return bert("classification", tmp_path_factory.mktemp("bert"))


def table(rows: list[dict[str, Any]]) -> datasets.Dataset:
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])}
    )
    return datasets.Dataset.from_list(rows, features)


def test_streaming_sets_give_a_balanced_sample(bert_model: LoadedModel) -> None:
    stream = table(ROWS).to_iterable_dataset(num_shards=4)
    samples = [load_samples(stream, bert_model, n=20, seed=s) for s in (0, 0, 1)]
    assert samples[0].class_counts == {0: 10, 1: 10}
    assert samples[0].available == 200
    assert samples[0].digest == samples[1].digest != samples[2].digest
    assert any("while reading all 200 rows" in note for note in samples[0].notes)
    both = datasets.IterableDatasetDict(test=stream.take(4), train=stream)
    assert load_samples(both, bert_model, n=20).available == 200


def test_streams_without_features_and_without_end(bert_model: LoadedModel) -> None:
    def forever() -> Iterator[dict[str, Any]]:
        number = 0
        while True:
            yield {"text": "the cat", "label": number % 2}
            number += 1

    stream = datasets.IterableDataset.from_generator(forever)
    sample = load_samples(stream, bert_model, n=4)
    assert (len(sample), sample.available) == (4, 800)
    assert any("first 800 rows of a stream" in note for note in sample.notes)
    with pytest.raises(DataError, match="no column 'z'"):
        load_samples(stream, bert_model, n=4, columns={"label": "z"})


def test_images_of_a_stream_are_those_of_the_table(tmp_path: Path) -> None:
    images = [picture(seed) for seed in range(8)]
    rows = {"image": images, "label": [0, 1] * 4}
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    whole = datasets.Dataset.from_dict(rows, features)
    expected = load_samples(whole, image_model(), n=8)
    sample = load_samples(whole.to_iterable_dataset(), image_model(), n=8)
    assert sample.digest == expected.digest


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_large_files_are_sampled_while_they_are_read(
    tmp_path: Path, bert_model: LoadedModel, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    path = tmp_path / f"data.{form}"
    if form == "csv":
        lines = [f"{row['text']},{row['label']}" for row in ROWS]
        path.write_text("\n".join(["text,label", *lines]))
    elif form == "jsonl":
        path.write_text("\n".join(json.dumps(row) for row in ROWS))
    else:
        datasets.Dataset.from_list(ROWS).to_parquet(str(path))
    whole = load_samples(path, bert_model, n=200)
    monkeypatch.setattr("clcurv.inputs.tables._STREAM_FROM", 100)
    assert load_samples(path, bert_model, n=200).digest == whole.digest
    few = load_samples(path, bert_model, n=20)
    assert few.class_counts == {0: 10, 1: 10}
    assert few.available == 200
    assert few.format == form
    assert any("while reading all 200 rows" in note for note in few.notes)


def test_a_large_file_that_is_damaged(
    tmp_path: Path, bert_model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [json.dumps(row) for row in ROWS]
    (tmp_path / "a.jsonl").write_text("\n".join([*lines, '{"text": "the c']))
    monkeypatch.setattr("clcurv.inputs.tables._STREAM_FROM", 100)
    with pytest.raises(DataError, match=r"a\.jsonl: cannot be read as jsonl?") as caught:
        load_samples(tmp_path / "a.jsonl", bert_model, n=20)
    assert "\n" not in str(caught.value)


class Numbers(IterableDataset):  # type: ignore[type-arg]
    """An iterable data set gives samples, not batches."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        for number in range(self.count):
            yield torch.full((3, 5, 5), float(number)), number % 10 // 8


def test_iterable_torch_data_sets() -> None:
    model = image_model(modality="array")
    sample = load_samples(Numbers(100), model, n=10)
    assert sample.class_counts == {0: 5, 1: 5}
    assert isinstance(sample.inputs, Tensor)
    assert sample.inputs.shape == (10, 3, 5, 5)
    loaded = load_samples(DataLoader(Numbers(100), batch_size=7), model, n=10)
    assert loaded.digest == sample.digest
    ended = load_samples(Numbers(10**9), model, n=10)
    assert ended.available == 320


class Counted(Dataset):  # type: ignore[type-arg]
    """A map-style set that says how many of its rows are alive."""

    alive = most = 0

    def __len__(self) -> int:
        return 300

    def __getitem__(self, row: int) -> tuple[np.ndarray[Any, Any], np.int64]:
        if row >= 300:
            raise IndexError
        outer = type(self)

        class Row(np.ndarray):  # type: ignore[type-arg]
            def __del__(self) -> None:
                outer.alive -= 1

        outer.alive += 1
        outer.most = max(outer.most, outer.alive)
        return np.zeros((3, 5, 5), np.float32).view(Row), np.int64(row % 2)


def test_rows_of_a_map_style_set_are_not_all_kept() -> None:
    sample = load_samples(Counted(), image_model(modality="array"), n=10)
    assert sample.class_counts == {0: 5, 1: 5}
    assert sample.available == 300
    assert Counted.most < 40


def test_batches_with_too_few_labels() -> None:
    batches = [(torch.zeros(4, 3, 5, 5), torch.zeros(3, dtype=torch.int64))]
    with pytest.raises(DataError, match="a batch of 4 inputs has 3 labels"):
        load_samples(batches, image_model(modality="array"))
