"""One small trial before the run: does every product exist, repeat, and come out symmetric?

Also what the run will cost: bytes of a graph a sample, and floating-point operations of a
gradient, a graph and every layer's product, so that work can be told in gradients.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.utils.flop_counter import FlopCounterMode

from clcurv.curvature.objective import Objective
from clcurv.curvature.operators import BuildGraph, LayerParams, gradients_by_layer, out_of_memory
from clcurv.errors import ArchitectureError, NumericalError, ResourceError
from clcurv.inputs.dataset import Batch

PROBE_SAMPLES = 4
STRETCH = 0.7
# Counting is slower than the product counted, and a product's cost falls steadily with depth.
COUNTED_LAYERS = 6
NOT_THE_SAME = (
    "look for dropout or sampling by hand in the model's forward, and for inputs changed in place"
)
FUSED = "build the model without fused or custom kernels for it"


@dataclass(frozen=True)
class Probe:
    """What the trial told.

    Attributes:
        unused: Layers whose parameters the loss does not depend on.
        noise: Layer -> the size of rounding: |uᵀHw − wᵀHu| or ‖H(cu)/c − Hu‖, whichever is
            larger, for random unit u, w.
        bytes_per_sample: Memory of one sample's graph.
        gradient_flops, graph_flops: Of one plain gradient and one kept graph, a sample.
        product_flops: Layer -> of one product, a sample; counted on a few layers, in between
            interpolated over the depth.
    """

    unused: frozenset[str]
    noise: dict[str, float]
    bytes_per_sample: int
    gradient_flops: float
    graph_flops: float
    product_flops: dict[str, float]


class _Flops(FlopCounterMode):
    """Without the table by module, whose hooks fail on parametrised weights."""

    class Untold:
        parents = frozenset({"Global"})

        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None: ...

    def __init__(self) -> None:
        super().__init__(display=False)
        self.mod_tracker = self.Untold()  # type: ignore[assignment]


def probe(
    build: BuildGraph,
    model: nn.Module,
    layers: LayerParams,
    batch: Batch,
    objective: Objective,
    *,
    seed: int = 0,
) -> Probe:
    """Tries every layer's product on a few samples.

    Raises:
        ArchitectureError: An operation of the model has no second derivative.
        NumericalError: The loss does not repeat, does not depend on any parameter, or is not
            finite.
        ResourceError: Out of memory already here.
    """
    try:
        return _probe(build, model, layers, batch, objective, seed)
    except RuntimeError as error:
        if out_of_memory(error):
            raise ResourceError(f"out of memory with {len(batch)} samples") from error
        text = str(error)
        if "derivative" in text or "double backward" in text or "create_graph" in text:
            raise ArchitectureError(
                f"no second derivative through {_operation(text)}",
                hint=FUSED,
            ) from error
        raise


def _probe(
    build: BuildGraph,
    model: nn.Module,
    layers: LayerParams,
    batch: Batch,
    objective: Objective,
    seed: int,
) -> Probe:
    generator = torch.Generator().manual_seed(seed)
    with _Flops() as counter:
        loss = objective.loss_sum(model, batch)
        if loss.requires_grad:
            flat = [p for params in layers.values() for p in params]
            torch.autograd.grad(loss, flat, allow_unused=True)
    gradient_flops = counter.get_total_flops()
    first, again_loss = loss.item(), objective.loss_sum(model, batch).item()
    if abs(again_loss - first) > 1e-4 * abs(first):
        raise NumericalError(
            f"the loss is not deterministic: {first:.6g}, then {again_loss:.6g} on the same "
            "samples in eval mode",
            hint=NOT_THE_SAME,
        )
    sizes: dict[int, int] = {}
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def weigh(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        if storage.data_ptr() not in own:
            sizes[storage.data_ptr()] = storage.nbytes()
        return t

    with (
        _Flops() as counter,
        torch.autograd.graph.saved_tensors_hooks(weigh, lambda t: t),
    ):
        graph = build(model, batch, objective, layers)
    graph_flops = counter.get_total_flops()
    loss = objective.loss_sum(model, batch)
    gradients = gradients_by_layer(loss, layers)
    _refuse_broken_chain(loss, [g for grads in gradients.values() for g in grads if g is not None])
    unused = frozenset(name for name, grads in gradients.items() if all(g is None for g in grads))
    if len(unused) == len(layers):
        raise NumericalError(
            "the loss does not depend on any of the parameters asked for",
            hint="check --loss and --layers",
        )
    noise: dict[str, float] = {}
    flops: dict[int, float] = {}
    counted = set(np.linspace(0, len(layers) - 1, min(COUNTED_LAYERS, len(layers))).round())
    for i, (name, params) in enumerate(layers.items()):
        u, w = (_unit(params, generator) for _ in range(2))
        with _Flops() if i in counted else nullcontext() as counter:
            hu = graph.product(name, u)
        if counter is not None:
            flops[i] = counter.get_total_flops() / len(batch)
        hw = graph.product(name, w)
        # Products of one number are symmetric however they are rounded; but a stretched vector
        # is rounded differently on every step of the way.
        stretched = graph.product(name, [STRETCH * a for a in u])
        linear = _distance(hu, [None if a is None else a / STRETCH for a in stretched])
        if _apart(linear, hu) and _apart(_distance(hu, graph.product(name, u)), hu):
            raise NumericalError(
                f"two identical curvature products of layer {name} differ: the loss is not "
                "deterministic",
                hint=NOT_THE_SAME,
            )
        n = max(1, objective.terms(batch.targets))
        noise[name] = max(abs(_dot(w, hu) - _dot(u, hw)), linear) / n
    between = np.interp(range(len(layers)), list(flops), list(flops.values()))
    return Probe(
        unused=unused,
        noise=noise,
        bytes_per_sample=max(1, sum(sizes.values()) // len(batch)),
        gradient_flops=max(1.0, gradient_flops / len(batch)),
        graph_flops=graph_flops / len(batch),
        product_flops=dict(zip(layers, between.tolist(), strict=True)),
    )


def _refuse_broken_chain(loss: Tensor, gradients: Sequence[Tensor]) -> None:
    """Refuses functions marked `once_differentiable`.

    Their gradients end in a node that raises when it is run; but it leads to no parameter, so
    autograd skips it when asked for parameters alone, and the product would silently lack a part.
    """
    if not any(node.name().endswith("::Error") for node in _nodes(gradients)):
        return
    marked = [
        type(node).__name__.removesuffix("Backward")
        for node in _nodes([loss])
        if hasattr(getattr(getattr(node, "_forward_cls", None), "backward", None), "__wrapped__")
    ]
    raise ArchitectureError(
        f"no second derivative through {marked[0] if marked else 'an operation of this model'}",
        hint=FUSED,
    )


def _nodes(outputs: Sequence[Tensor]) -> Iterator[Node]:
    """Every node of the graph behind the outputs, once."""
    waiting = [t.grad_fn for t in outputs if t.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        yield node
        for below, _ in node.next_functions:
            if below is not None and below not in seen:
                seen.add(below)
                waiting.append(below)


def _unit(params: Sequence[Tensor], generator: torch.Generator) -> list[Tensor]:
    v = [torch.randn(p.shape, generator=generator).to(p) for p in params]
    length = sum(float(a.double().square().sum()) for a in v) ** 0.5
    return [a / length for a in v]


def _dot(a: Sequence[Tensor | None], b: Sequence[Tensor | None]) -> float:
    return sum(
        float((x.double() * y.double()).sum())
        for x, y in zip(a, b, strict=True)
        if x is not None and y is not None
    )


def _apart(distance: float, a: Sequence[Tensor | None]) -> bool:
    return distance**2 > 1e-5 * _dot(a, a)


def _distance(a: Sequence[Tensor | None], b: Sequence[Tensor | None]) -> float:
    square = sum(
        float((x.double() - y.double()).square().sum())
        for x, y in zip(a, b, strict=True)
        if x is not None and y is not None
    )
    return float(square**0.5)


def _operation(text: str) -> str:
    found = re.search(r"derivative for '?([\w:]+)'?", text) or re.search(
        r"([\w:]+) (?:is|was)", text
    )
    return found[1] if found else "an operation of this model"
