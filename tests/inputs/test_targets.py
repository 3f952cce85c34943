"""Labels in several columns, one-hot labels, and rows marked as unlabelled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from datamakers import bert, image_model

from clcurv.errors import DataError, MismatchError
from clcurv.inputs.dataset import load_samples


def test_several_label_columns_of_a_regression(tmp_path: Path) -> None:
    model = image_model(2, modality="array", task="regression")
    np.savez(tmp_path / "x.npz", x=np.zeros((4, 3, 5, 5), np.float32), y=np.ones((4, 2)))
    assert load_samples(tmp_path / "x.npz", model).targets.shape == (4, 2)
    path = tmp_path / "a.csv"
    path.write_text("text,valence,arousal\nthe cat,0.5,1\na dog,-1,2\nthe mat,0,0\n")
    texts = bert("classification", tmp_path / "bert")
    columns = {"label": "valence, arousal"}
    sample = load_samples(path, texts, columns=columns, loss="mse")
    rows = {tuple(row) for row in sample.targets.tolist()}
    assert rows == {(0.5, 1.0), (-1.0, 2.0), (0.0, 0.0)}
    assert any("text -> valence + arousal" in note for note in sample.notes)
    with pytest.raises(DataError, match="real numbers, not classes"):
        load_samples(path, texts, columns=columns)
    (tmp_path / "b.csv").write_text("text,valence,arousal,power\nthe cat,0,1,2\na dog,0,1,3\n")
    three = {"label": ["valence", "arousal", "power"]}
    with pytest.raises(MismatchError, match="3 values for a model with 2 outputs"):
        load_samples(tmp_path / "b.csv", texts, columns=three, loss="mse")


def test_one_hot_labels(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,no,yes\nthe cat,1,0\na dog,0,1\nthe mat,0,1\n")
    model = bert("classification", tmp_path / "bert")
    sample = load_samples(path, model, columns={"label": "no,yes"})
    assert sample.class_counts == {0: 1, 1: 2}
    assert any("position of the 1 among 2" in note for note in sample.notes)
    x = torch.zeros(3, 3, 5, 5)
    y = np.eye(3)[[2, 0, 2]]
    one_hot = load_samples((x, y), image_model(3, modality="array"))
    assert one_hot.class_counts == {0: 1, 2: 2}
    with pytest.raises(DataError, match="several classes, or none") as caught:
        load_samples((x, np.ones((3, 3))), image_model(3, modality="array"))
    assert caught.value.hint == "measure the squared loss with --loss mse"


def test_rows_marked_as_unlabelled() -> None:
    x, y = torch.randn(5, 3, 5, 5), torch.tensor([0, 1, -1, 1, -1])
    model = image_model(2, modality="array")
    with pytest.raises(MismatchError, match="label '-1' lies outside") as caught:
        load_samples((x, y), model)
    assert "--skip-bad" in (caught.value.hint or "")
    sample = load_samples((x, y), model, skip_bad=True)
    assert sample.class_counts == {0: 1, 1: 2}
    assert len(sample.skipped) == 2
    assert "2 samples could not be used" in sample.warnings[0]
    with pytest.raises(MismatchError, match="label '-2'"):  # no such convention
        load_samples((x, torch.tensor([0, 1, -2, 1, 1])), model, skip_bad=True)


def test_other_label_columns_are_told(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,fine_label,coarse_label\nthe cat,0,5\na dog,1,6\n")
    sample = load_samples(path, bert("classification", tmp_path / "bert"))
    assert sample.class_counts == {0: 1, 1: 1}
    assert any("there is also coarse_label" in note for note in sample.notes)
