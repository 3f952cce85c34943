"""Dense float64 curvature blocks of small networks, made without clcurv's product code.

The losses are written out again here, so that a fault in `clcurv.curvature.objective` shows.
Hessians come row by row from autograd, or from central differences of first gradients;
Jacobians row by row; everything between parameters and rows is the network's own forward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

Inputs = Tensor | Mapping[str, Tensor]
Block = Sequence[nn.Parameter]


def rows_of(model: nn.Module, inputs: Inputs, targets: Tensor, loss: str) -> tuple[Tensor, Tensor]:
    """Outputs (T, C) and targets of the scored terms alone."""
    out = model(inputs) if isinstance(inputs, Tensor) else model(**inputs)
    out = getattr(out, "logits", out)
    if loss == "mse":
        if not targets.is_floating_point():
            targets = torch.eye(out.shape[-1], dtype=out.dtype)[targets]
        return out.reshape(len(out), -1), targets.reshape(len(targets), -1)
    if loss == "next-token":
        out, targets = out[:, :-1], targets[:, 1:]
    pairs = [
        (o, t)
        for o, t in zip(out.reshape(-1, out.shape[-1]), targets.reshape(-1), strict=True)
        if t != -100
    ]
    return torch.stack([o for o, _ in pairs]), torch.stack([t for _, t in pairs])


def term_losses(rows: Tensor, targets: Tensor, loss: str) -> Tensor:
    """(T,): -log softmax at the target, or the mean square over outputs."""
    if loss == "mse":
        return ((rows - targets) ** 2).mean(1)
    return rows.logsumexp(1) - rows[torch.arange(len(rows)), targets]


def row_hessians(rows: Tensor, loss: str) -> Tensor:
    """(T, C, C): diag p - p pᵀ, or 2/C times the identity."""
    if loss == "mse":
        eye = torch.eye(rows.shape[1], dtype=rows.dtype)
        return (2 / rows.shape[1] * eye).expand(len(rows), -1, -1)
    p = rows.softmax(1)
    return torch.diag_embed(p) - p[:, :, None] * p[:, None, :]


def mean_loss(model: nn.Module, inputs: Inputs, targets: Tensor, loss: str) -> Tensor:
    return term_losses(*rows_of(model, inputs, targets, loss), loss).mean()


def hessian_block(
    model: nn.Module, inputs: Inputs, targets: Tensor, loss: str, block: Block
) -> Tensor:
    """(d, d) Hessian of the mean loss in a block's parameters."""
    return _dense(model, block, lambda: _hessian(model, inputs, targets, loss, block))


def difference_block(
    model: nn.Module, inputs: Inputs, targets: Tensor, loss: str, block: Block, step: float = 1e-5
) -> Tensor:
    """The same from central differences of the gradient: no second derivative is taken."""

    def compute() -> Tensor:
        rows = []
        for p in block:
            flat = p.data.view(-1)
            for i in range(len(flat)):
                sides = []
                for sign in (1, -1):
                    flat[i] += sign * step
                    value = mean_loss(model, inputs, targets, loss)
                    sides.append(_flat(torch.autograd.grad(value, block, allow_unused=True), block))
                    flat[i] -= sign * step
                rows.append((sides[0] - sides[1]) / (2 * step))
        return torch.stack(rows)

    return _dense(model, block, compute)


def ggn_block(model: nn.Module, inputs: Inputs, targets: Tensor, loss: str, block: Block) -> Tensor:
    """1/T Σ_t J_tᵀ H_t J_t."""

    def compute() -> Tensor:
        rows, _ = rows_of(model, inputs, targets, loss)
        jacobian = _jacobian(rows.reshape(-1), block).reshape(*rows.shape, -1)
        curved = row_hessians(rows.detach(), loss)
        return torch.einsum("tci,tcd,tdj->ij", jacobian, curved, jacobian) / len(rows)

    return _dense(model, block, compute)


def fisher_block(
    model: nn.Module, inputs: Inputs, targets: Tensor, loss: str, block: Block
) -> Tensor:
    """1/T Σ_t Σ_c p_c ∇log p_c ∇log p_cᵀ, by its definition; cross-entropy only."""

    def compute() -> Tensor:
        rows, _ = rows_of(model, inputs, targets, loss)
        log_p = rows.log_softmax(1)
        scores = _jacobian(log_p.reshape(-1), block)
        weighted = scores * log_p.detach().exp().reshape(-1, 1)
        return scores.T @ weighted / len(rows)

    return _dense(model, block, compute)


