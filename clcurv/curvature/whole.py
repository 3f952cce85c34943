"""The curvature of a whole network as one matrix: products, dense, Gram matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from clcurv.curvature.objective import Objective, forward
from clcurv.curvature.operators import (
    BlockOperator,
    first_bad_module,
    out_of_memory,
    pullback,
    split_batch,
)
from clcurv.curvature.products import project
from clcurv.errors import NumericalError, UsageError
from clcurv.inputs.dataset import Batch

WHOLE = "network"
DENSE_ROWS = 64


def products_with(operator: BlockOperator, vectors: Tensor) -> Tensor:
    """(k, P) -> (k, P) with the one block of an operator on the whole network."""
    nothing = vectors.new_empty(0, vectors.shape[1])
    return operator.products({WHOLE: vectors}, {WHOLE: nothing})[WHOLE].vectors


def dense(operator: BlockOperator) -> Tensor:
    """(P, P) float64 on the CPU, symmetrised: products with the identity.

    Cost: P products; memory 8 P² bytes.
    """
    like = operator.like(WHOLE)
    size = len(like)
    matrix = torch.empty(size, size, dtype=torch.float64)
    for start in range(0, size, DENSE_ROWS):
        stop = min(size, start + DENSE_ROWS)
        eye = like.new_zeros(stop - start, size)
        eye[torch.arange(stop - start), torch.arange(start, stop)] = 1
        matrix[start:stop] = products_with(operator, eye).double().cpu()
    return (matrix + matrix.T) / 2


def gram_rows(
    operator: str,
    model: nn.Module,
    params: Sequence[nn.Parameter],
    batches: Sequence[Batch],
    objective: Objective,
) -> Tensor:
    """A with AᵀA the curvature matrix of the mean loss, and AAᵀ the loss-weighted Gram matrix.

    A = C^{1/2} J/√T with J the Jacobian of the T terms' rows and C the Hessian of every term's
    loss in its row; for cross-entropy C = diag(p) − ppᵀ = SSᵀ with S = diag(√p) − p√pᵀ, for
    squared error over k outputs 2/k times the identity. For ``empirical-fisher`` A holds the
    terms' gradients.

    Args:
        operator: ``ggn`` | ``fisher`` | ``empirical-fisher``.
        model: In eval mode, so that a sample's rows do not depend on the others.
        params: The P parameters.
        batches: The data; each sample is passed on its own.
        objective: The loss.

    Returns:
        (T·C, P), or (T, P) for the empirical Fisher, in the parameters' dtype.

    Raises:
        NumericalError: A row that is not finite.
        UsageError: The Hessian, which is no such product.
    """
    if operator == "hessian":
        raise UsageError(
            "the Gram matrix has the spectrum of the Gauss-Newton matrix, not of the Hessian",
            hint="--operator ggn",
        )
    found: list[Tensor] = []
    terms = 0
    for i, sample in enumerate(s for batch in batches for s in split_batch(batch, 1)):
        rows, targets = objective.rows(forward(model, sample), sample.targets)
        if len(rows) == 0:
            continue
        terms += len(rows)
        if operator == "empirical-fisher":
            outputs = objective.per_term(rows, targets)
        else:
            outputs = torch.einsum("tcj,tj->tc", _root(rows.detach(), objective), rows)
        part = _jacobian(outputs.reshape(-1), params)
        if not bool(part.isfinite().all()):
            raise NumericalError(
                f"the Jacobian is not finite on sample {i}{first_bad_module(model, sample)}"
            )
        found.append(part)
    return torch.cat(found) / math.sqrt(terms)


def gram(rows: Tensor) -> Tensor:
    """AAᵀ in float64 on the CPU."""
    return project(rows, rows)


def weighted_residual(rows: Tensor, targets: Tensor, objective: Objective) -> Tensor:
    """(T, C) float64: C^{1/2} r₀, in the coordinates of `gram_rows`.

    r₀ = C⁺∇ℓ is how far a row is from the minimum of its loss' second-order model: the plain
    residual f − y for squared loss. For cross-entropy its part at class c comes to
    (p_c − y_c)/√p_c, its square over a row to 1/p_y − 1.
    """
    if objective.name == "mse":
        return math.sqrt(2 * objective.scale / rows.shape[1]) * (rows - targets).double()
    log_p = rows.double().log_softmax(1)
    residual = (log_p / 2).exp()
    at = torch.arange(len(rows), device=rows.device), targets
    residual[at] = torch.expm1(log_p[at]) * (-log_p[at] / 2).exp()
    return math.sqrt(objective.scale) * residual


def _root(rows: Tensor, objective: Objective) -> Tensor:
    """(T, C, C): Sᵀ with SSᵀ the Hessian of every term's loss in its row."""
    width = rows.shape[1]
    eye = torch.eye(width, dtype=rows.dtype, device=rows.device)
    if objective.name == "mse":
        return math.sqrt(2 * objective.scale / width) * eye.expand(len(rows), -1, -1)
    p = rows.softmax(1)
    return math.sqrt(objective.scale) * p.sqrt().unsqueeze(2) * (eye - p.unsqueeze(1))


def _jacobian(outputs: Tensor, params: Sequence[nn.Parameter]) -> Tensor:
    """(len(outputs), P), row by row where an operation cannot be batched."""
    eye = torch.eye(len(outputs), dtype=outputs.dtype, device=outputs.device)
    try:
        return _flat(pullback([outputs], [eye], params, batched=True), params, len(eye))
    except RuntimeError as error:
        if out_of_memory(error):
            raise
    return torch.cat([_flat(pullback([outputs], [e], params), params, 1) for e in eye])


def _flat(parts: Sequence[Tensor | None], params: Sequence[nn.Parameter], rows: int) -> Tensor:
    return torch.cat(
        [
            p.new_zeros(rows, p.numel()) if part is None else part.reshape(rows, -1)
            for part, p in zip(parts, params, strict=True)
        ],
        dim=1,
    )
