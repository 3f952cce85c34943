"""|g_n| or g_n² of every sample: vectorised over the batch, and one by one where that fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from clcurv.curvature.importance_sums import How, Sums
from clcurv.curvature.objective import forward
from clcurv.curvature.operators import out_of_memory
from clcurv.curvature.output_seeds import Seeds, aligned, aligned_labels
from clcurv.errors import ClcurvError
from clcurv.inputs.dataset import Batch

SAME = 1e-3

# Gradients of a chunk: parameter name -> (n, *shape), squared and summed over seeds (float64)
# where there are several; and the chunk's rows (n, T, C).
Contributions = tuple[dict[str, Tensor], Tensor]
_Pull = Callable[[Tensor], tuple[dict[str, Tensor]]]


class PerSample:
    """Per-sample contributions of an importance.

    Args:
        model: In eval mode, so that a sample's output does not depend on the others.
        params: Name -> parameter, tied ones once.
        seeds: The estimator.
    """

    def __init__(self, model: nn.Module, params: Mapping[str, nn.Parameter], seeds: Seeds) -> None:
        self._model, self._seeds = model, seeds
        self._params = dict(params)
        self.notes: list[str] = []
        self._ways: list[Callable[[Batch, Tensor], Contributions]] = [
            self._vectorised,
            self._by_mask,
            self._one_by_one,
        ]
        self._checked = False

    def __call__(self, batch: Batch, noise: Tensor) -> Contributions:
        """Contributions of a few samples, the fastest way that works for this model.

        Args:
            batch: n samples on the parameters' device.
            noise: Their rows of `Seeds.noise`.

        Raises:
            RuntimeError: Out of memory; anything the model itself raises.
        """
        if len(batch) == 1:
            return self._one_by_one(batch, noise)
        first_reason = ""
        while True:
            way = self._ways[0]
            try:
                found = way(batch, noise)
                if len(self._ways) == 1 or self._checked or self._agrees(found, batch, noise):
                    self._checked = True
                    return found
                reason = "its result differs from one sample's own gradient"
            except (ClcurvError, MemoryError):
                raise
            except Exception as error:  # whatever an operation says that cannot be batched
                if len(self._ways) == 1 or out_of_memory(error):
                    raise
                reason = first_line(error)
            self._ways.pop(0)
            first_reason = first_reason or reason
            if self._ways[0] == self._one_by_one:
                self.notes.append(f"samples taken one by one, not vectorised: {first_reason}")

    def _agrees(self, found: Contributions, batch: Batch, noise: Tensor) -> bool:
        """Whether the first sample's contribution is what plain autograd gives it."""
        mine, _ = found
        plain, _ = self._one_by_one(rows_of_batch(batch, slice(0, 1)), noise[:1])
        off = sum(float((mine[n][0] - g[0]).abs().sum()) for n, g in plain.items())
        size = sum(float(g.abs().sum()) for g in plain.values())
        return not off > SAME * size  # NaN is the caller's to refuse

    def _vectorised(self, batch: Batch, noise: Tensor) -> Contributions:
        return self._mapped(batch, noise, shared={})

    def _by_mask(self, batch: Batch, noise: Tensor) -> Contributions:
        """As `_vectorised`, samples of one attention mask together and the mask not batched.

        Hugging Face models ask whether a mask hides anything, which a batched one cannot answer.
        """
        inputs = batch.inputs
        masks = [] if isinstance(inputs, Tensor) else [k for k in inputs if "mask" in k]
        if isinstance(inputs, Tensor) or not masks:
            raise NotImplementedError("no mask to share")
        pattern = torch.cat([inputs[k].reshape(len(batch), -1).double() for k in masks], dim=1)
        _, group = torch.unique(pattern, dim=0, return_inverse=True)
        gathered: dict[str, Tensor] = {}
        rows: Tensor | None = None
        for g in range(int(group.max()) + 1):
            where = (group == g).nonzero()[:, 0]
            part = rows_of_batch(batch, where)
            assert not isinstance(part.inputs, Tensor)
            shared = {k: part.inputs[k][:1] for k in masks}
            found, out = self._mapped(part, noise[where.to(noise.device)], shared=shared)
            if rows is None:
                rows = out.new_empty(len(batch), *out.shape[1:])
                gathered = {n: v.new_empty(len(batch), *v.shape[1:]) for n, v in found.items()}
            rows[where] = out
            for name, value in found.items():
                gathered[name][where] = value
        assert rows is not None
        return gathered, rows

    def _mapped(
        self, batch: Batch, noise: Tensor, *, shared: Mapping[str, Tensor]
    ) -> Contributions:
        """One vmap over the samples; `shared` keyword inputs (1, ...) are the same for all."""
        objective, seeds, model = self._seeds.objective, self._seeds, self._model

        def single(
            params: dict[str, Tensor], inputs: Any, targets: Tensor, noise: Tensor
        ) -> tuple[dict[str, Tensor], Tensor]:
            one = (
                inputs[None]
                if isinstance(inputs, Tensor)
                else {**{k: v[None] for k, v in inputs.items()}, **shared}
            )
            target = targets[None]

            def rows_of(params: dict[str, Tensor]) -> Tensor:
                def call(*args: Any, **kwargs: Any) -> Any:
                    return functional_call(model, params, args, kwargs)

                output = forward(cast(nn.Module, call), Batch(one, target))
                return aligned(objective, output, target)[0][0]

            rows, pull = cast(tuple[Tensor, _Pull], vjp(rows_of, params))
            labels = aligned_labels(objective, target)[0]
            total: dict[str, Tensor] = {}
            several = seeds.count(rows) > 1
            for w in seeds.of(rows, labels, noise):
                (grads,) = pull(w)
                for name in list(grads):
                    # One by one, so that no second set of gradients is ever held.
                    g = grads.pop(name)
                    total[name] = _add_square(total.get(name), g) if several else g
            return total, rows

        inputs: Any = batch.inputs
        if not isinstance(inputs, Tensor):
            inputs = {k: v for k, v in inputs.items() if k not in shared}
        params = {name: p.detach() for name, p in self._params.items()}
        with torch.no_grad():  # of the outer level: the maps below differentiate regardless
            found: Contributions = vmap(single, in_dims=(None, 0, 0, 0))(
                params, inputs, batch.targets, noise
            )
        return found

    def _one_by_one(self, batch: Batch, noise: Tensor) -> Contributions:
        parts = [
            self._plain(rows_of_batch(batch, slice(i, i + 1)), noise[i]) for i in range(len(batch))
        ]
        grads, rows = zip(*parts, strict=True)
        if len(parts) == 1:
            return {n: g[None] for n, g in grads[0].items()}, rows[0][None]
        return {n: torch.stack([g[n] for g in grads]) for n in self._params}, torch.stack(rows)

    def _plain(self, one: Batch, noise: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """One sample by ordinary autograd."""
        objective = self._seeds.objective
        all_rows, all_labels = aligned(objective, forward(self._model, one), one.targets)
        rows, labels = all_rows[0], all_labels[0]
        params = list(self._params.values())
        if not rows.requires_grad:
            return {n: torch.zeros_like(p) for n, p in self._params.items()}, rows.detach()
        total: dict[str, Tensor] = {}
        count = self._seeds.count(rows)
        fixed = rows.detach()
        for k, w in enumerate(self._seeds.of(fixed, labels, noise)):
            grads = torch.autograd.grad(
                rows, params, w, retain_graph=k + 1 < count, allow_unused=True
            )
            for name, p, g in zip(self._params, params, grads, strict=True):
                g = torch.zeros_like(p) if g is None else g
                total[name] = _add_square(total.get(name), g) if count > 1 else g
        return {name: t.detach() for name, t in total.items()}, fixed


def add_plainly(
    model: nn.Module,
    params: Mapping[str, nn.Parameter],
    seeds: Seeds,
    batch: Batch,
    noise: Tensor,
    sums: Sums,
) -> None:
    """Adds every sample's contribution by ordinary autograd: slow, and what others are held to."""
    engine = PerSample(model, params, seeds)
    for i in range(len(batch)):
        found, rows = engine(rows_of_batch(batch, slice(i, i + 1)), noise[i : i + 1])
        squared: How = "as-is" if seeds.count(rows) > 1 else "square"
        sums.begin_chunk(1)
        for name in list(found):
            sums.add(name, found.pop(name), squared if seeds.squared else "abs")


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]


def _add_square(total: Tensor | None, g: Tensor) -> Tensor:
    """In float64: squares of small gradients leave float32's range."""
    square = (g if g.device.type == "mps" else g.double()).square()
    return square if total is None else total + square


def rows_of_batch(batch: Batch, where: slice | Tensor) -> Batch:
    inputs = batch.inputs
    taken = (
        inputs[where] if isinstance(inputs, Tensor) else {k: v[where] for k, v in inputs.items()}
    )
    return Batch(taken, batch.targets[where])


def sample_bytes(
    model: nn.Module, params: Sequence[nn.Parameter], one: Batch
) -> tuple[int, Tensor]:
    """What one sample's graph holds beside the parameters, and the model's output for it."""
    own = {p.untyped_storage().data_ptr() for p in params}
    sizes: dict[int, int] = {}

    def weigh(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        if storage.data_ptr() not in own:
            sizes[storage.data_ptr()] = storage.nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(weigh, lambda t: t):
        output = forward(model, one)
    return sum(sizes.values()), output.detach()
