"""Block products H_ℓℓ v for many layers from one first-order graph a micro-batch.

For layer ℓ the second pass only walks the part of the graph above ℓ, so one sweep over all
layers costs about half of what full products would (Pearlmutter 1994 for the product;
the truncation is autograd's own once only θ_ℓ is asked for).

The kinds of curvature differ in the graph they keep: `clcurv.curvature.hessian`,
`clcurv.curvature.ggn`, `clcurv.curvature.fisher`.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn

from clcurv.curvature.objective import Objective, forward
from clcurv.curvature.products import Products, project
from clcurv.errors import NumericalError, ResourceError
from clcurv.inputs.dataset import Batch
from clcurv.inputs.modules import out_of_memory as out_of_memory

TOGETHER = 10
SMALL, MIDDLE = 1e8, 5e8  # floating-point operations

LayerParams = Mapping[str, Sequence[nn.Parameter]]


class Graph(Protocol):
    """What is kept of one micro-batch: enough for products with its share of the curvature."""

    def product(
        self, layer: str, vector: Sequence[Tensor], *, batched: bool = False
    ) -> Sequence[Tensor | None]:
        """This micro-batch's *sum* over terms of the block times `vector` (param-shaped).

        With `batched` of k vectors at once: every tensor has one more dimension in front.
        """


BuildGraph = Callable[[nn.Module, Batch, Objective, LayerParams], Graph]


class BlockOperator:
    """Diagonal blocks of a curvature matrix over a fixed set of micro-batches.

    Args:
        build: Makes the graph of one micro-batch.
        model: In eval mode; only the layers' parameters need grad.
        layers: Name -> parameters of that block, shallow to deep.
        chunks: The data. Chunks also are the unit of the standard errors; each is computed in
            one micro-batch, or in smaller ones after running out of memory.
        objective: The loss.
        n_terms: What to divide by; default: the number of terms in `chunks`.
        keep_graphs: How many chunks' graphs may stay in memory between passes.
        together: How many vectors may share one backward pass, see `vectors_together`.
    """

    def __init__(
        self,
        build: BuildGraph,
        model: nn.Module,
        layers: LayerParams,
        chunks: Sequence[Batch],
        objective: Objective,
        *,
        n_terms: int | None = None,
        keep_graphs: int = 0,
        together: int = 1,
    ) -> None:
        self._build, self._model, self._objective = build, model, objective
        self._layers = {name: list(params) for name, params in layers.items()}
        self._chunks = list(chunks)
        self.chunk_terms = [objective.terms(c.targets) for c in self._chunks]
        self._n_terms = sum(self.chunk_terms) if n_terms is None else n_terms
        self._keep, self._together = keep_graphs, together
        self._kept: dict[int, list[Graph]] = {}
        self._piece: int | None = None
        self.notes: list[str] = []
        self.graph_samples = 0
        self.product_samples: Counter[str] = Counter()

    @property
    def names(self) -> list[str]:
        return list(self._layers)

    @property
    def n_chunks(self) -> int:
        return len(self._chunks)

    def numel(self, name: str) -> int:
        return sum(p.numel() for p in self._layers[name])

    def like(self, name: str) -> Tensor:
        """An empty flat vector of the block: (d,), dtype and device of its parameters."""
        return self._layers[name][0].new_empty(self.numel(name))

    def release(self) -> None:
        """Drops the kept graphs."""
        self._kept.clear()

    def products(
        self, vectors: Mapping[str, Tensor], bases: Mapping[str, Tensor] | None = None
    ) -> dict[str, Products]:
        """One pass over the data: block products for every layer asked for.

        Args:
            vectors: Layer -> (k, d).
            bases: Layer -> (j, d) to project the chunks' products on; default: `vectors`.

        Raises:
            NumericalError: NaN or infinity, with micro-batch and layer named.
            ResourceError: Out of memory with a single sample.
        """
        bases = bases or vectors
        while True:
            try:
                return self._pass(vectors, bases)
            except (torch.OutOfMemoryError, RuntimeError) as error:
                if not out_of_memory(error):
                    raise
            self._halve()

    def _pass(
        self, vectors: Mapping[str, Tensor], bases: Mapping[str, Tensor]
    ) -> dict[str, Products]:
        total = {n: torch.zeros_like(v) for n, v in vectors.items()}
        shares: dict[str, list[Tensor]] = {n: [] for n in vectors}
        for c in range(len(self._chunks)):
            # Without a basis nobody asks for the chunk's share: it goes into the sum at once.
            share = {
                n: torch.zeros_like(v) if len(bases[n]) else total[n] for n, v in vectors.items()
            }
            for graph in self._graphs(c, list(vectors)):
                for name, block in vectors.items():
                    self._multiply(graph, name, block, share[name])
                del graph  # freed before the next one is built
            for name, part in share.items():
                self.product_samples[name] += len(part) * len(self._chunks[c])
                # One pass over memory: what is not finite shows in the sum.
                if not bool(part.sum().isfinite()):
                    raise NumericalError(
                        f"the curvature product of layer {name} is not finite on micro-batch {c}"
                    )
                if part is not total[name]:
                    total[name] += part
                shares[name].append(project(bases[name], part) / self._n_terms)
        for part in total.values():
            part /= self._n_terms
        return {n: Products(total[n], torch.stack(shares[n])) for n in vectors}

    def _multiply(self, graph: Graph, name: str, block: Tensor, into: Tensor) -> None:
        """Adds one graph's products with all rows of `block` to the rows of `into`."""
        done = 0
        while done < len(block):
            k = min(self._together, len(block) - done)
            rows: int | slice = slice(done, done + k) if k > 1 else done
            how = {"batched": True} if k > 1 else {}
            try:
                out = graph.product(name, self._unflatten(name, block[rows]), **how)
            except RuntimeError as error:
                if k == 1:
                    raise
                # An operation that cannot be batched is no fault of the model.
                self._together = k // 2 if out_of_memory(error) else 1
                self.notes.append(f"products taken {self._together} at a time")
                continue
            self._accumulate(into[rows], name, out)
            done += k

    def _graphs(self, c: int, active: Sequence[str]) -> Iterable[Graph]:
        if c < self._keep and c not in self._kept:
            self._kept[c] = list(self._fresh(c, self.names))
        return self._kept.get(c) or self._fresh(c, active)

    def _fresh(self, c: int, active: Sequence[str]) -> Iterator[Graph]:
        layers = {n: self._layers[n] for n in active}
        for piece in split_batch(self._chunks[c], self._piece):
            self.graph_samples += len(piece)
            try:
                with _graph_starts_at(layers, self._model):
                    graph = self._build(self._model, piece, self._objective, layers)
            except NumericalError as error:
                where = first_bad_module(self._model, piece)
                raise NumericalError(f"{error} on micro-batch {c}{where}") from None
            yield graph
            del graph

    def _halve(self) -> None:
        self.release()
        largest = max(len(c) for c in self._chunks)
        now = min(self._piece or largest, largest)
        if now <= 1:
            raise ResourceError(
                "out of memory with a micro-batch of one sample",
                hint="smaller inputs, or --layers with a part of the layers",
            )
        self._piece, self._keep = (now + 1) // 2, 0
        self.notes.append(f"out of memory: micro-batches halved to {self._piece}")

    def _unflatten(self, name: str, flat: Tensor) -> list[Tensor]:
        params = self._layers[name]
        pieces = torch.split(flat, [p.numel() for p in params], dim=-1)
        return [v.view((*flat.shape[:-1], *p.shape)) for v, p in zip(pieces, params, strict=True)]

    def _accumulate(self, into: Tensor, name: str, parts: Sequence[Tensor | None]) -> None:
        for target, part in zip(self._unflatten(name, into), parts, strict=True):
            if part is not None:
                target += part


