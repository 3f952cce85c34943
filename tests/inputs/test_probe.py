"""The linear probe against scikit-learn and against refitting without each sample."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path

import numpy as np
import pytest
import scipy.optimize
import timm
import torch
from datamakers import bert, image_model
from sklearn.datasets import load_digits
from sklearn.linear_model import Ridge, RidgeCV
from torch.nn.functional import cross_entropy

from clcurv.errors import DataError, NumericalError, UsageError
from clcurv.inputs.dataset import Samples, load_samples
from clcurv.inputs.loaded import LoadedModel
from clcurv.inputs.probe import ProbedBackbone, fit_ridge, linear_probe


def digits(n: int) -> tuple[np.ndarray, np.ndarray]:
    data = load_digits()
    return data.data[:n].astype(np.float64), data.target[:n].astype(np.int64)


def standardised(x: np.ndarray) -> np.ndarray:
    std = x.std(0)
    return (x - x.mean(0)) / np.where(std > 0, std, 1)


@pytest.mark.parametrize("n", [40, 200])  # fewer and more samples than the 64 features
def test_coefficients_are_scikit_learns(n: int) -> None:
    x, y = digits(n)
    fit = fit_ridge(x, y, 10, ridge=3.0)
    reference = Ridge(alpha=3.0).fit(standardised(x), np.eye(10)[y])
    expected = reference.predict(standardised(x))
    assert np.allclose((x @ fit.weight.T + fit.bias) / fit.scale, expected, atol=1e-8)


def test_lambda_is_the_one_that_scikit_learn_chooses() -> None:
    x, y = digits(200)
    fit = fit_ridge(x, y, 10)
    z = standardised(x)
    grid = np.logspace(-6, 4, 41) * float((np.linalg.svd(z, compute_uv=False) ** 2).mean())
    reference = RidgeCV(alphas=grid).fit(z, np.eye(10)[y])
    assert fit.ridge == pytest.approx(reference.alpha_)


def test_leave_one_out_equals_refitting_without_the_sample() -> None:
    x, y = digits(60)
    fit = fit_ridge(x, y, 10, ridge=5.0)
    z, one_hot = standardised(x), np.eye(10)[y]

    def refitted(i: int) -> np.ndarray:
        return Ridge(alpha=5.0).fit(np.delete(z, i, 0), np.delete(one_hot, i, 0)).predict(z[[i]])[0]

    left_out = np.stack([refitted(i) for i in range(60)])
    assert fit.loo_accuracy == (left_out.argmax(1) == y).mean()

    counts = np.bincount(y)[y][:, None]
    smoothed = np.where(np.eye(10)[y] == 1, counts + 1, 1) / (counts + 10)

    def loss(scale: float, targets: np.ndarray) -> float:
        return cross_entropy(torch.from_numpy(scale * left_out), torch.from_numpy(targets)).item()

    assert fit.loo_loss == pytest.approx(loss(fit.scale, one_hot), rel=1e-9)
    best = scipy.optimize.minimize_scalar(
        loss, args=(smoothed,), bounds=(0.01, 100), method="bounded"
    )
    assert loss(fit.scale, smoothed) == pytest.approx(best.fun, rel=1e-6)


def test_a_separable_sample_keeps_some_doubt() -> None:
    """Its best scale is infinite for one-hot targets; Platt's give 1/(n_c + K) to each other."""
    y = np.arange(30) % 3
    x = 10 * np.eye(3)[y] + 0.01 * np.random.default_rng(0).normal(size=(30, 3))
    fit = fit_ridge(x, y, 3)
    p = torch.from_numpy(x @ fit.weight.T + fit.bias).softmax(dim=1).numpy()
    assert p[np.arange(30), y] == pytest.approx(11 / 13, abs=0.02)


def test_constant_features_are_left_out() -> None:
    x, y = digits(100)
    widened = np.concatenate([x, np.full((100, 1), 7.0)], axis=1)
    fit, plain = fit_ridge(widened, y, 10, ridge=1.0), fit_ridge(x, y, 10, ridge=1.0)
    assert np.allclose(fit.weight[:, :-1], plain.weight)
    assert np.allclose(fit.weight[:, -1], 0)


def test_dead_features_are_left_out() -> None:
    x, y = digits(100)
    whisper = 1e-7 * (np.eye(10)[y] + np.random.default_rng(0).normal(size=(100, 10)))
    fit = fit_ridge(np.concatenate([x, whisper], axis=1), y, 10, ridge=1.0)
    plain = fit_ridge(x, y, 10, ridge=1.0)
    assert np.allclose(fit.weight[:, :64], plain.weight)
    assert np.allclose(fit.weight[:, 64:], 0)


