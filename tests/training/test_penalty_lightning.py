"""The penalty's callback in Lightning's own Trainer, against a plain loop."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from clcurv.training import ImportancePenalty

lightning = pytest.importorskip("pytorch_lightning", exc_type=ImportError)

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's, on loaders without workers
LR, LAMBDA, BATCH, CLIP = 0.05, 20.0, 4, 0.2


class Classifier(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=LR, momentum=0.9)


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(32, 5, generator=generator), torch.arange(32) % 3


@pytest.mark.parametrize(
    ("accumulate", "clip"), [(1, None), (2, None), (1, CLIP)], ids=["plain", "accumulated", "clip"]
)
def test_lightnings_trainer_does_what_a_loop_does(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, accumulate: int, clip: float | None
) -> None:
    monkeypatch.setattr(logging.getLogger("lightning.pytorch"), "disabled", True)
    model, plain = Classifier(), Classifier()
    alpha = {
        n: torch.rand(p.shape, generator=torch.Generator().manual_seed(2))
        for n, p in plain.net.named_parameters()  # without the module's "net."
    }
    penalty = ImportancePenalty(model, alpha, lambda_=LAMBDA)
    assert penalty.names == tuple(n for n, _ in model.named_parameters())
    callback = penalty.lightning_callback()
    assert isinstance(callback, lightning.Callback)
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        callbacks=[callback],
        accumulate_grad_batches=accumulate,
        gradient_clip_val=clip,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    x, y = data()
    trainer.fit(model, DataLoader(TensorDataset(x, y), batch_size=BATCH))

    start = {n: p.detach().clone() for n, p in plain.net.named_parameters()}
    optimizer = plain.configure_optimizers()
    steps = 0
    for _ in range(2):
        for first in range(0, len(x), BATCH * accumulate):
            rows = slice(first, first + BATCH * accumulate)
            hold = sum(
                LAMBDA / 2 * (alpha[n] * (p - start[n]).square()).sum()
                for n, p in plain.net.named_parameters()
            )
            optimizer.zero_grad()
            (nn.functional.cross_entropy(plain.net(x[rows]), y[rows]) + hold).backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(plain.parameters(), clip)
            optimizer.step()
            steps += 1
    assert trainer.global_step == steps
    for (name, p), q in zip(plain.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(q.detach(), p.detach(), rtol=1e-4, atol=1e-6, msg=name)
    assert penalty.value() > 0
