"""The peers' solvers, each restricted to one weight tensor's Hessian block.

Every one is called as its own documentation says, on the same batches and the same mean loss in
float32, with only that tensor requiring grad, so that autograd spares it the layers below.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clcurv.inputs.dataset import Samples


@dataclass(frozen=True)
class Problem:
    """A trained network and the data that every method sees.

    Attributes:
        model: In eval mode, float32.
        samples: Images and class ids; the batches are equal, as hessian-eigenthings weighs them.
        batch_size: Samples in a batch.
    """

    model: nn.Module
    samples: Samples
    batch_size: int = 64

    @cached_property
    def weights(self) -> dict[str, nn.Parameter]:
        """The weight tensors of two or more dimensions: no norms, biases, class or position."""
        named = self.model.named_parameters()
        return {n: p for n, p in named if p.ndim >= 2 and n.rpartition(".")[2] == "weight"}

    @cached_property
    def batches(self) -> list[tuple[Tensor, Tensor]]:
        split = self.samples.split(self.batch_size)
        if len({len(batch) for batch in split}) > 1:
            raise ValueError(f"{len(self.samples)} samples are not batches of {self.batch_size}")
        return [(x, y) for x, y in ((b.inputs, b.targets) for b in split) if isinstance(x, Tensor)]

    def gradient(self) -> None:
        """One gradient of the mean loss over the data, in all parameters: the unit of cost."""
        parameters = list(self.model.parameters())
        for images, labels in self.batches:
            loss = F.cross_entropy(self.model(images), labels)
            torch.autograd.grad(loss / len(self.batches), parameters)


@dataclass(frozen=True)
class Block:
    """One peer set up for one weight tensor.

    Attributes:
        product: One product of the block with a vector in the tensor's shape.
        solve: Seed -> the eigenvalue it settles at.
    """

    product: Callable[[Tensor], object]
    solve: Callable[[int], float]


@dataclass(frozen=True)
class Peer:
    """A peer as the table names it.

    Attributes:
        call: What is called, as the table shows it.
        module, distribution: Where it comes from.
        setup: Problem and weight name -> `Block`.
        dominant: It finds the eigenvalue of largest absolute value, not the largest one.
    """

    call: str
    module: str
    distribution: str
    setup: Callable[[Problem, str], Block]
    dominant: bool = False


def pyhessian_block(problem: Problem, name: str) -> Block:
    """Power iteration with its defaults: 100 iterations, or a change of λ below 1e-3."""
    from pyhessian import hessian

    del name  # it takes whatever requires grad
    theirs = hessian(problem.model, nn.CrossEntropyLoss(), dataloader=problem.batches, cuda=False)

    def solve(seed: int) -> float:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            values, _ = theirs.eigenvalues(maxIter=100, tol=1e-3, top_n=1)
        return float(values[0])

    return Block(lambda vector: theirs.dataloader_hv_product([vector]), solve)


def eigenthings_block(problem: Problem, name: str, *, k: int, max_iter: int | None = None) -> Block:
    """`param_filter` as its README and guide restrict an operator; Lanczos of a fixed length."""
    from hessian_eigenthings.algorithms import lanczos
    from hessian_eigenthings.loss_fns import supervised_loss
    from hessian_eigenthings.operators import HessianOperator
    from hessian_eigenthings.param_utils import match_names

    operator = HessianOperator(
        problem.model,
        problem.batches,
        supervised_loss(F.cross_entropy),
        param_filter=match_names(name),
    )
    # Its own default is 2 k steps; neither may exceed the dimension.
    k = min(k, operator.size)
    steps = max(k, min(max_iter or 2 * k, operator.size - 1))

    def solve(seed: int) -> float:
        found = lanczos(operator, k=k, max_iter=steps, which="LA", seed=seed)
        return float(found.eigenvalues[0])

    return Block(lambda vector: operator.matvec(vector.reshape(-1)), solve)


def curvlinops_block(
    problem: Problem, name: str, *, tol: float = 1e-2, restarts: int | None = None
) -> Block:
    """`HessianLinearOperator` of one parameter in SciPy's `eigsh`, to a residual of `tol`.

    Without its determinism check, which would cost each layer two gradients and two products.
    """
    from curvlinops import HessianLinearOperator
    from scipy.sparse.linalg import ArpackNoConvergence, eigsh

    operator = HessianLinearOperator(
        problem.model,
        nn.CrossEntropyLoss(),
        [problem.weights[name]],
        problem.batches,
        check_deterministic=False,
        num_data=len(problem.samples),
    )

    def solve(seed: int) -> float:
        matrix = operator.to_scipy(dtype=np.dtype(np.float32))
        start = np.random.default_rng(seed).standard_normal(matrix.shape[0]).astype(np.float32)
        try:
            values, _ = eigsh(matrix, k=1, which="LA", tol=tol, v0=start, maxiter=restarts)
            return float(values[0])
        except ArpackNoConvergence as error:
            return float(max(error.eigenvalues, default=math.nan))

    return Block(lambda vector: operator @ vector.reshape(-1), solve)


PEERS: dict[str, Peer] = {
    "pyhessian": Peer(
        "`hessian(...).eigenvalues()`", "pyhessian", "PyHessian", pyhessian_block, dominant=True
    ),
    "hessian-eigenthings": Peer(
        "`lanczos(op, k=5, which='LA')`, README",
        "hessian_eigenthings",
        "hessian-eigenthings",
        partial(eigenthings_block, k=5),
    ),
    "hessian-eigenthings-20": Peer(
        "`lanczos(op, k=3, max_iter=20, which='LA')`, its examples of blocks",
        "hessian_eigenthings",
        "hessian-eigenthings",
        partial(eigenthings_block, k=3, max_iter=20),
    ),
    "curvlinops": Peer(
        "`eigsh(op, k=1, which='LA', tol=1e-2)`",
        "curvlinops",
        "curvlinops-for-pytorch",
        curvlinops_block,
    ),
}


@contextmanager
def only(model: nn.Module, parameter: nn.Parameter) -> Iterator[None]:
    """Within it only `parameter` requires grad."""
    before = [(p, p.requires_grad) for p in model.parameters()]
    try:
        for p, _ in before:
            p.requires_grad_(p is parameter)
        yield
    finally:
        for p, required in before:
            p.requires_grad_(required)


@contextmanager
def counted_forwards(model: nn.Module) -> Iterator[list[int]]:
    """The number of forward passes taken within it, as the list's only entry."""
    count = [0]

    def hook(_module: nn.Module, _inputs: object) -> None:
        count[0] += 1

    handle = model.register_forward_pre_hook(hook)
    try:
        yield count
    finally:
        handle.remove()
