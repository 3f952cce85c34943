"""`clcurv relimp` on the shipped ResNet and ViT, digits split into two tasks."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from program import SAMPLES, Ran, program
from safetensors.torch import load_file

from clcurv.inputs.architecture import load_model
from clcurv.inputs.dataset import load_samples

N = 15
OLD, NEW = range(5), range(5, 10)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits 0 to 4 and 5 to 9, as folders and as arrays."""
    folder = tmp_path_factory.mktemp("split")
    with np.load(SAMPLES / "digits_held_out.npz") as held:
        x, y = held["x"], held["y"]
    for name, digits in (("old", OLD), ("new", NEW)):
        rows = np.isin(y, list(digits))
        np.savez(folder / f"{name}.npz", x=x[rows], y=y[rows])
        for digit in digits:
            shutil.copytree(SAMPLES / "digits_images" / str(digit), folder / name / str(digit))
    return folder


def relimp(network: str, tasks: Path, *more: object) -> Ran:
    suffix = "" if network == "digits_resnet" else ".npz"
    return program(
        *("relimp", SAMPLES / network, "--past", tasks / f"old{suffix}"),
        *("--current", tasks / f"new{suffix}", "--samples", N, "--epochs", 1, "--lr", 1e-3),
        *("--train-batch-size", 5, "-q", *more),
    )


@pytest.mark.parametrize("network", ["digits_resnet", "digits_vit.pt"])
def test_split_digits(network: str, tasks: Path, tmp_path: Path) -> None:
    past, alpha = tmp_path / "past.safetensors", tmp_path / "alpha.safetensors"
    ran = relimp(network, tasks, "--save-importance", past, "--multipliers", alpha)
    assert ran.code == 0, ran.err
    report = ran.report
    assert set(report["past"]["class_counts"]) == {str(i) for i in OLD}
    assert set(report["current"]["class_counts"]) == {str(i) for i in NEW}
    for layer in report["layers"]:
        shares = (layer["protected"], layer["shared"], layer["free"])
        assert sum(shares) == pytest.approx(1)
        assert min(shares) >= 0

    # MAS by its definition: one sample, one gradient, no code of the engine.
    loaded = load_model(SAMPLES / network)
    data = tasks / ("old" if network == "digits_resnet" else "old.npz")
    samples = load_samples(data, loaded, n=N)
    assert samples.digest == report["past"]["digest"]
    model = loaded.model.eval()
    params = dict(model.named_parameters())
    mas = {name: torch.zeros_like(p) for name, p in params.items()}
    assert isinstance(samples.inputs, torch.Tensor)
    for image in samples.inputs:
        grads = torch.autograd.grad(model(image[None]).square().sum(), list(params.values()))
        for total, g in zip(mas.values(), grads, strict=True):
            total += g.abs() / N
    measured = load_file(past)
    assert measured.keys() == mas.keys()
    for name, expected in mas.items():
        error = (measured[name] - expected).abs().max() / expected.abs().max()
        assert error < 1e-4, name

    # Every multiplier is the past's importance times λ_up or λ_down (the paper's form).
    up = {t["name"]: t["lambda_up"] for t in report["tensors"]}
    down = report["penalty"]["lambda_down"]
    for name, value in load_file(alpha).items():
        kept = mas[name] > 1e-3 * mas[name].max()
        ratio = value[kept] / mas[name][kept]
        either = torch.minimum((ratio - up[name]).abs(), (ratio - down).abs())
        assert float(either.max()) < 1e-2 * up[name], name


def test_the_checkpoint_is_never_touched(tasks: Path, tmp_path: Path) -> None:
    copied = tmp_path / "digits_vit.pt"
    shutil.copy(SAMPLES / "digits_vit.pt", copied)
    before = copied.read_bytes()
    ran = program(
        *("relimp", copied, "--past", tasks / "old.npz", "--current", tasks / "new.npz"),
        *("--samples", N, "--epochs", 1, "--lr", 1e-3, "-q"),
    )
    assert ran.code == 0, ran.err
    assert copied.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["digits_vit.pt"]