@contextmanager
def _graph_starts_at(active: LayerParams, model: nn.Module) -> Iterator[None]:
    """Within it only the active layers require grad, so the graph starts at the first of them.

    Parameters of layers that are measured at another time are idle as well.
    """
    wanted = {id(p) for params in active.values() for p in params}
    idle = [p for p in model.parameters() if p.requires_grad and id(p) not in wanted]
    for p in idle:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in idle:
            p.requires_grad_(True)


def gradients_by_layer(
    outputs: Tensor, layers: LayerParams, weights: Tensor | None = None
) -> dict[str, list[Tensor | None]]:
    """Gradients of `outputs` (times `weights`) with their graph; None where unused.

    autograd.grad, never backward(create_graph=True): that ties .grad into a reference cycle.
    """
    flat = [p for params in layers.values() for p in params]
    grads: Sequence[Tensor | None] = [None] * len(flat)
    if outputs.requires_grad and flat:
        grads = torch.autograd.grad(outputs, flat, weights, create_graph=True, allow_unused=True)
    it = iter(grads)
    return {name: [next(it) for _ in params] for name, params in layers.items()}


def pullback(
    outputs: Sequence[Tensor | None],
    vector: Sequence[Tensor],
    inputs: Sequence[Tensor],
    *,
    batched: bool = False,
) -> Sequence[Tensor | None]:
    """Σ_i vector_i · ∂outputs_i/∂inputs, leaving the graph in place; None where it is zero.

    With `batched`, of k vectors in one pass: vector_i (k, *shape of outputs_i), and so the results.
    """
    used = [
        (o, v) for o, v in zip(outputs, vector, strict=True) if o is not None and o.requires_grad
    ]
    if not used:
        return [None] * len(inputs)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")  # it only loops
        out: Sequence[Tensor | None] = torch.autograd.grad(
            [o for o, _ in used],
            list(inputs),
            [v for _, v in used],
            retain_graph=True,
            allow_unused=True,
            is_grads_batched=batched,
        )
    return out


