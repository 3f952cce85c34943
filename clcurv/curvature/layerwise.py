"""Per-sample importances layer by layer: one forward and one backward pass for a whole batch.

No more than one layer's per-sample gradients are in memory, and what is rank one or sparse (linear
layers on one row a sample, embeddings) is summed without forming them. What the layers here do not
cover is left to `clcurv.curvature.per_sample`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from clcurv.curvature.importance_sums import How, Sums
from clcurv.curvature.layer_gradients import Use, supported
from clcurv.curvature.objective import forward
from clcurv.curvature.output_seeds import Seeds, aligned
from clcurv.inputs.dataset import Batch

# Elements of per-sample gradients formed at a time.
BLOCK = 1 << 22


@dataclass(frozen=True)
class _Call:
    module: nn.Module
    x: Tensor
    edge: GradientEdge


class Layerwise:
    """Adds a batch's contributions of the parameters that it covers.

    Args:
        model: In eval mode, parameters requiring grad.
        params: Name -> parameter, tied ones once.
        seeds: The estimator.
        trial: A few samples to see which modules are called how.
    """

    def __init__(
        self,
        model: nn.Module,
        params: Mapping[str, nn.Parameter],
        seeds: Seeds,
        trial: Batch,
    ) -> None:
        self._model, self._seeds = model, seeds
        names = {id(p): name for name, p in params.items()}
        self._roles: dict[nn.Module, dict[str, str]] = {}
        foreign: set[str] = set()
        for module in model.modules():
            own = {
                role: names[id(p)]
                for role, p in module._parameters.items()
                if p is not None and id(p) in names
            }
            if own and supported(module):
                self._roles[module] = own
            else:
                foreign.update(own.values())
        calls, _ = self._forward(trial)
        called = {call.module for call in calls if self._fits(call, len(trial))}
        odd = {call.module for call in calls if not self._fits(call, len(trial))}
        for module, own in self._roles.items():
            if module not in called or module in odd:
                foreign.update(own.values())
        self._roles = {
            module: kept
            for module, own in self._roles.items()
            if (kept := {role: name for role, name in own.items() if name not in foreign})
        }
        covered = {name for own in self._roles.values() for name in own.values()}
        self.covered = [name for name in params if name in covered]
        self.left = [name for name in params if name not in covered]

    def add(self, batch: Batch, noise: Tensor, sums: Sums) -> Tensor:
        """Adds n samples to `sums` (after its `begin_chunk`); returns their rows (n, T, C)."""
        calls, output = self._forward(batch)
        rows, labels = aligned(self._seeds.objective, output, batch.targets)
        del output
        fixed = rows.detach()
        how: How = "square" if self._seeds.squared else "abs"
        count = self._seeds.count(rows)
        for k in range(count):
            w = torch.vmap(lambda r, y, z, k=k: self._seeds.nth(k, r, y, z))(fixed, labels, noise)
            slopes = torch.autograd.grad(
                rows,
                [call.edge for call in calls],
                w,
                retain_graph=k + 1 < count,
                allow_unused=True,
            )
            self._collect(calls, list(slopes), sums, how, len(batch))
        return fixed

    def _collect(
        self, calls: list[_Call], slopes: list[Tensor | None], sums: Sums, how: How, n: int
    ) -> None:
        uses: dict[str, list[Use]] = {}
        for call, slope in zip(calls, slopes, strict=True):
            if slope is not None:
                for role, name in self._roles[call.module].items():
                    uses.setdefault(name, []).append(Use(call.module, role, call.x, slope))
        slopes.clear()
        for name in list(uses):
            own = uses.pop(name)
            outer = own[0].outer() if len(own) == 1 else None
            lookups = own[0].lookups() if len(own) == 1 else None
            if outer is not None:
                sums.add_outer(name, *outer, how)
            elif lookups is not None:
                sums.add_lookups(name, *lookups, how)
            else:
                size = max(1, BLOCK // max(1, sums.numel(name)))
                for start in range(0, n, size):
                    part = slice(start, min(n, start + size))
                    block = own[0].dense(part)
                    for further in own[1:]:
                        block = block + further.dense(part)
                    sums.add(name, block, how, start)

    def _forward(self, batch: Batch) -> tuple[list[_Call], Tensor]:
        calls: list[_Call] = []
        with self._recorded(calls, len(batch)):
            output = forward(self._model, batch)
        return calls, output

    @contextmanager
    def _recorded(self, calls: list[_Call], n: int) -> Iterator[None]:
        def widen(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
            # Positions are looked up once for all samples: each gets its own.
            if args and isinstance(args[0], Tensor) and args[0].ndim > 1 and len(args[0]) == 1 < n:
                return (args[0].expand(n, *args[0].shape[1:]), *args[1:])
            return None

        def note(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if isinstance(output, Tensor) and output.requires_grad:
                x = args[0].detach() if args and isinstance(args[0], Tensor) else output[:0]
                # An edge, since what follows may write over the output in place.
                calls.append(_Call(module, x, get_gradient_edge(output)))

        handles = []
        for module in self._roles:
            handles.append(module.register_forward_hook(note))
            if isinstance(module, nn.Embedding):
                handles.append(module.register_forward_pre_hook(widen))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @staticmethod
    def _fits(call: _Call, n: int) -> bool:
        least = 1 if isinstance(call.module, nn.Embedding) else 2
        return call.x.ndim >= least and len(call.x) == n