def test_features_that_carry_nothing_are_refused() -> None:
    with pytest.raises(NumericalError, match="same for every sample"):
        fit_ridge(np.ones((4, 3)), np.array([0, 1, 0, 1]), 2)
    with pytest.raises(NumericalError, match="not finite"):
        fit_ridge(np.full((4, 3), np.nan), np.array([0, 1, 0, 1]), 2)


def coloured(n: int = 60) -> Samples:
    """Three classes told apart by their colour."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(n) % 3
    x = 0.3 * torch.randn(n, 3, 16, 16, generator=generator)
    x[torch.arange(n), y] += 1.0
    return Samples(inputs=x, targets=y)


def test_a_wrapped_backbone_classifies() -> None:
    backbone = image_model(None)
    sample = coloured()
    before = copy.deepcopy(backbone.model.state_dict())
    state = torch.random.get_rng_state()
    probed = linear_probe(backbone, sample, batch_size=7)
    assert isinstance(probed.model, ProbedBackbone)
    assert probed.head_params == ("head.weight", "head.bias")
    assert (probed.task, probed.num_classes) == ("classification", 3)
    with torch.no_grad():
        logits = probed.model(sample.inputs)
    assert (logits.argmax(1) == sample.targets).float().mean() > 0.95
    assert cross_entropy(logits, sample.targets).item() < 0.3
    assert "linear probe" in probed.notes[-1]
    assert "with each left out" in probed.notes[-1]
    assert all(p.requires_grad for p in probed.model.parameters())
    assert not probed.model.training
    # The given model and the global generator stay as they were.
    assert all(torch.equal(v, before[k]) for k, v in backbone.model.state_dict().items())
    assert torch.equal(state, torch.random.get_rng_state())
    assert backbone.task == "backbone"


@pytest.mark.parametrize(
    ("name", "options", "head"),
    [
        ("resnet10t", {}, "fc"),
        ("vit_tiny_patch16_224", {"img_size": 32, "depth": 2}, "head"),
    ],
)
def test_timm_models_get_their_own_head_back(name: str, options: dict, head: str) -> None:
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=0, **options).eval()
    names = [n for n, _ in model.named_parameters()]
    sample = coloured(24)
    sample = dataclasses.replace(sample, inputs=sample.inputs.repeat(1, 1, 2, 2))  # type: ignore[union-attr]
    loaded = LoadedModel(model, f"timm:{name}", "option", "image", "backbone", None)
    probed = linear_probe(loaded, sample, batch_size=8)
    assert type(probed.model) is type(model)
    assert probed.head_params == (f"{head}.weight", f"{head}.bias")
    assert [n for n, _ in probed.model.named_parameters() if n not in probed.head_params] == names
    with torch.no_grad():
        features = model(sample.inputs).double().numpy()
        logits = probed.model(sample.inputs).double().numpy()
    fit = fit_ridge(features, sample.targets.numpy(), 3)
    expected = features @ fit.weight.T + fit.bias
    assert np.allclose(logits, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


def test_text_backbones_average_their_unmasked_tokens(tmp_path: Path) -> None:
    backbone = bert("backbone", tmp_path)
    texts = ["the cat sat", "a dog", "cat cat", "dog dog dog", "the cat", "a dog ran on"]
    sample = load_samples((texts, [0, 1, 0, 1, 0, 1]), backbone)
    assert isinstance(sample.inputs, dict)
    probed = linear_probe(backbone, sample)
    with torch.no_grad():
        hidden = backbone.model(**sample.inputs).last_hidden_state
        logits = probed.model(**sample.inputs)
    masks = sample.inputs["attention_mask"]
    means = [h[m == 1].mean(0) for h, m in zip(hidden, masks, strict=True)]
    features = torch.stack(means).double().numpy()
    fit = fit_ridge(features, sample.targets.numpy(), 2)
    assert np.allclose(logits.numpy(), features @ fit.weight.T + fit.bias, atol=1e-3)


def test_labels_that_are_no_classes() -> None:
    x = torch.randn(4, 3, 16, 16)
    for targets, message in (
        (torch.zeros(4, dtype=torch.int64), "two classes"),
        (torch.tensor([0, 1, 5000, 1]), "no class numbers"),
        (torch.randn(4, 1), "one class label"),
    ):
        with pytest.raises(DataError, match=message):
            linear_probe(image_model(None), Samples(inputs=x, targets=targets))


def test_classes_without_samples_are_said() -> None:
    sample = coloured()
    shifted = dataclasses.replace(sample, targets=sample.targets * 2)
    probed = linear_probe(image_model(None), shifted)
    assert probed.num_classes == 5
    assert "2 of the probe's 5 classes have no sample" in probed.notes[-1]


def test_a_model_with_a_head_needs_no_probe() -> None:
    with pytest.raises(UsageError, match="has a classification head already"):
        linear_probe(image_model(3), coloured())
