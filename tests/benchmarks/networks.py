"""The two networks of the benchmarks, trained on scikit-learn's digits when first asked for.

Both are scored and measured on the same 192 digits (three batches of 64) that neither was
trained on. Training is seeded and runs on one thread; the weights are kept in the cache folder
that the caller names, so that every run of a benchmark there measures the same network.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import timm
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

Network = tuple[nn.Module, Tensor, Tensor]

SEED = 0
HELD_OUT = 192
RECIPE = 1  # part of the cached file's name: raise it when the training below changes


def digits_resnet18(cache: Path) -> Network:
    """timm's ResNet-18, standard 7 x 7 stem, on digits enlarged to 3 x 32 x 32.

    Args:
        cache: Folder for the trained weights; made if missing.

    Returns:
        The network in eval mode (float32, 21 weight tensors of two or more dimensions), images
        (192, 3, 32, 32) and labels (192,).

    Raises:
        RuntimeError: It did not reach 97 % on the 192 digits.
    """
    images, labels = digits(size=32, channels=3)

    def build() -> nn.Module:
        return timm.create_model("resnet18", num_classes=10)

    def fit(model: nn.Module) -> None:
        optimizer = torch.optim.SGD(
            model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=True
        )
        train(model, images[HELD_OUT:], labels[HELD_OUT:], optimizer, epochs=3)

    return trained("resnet18", cache, build, fit, images, labels, (0.97, 1.0))


def digits_vit6(cache: Path, *, full: bool = False) -> Network:
    """A six-block ViT of width 64 on 1 x 16 x 16 digits, 17 tokens, stopped half-way.

    Hardly fitted networks are the hard case: the spectra of their attention blocks are clustered
    and their Hessian is far from its Gauss-Newton part.

    Args:
        cache: Folder for the trained weights; made if missing.
        full: Train on to at least 93 % instead of stopping at the first check above 65 %.

    Returns:
        The network in eval mode (float32, 26 weight matrices: patch embedding, four a block, head),
        images (192, 1, 16, 16) and labels (192,).

    Raises:
        RuntimeError: The accuracy on the 192 digits is not between 60 and 80 % (half-trained), or
            below 93 % (full).
    """
    images, labels = digits(size=16, channels=1)

    def build() -> nn.Module:
        return timm.create_model(
            "vit_tiny_patch16_224",
            num_classes=10,
            in_chans=1,
            img_size=16,
            patch_size=4,
            embed_dim=64,
            depth=6,
            num_heads=4,
            # timm's default start (std 0.02) is made for hundreds of channels.
            weight_init="jax",
        )

    def half_way(model: nn.Module) -> bool:
        return accuracy(model, images[:HELD_OUT], labels[:HELD_OUT]) > 0.65

    def fit(model: nn.Module) -> None:
        rate = 1.5e-3 if full else 3e-4
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.05)
        stop = None if full else half_way
        train(model, images[HELD_OUT:], labels[HELD_OUT:], optimizer, epochs=20, stop=stop)

    name, bounds = ("vit6-full", (0.93, 1.0)) if full else ("vit6-half", (0.6, 0.8))
    return trained(name, cache, build, fit, images, labels, bounds)


def digits(*, size: int, channels: int) -> tuple[Tensor, Tensor]:
    """All 1,797 digits in a fixed random order, standardised; the first 192 are held out."""
    data = load_digits()
    images = torch.from_numpy(data.images).float().unsqueeze(1)
    images = F.interpolate(images, size=(size, size), mode="bilinear", align_corners=False)
    images = ((images - images.mean()) / images.std()).repeat(1, channels, 1, 1)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(SEED))
    return images[order], torch.from_numpy(data.target).long()[order]


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Share of right answers in eval mode; the mode is put back."""
    training = model.training
    model.eval()
    with torch.no_grad():
        right = (model(images).argmax(1) == labels).float().mean().item()
    model.train(training)
    return right


def train(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    optimizer: torch.optim.Optimizer,
    *,
    epochs: int,
    stop: Callable[[nn.Module], bool] | None = None,
) -> None:
    """Batches of 32, one learning-rate cycle, or a constant rate when there is a `stop`.

    `stop` is asked after every fourth step.
    """
    generator = torch.Generator().manual_seed(SEED)
    steps = len(images) // 32
    schedule = None
    if stop is None:
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, optimizer.param_groups[0]["lr"], total_steps=epochs * steps
        )
    model.train()
    for _ in range(epochs):
        order = torch.randperm(len(images), generator=generator)[: steps * 32]
        for step, rows in enumerate(order.split(32)):
            loss = F.cross_entropy(model(images[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if schedule is not None:
                schedule.step()
            if stop is not None and step % 4 == 3 and stop(model):
                return


def trained(
    name: str,
    cache: Path,
    build: Callable[[], nn.Module],
    fit: Callable[[nn.Module], None],
    images: Tensor,
    labels: Tensor,
    bounds: tuple[float, float],
) -> Network:
    """The network from the cache, or trained and put there; checked either way."""
    file = cache / f"digits-{name}-recipe{RECIPE}.pt"
    with one_thread(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = build()
        fresh = not file.is_file()
        if fresh:
            fit(model)
        else:
            model.load_state_dict(torch.load(file, weights_only=True))
        model.eval()
        x, y = images[:HELD_OUT].clone(), labels[:HELD_OUT].clone()
        reached = accuracy(model, x, y)
    low, high = bounds
    if not low <= reached <= high:
        raise RuntimeError(f"{name}: accuracy {reached:.3f}, not between {low} and {high} ({file})")
    if fresh:
        cache.mkdir(parents=True, exist_ok=True)
        # Whole or not at all, also when two benchmarks train at the same moment.
        partial = file.with_suffix(f".{os.getpid()}.tmp")
        torch.save(model.state_dict(), partial)
        partial.replace(file)
    return model, x, y


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums in the same order whatever the machine's core count."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