def empirical_fisher_block(
    model: nn.Module, inputs: Inputs, targets: Tensor, loss: str, block: Block
) -> Tensor:
    """1/T Σ_t g_t g_tᵀ with the labels given."""

    def compute() -> Tensor:
        per_term = term_losses(*rows_of(model, inputs, targets, loss), loss)
        gradients = _jacobian(per_term, block)
        return gradients.T @ gradients / len(per_term)

    return _dense(model, block, compute)


DENSE: dict[str, Callable[..., Tensor]] = {
    "hessian": hessian_block,
    "ggn": ggn_block,
    "fisher": fisher_block,
    "empirical-fisher": empirical_fisher_block,
}


def extremes(block: Tensor) -> tuple[float, float]:
    """Largest and smallest eigenvalue."""
    values = torch.linalg.eigvalsh(block)
    return float(values[-1]), float(values[0])


def clustered_matrix(d: int, seed: int, tops: Sequence[float], bulk: float = 0.9) -> Tensor:
    """Diagonal (d, d) float64 with the given top eigenvalues and a bulk that decays below them.

    The bulk falls as 1/sqrt(i) from `bulk` and changes its sign at random in the small half,
    like a Hessian's. To a solver with Gaussian starts a diagonal matrix is as good as a rotated
    one: such starts look the same in every basis.
    """
    rng = np.random.default_rng(seed)
    rest = bulk / np.sqrt(np.arange(1, d - len(tops) + 1))
    small = len(rest) // 2
    rest[small:] *= rng.choice([1.0, -1.0], len(rest) - small)
    return torch.diag(torch.tensor(np.concatenate([tops, rest])))


def rotated(values: Sequence[float] | np.ndarray, seed: int) -> Tensor:
    """A symmetric matrix with these eigenvalues in a random basis."""
    rng = np.random.default_rng(seed + 1)
    q, _ = np.linalg.qr(rng.standard_normal((len(values), len(values))))
    return torch.from_numpy((q * np.asarray(values)) @ q.T)


def _dense(model: nn.Module, block: Block, compute: Callable[[], Tensor]) -> Tensor:
    """`compute` in eval mode with the block alone requiring grad; symmetrised."""
    modes = [(m, m.training) for m in model.modules()]
    flags = [(p, p.requires_grad) for p in model.parameters()]
    wanted = {id(p) for p in block}
    model.eval()
    for p, _ in flags:
        p.requires_grad_(id(p) in wanted)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            dense = compute()
    finally:
        for p, flag in flags:
            p.requires_grad_(flag)
        for m, mode in modes:
            m.training = mode
    assert torch.allclose(dense, dense.T, atol=1e-6 * float(dense.abs().max()) + 1e-12)
    return (dense + dense.T) / 2


def _hessian(model: nn.Module, inputs: Inputs, targets: Tensor, loss: str, block: Block) -> Tensor:
    value = mean_loss(model, inputs, targets, loss)
    if not value.requires_grad:
        return _jacobian(value[None], block).new_zeros(_numel(block), _numel(block))
    first = torch.autograd.grad(value, block, create_graph=True, allow_unused=True)
    return _jacobian(_flat(first, block), block)


def _jacobian(outputs: Tensor, block: Block) -> Tensor:
    """(len(outputs), d), all rows in one batched backward."""
    if not outputs.requires_grad:
        return outputs.new_zeros(len(outputs), _numel(block))
    eye = torch.eye(len(outputs), dtype=outputs.dtype)
    grads = torch.autograd.grad(
        outputs, block, eye, is_grads_batched=True, allow_unused=True, retain_graph=True
    )
    return torch.cat(
        [
            outputs.new_zeros(len(outputs), p.numel()) if g is None else g.reshape(len(outputs), -1)
            for g, p in zip(grads, block, strict=True)
        ],
        dim=1,
    )


def _flat(parts: Sequence[Tensor | None], block: Block) -> Tensor:
    return torch.cat(
        [
            (torch.zeros_like(p) if g is None else g).reshape(-1)
            for g, p in zip(parts, block, strict=True)
        ]
    )


def _numel(block: Block) -> int:
    return sum(p.numel() for p in block)