def vectors_together(device: torch.device | str, product_flops: float) -> int:
    """How many vectors to send through one backward pass.

    That spares them the fixed costs of every operation, which on a GPU nearly always count.
    Measured on a CPU for 10 vectors: a network of 27 thousand parameters gained 2.3 times with
    16 samples, 1.8 with 64, nothing with 512; ResNet-18 lost a fifth with 32. For 2 vectors: a
    ViT of 6 blocks took 23 % less time with 24 samples (3e8 operations), 7 % more with 64.

    Args:
        device: Where the product is taken.
        product_flops: Of one product with one micro-batch.
    """
    if torch.device(device).type != "cpu" or product_flops < SMALL:
        return TOGETHER
    return 2 if product_flops < MIDDLE else 1


def split_batch(batch: Batch, size: int | None) -> list[Batch]:
    """The batch in pieces of at most `size` samples (whole when None)."""
    if size is None or size >= len(batch):
        return [batch]
    pieces = []
    for start in range(0, len(batch), size):
        rows = slice(start, start + size)
        inputs = (
            batch.inputs[rows]
            if isinstance(batch.inputs, Tensor)
            else {k: v[rows] for k, v in batch.inputs.items()}
        )
        pieces.append(Batch(inputs, batch.targets[rows]))
    return pieces


def checked_sum(per_term: Tensor) -> Tensor:
    """The sum of loss terms; NumericalError when it is not finite."""
    total = per_term.sum()
    if not bool(total.isfinite()):
        raise NumericalError("the loss is not finite")
    return total


def first_bad_module(model: nn.Module, batch: Batch) -> str:
    """ " (first at layer ...)" for the first module whose output is not finite; else ""."""
    found: list[str] = []

    def hook(name: str) -> Callable[[nn.Module, object, object], None]:
        def look(_module: nn.Module, _inputs: object, output: object) -> None:
            if not found and isinstance(output, Tensor) and not bool(output.isfinite().all()):
                found.append(name)

        return look

    handles = [
        m.register_forward_hook(hook(name))
        for name, m in model.named_modules()
        if name and not list(m.children())
    ]
    try:
        with torch.no_grad():
            forward(model, batch)
    finally:
        for handle in handles:
            handle.remove()
    return f" (first at layer {found[0]})" if found else ""
