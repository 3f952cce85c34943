"""L2-ER in a training loop: weight decay, and a small step up the effective rank of the features.

Prakash, He, Guo et al., *Spectral Collapse Drives Loss of Plasticity in Deep Continual Learning*
(arXiv 2509.22335): min L + λ‖θ‖² − β Σ_l erank(E[a_l a_lᵀ]). As in their public code, the two
terms are no part of the loss. Weight decay is coupled (added to the gradient, so that momentum
and Adam see it), and the ascent is a plain SGD step of its own.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from clcurv.diagnostics.erank import mean_effective_rank
from clcurv.errors import InputError, MismatchError, UsageError
from clcurv.inputs.dataset import Batch, Inputs
from clcurv.report.l2er_document import L2erDocument
from clcurv.report.reader import Source, load_document
from clcurv.training.names import pair_names

if TYPE_CHECKING:
    from transformers import TrainerCallback

_WRAPPERS = ("module", "_orig_mod")


class L2ER:
    """The regulariser. Use it as a context manager, or call `close` at the end.

    ::

        reg = L2ER.from_json(model, "l2er.json")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, weight_decay=reg.weight_decay)
        for x, y in loader:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
            reg.step(x)

    Order of the steps: every mini-batch the optimizer's own step on the task loss with coupled
    weight decay, then `step`. Once `er_every` mini-batches have come in, `step` runs the last
    `window` of their samples through the network as it is now, moves the trainable parameters
    by er_lr times the gradient of the mean effective rank of the layers' inputs, and forgets the
    window. Running averages (BatchNorm) do not see the second pass, and dropout is off in it.

    Attributes:
        weight_decay: For the optimizer, unless it was given as `optimizer`: then the decay is
            added to the gradients just before each of its steps.
        er_lr, er_every, window: Step size; mini-batches to a step; most samples of them used.
        layers: Modules whose inputs count, as named in the model.
        effective_rank: Mean effective rank at the last step, before it; None before the first.
        steps, skipped: Steps up the effective rank made, and left out because an input or the
            gradient was not finite.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        weight_decay: float,
        er_lr: float,
        er_every: int,
        layers: Sequence[str],
        window: int,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        """As `from_json`, with the coefficients themselves.

        Raises:
            UsageError: A coefficient is out of range, no layer is named, or `optimizer` has a
                weight decay of its own.
            MismatchError: A layer is not in the model.
        """
        self.model = _unwrapped(model)
        self.weight_decay, self.er_lr = float(weight_decay), float(er_lr)
        self.er_every, self.window = int(er_every), int(window)
        self._check()
        self.layers = _found_layers(self.model, layers) if self.active else ()
        self.effective_rank: float | None = None
        self.steps = self.skipped = 0
        self._batches = 0
        self._held: list[Inputs] = []
        self._handles = ExitStack()
        if optimizer is not None:
            self.attach(optimizer)

    @classmethod
    def from_json(
        cls,
        model: nn.Module,
        source: Source | L2erDocument,
        *,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> Self:
        """Read what ``clcurv spectrum --l2er FILE`` wrote.

        Args:
            model: The model that is trained; wrappers (``module.``, ``_orig_mod.``) are looked
                through, and one constant prefix of the layers' names may differ.
            source: A path, ``"-"``, an open file, a mapping or a document.
            optimizer: Takes the weight decay over: it is added to the gradients right before
                every step, coupled in whatever optimizer, also AdamW. Without it give
                ``weight_decay=reg.weight_decay`` to your (not decoupled) optimizer.

        Raises:
            InputError: Unreadable, or another schema.
            MismatchError: A layer of the document is not in the model.
            UsageError: `optimizer` has a weight decay of its own.
        """
        document = load_document(source, L2erDocument)
        if not document.complete:
            raise InputError(
                "the recommendation is partial: the run that wrote it was interrupted",
                hint="run clcurv spectrum again to its end",
            )
        return cls(
            model,
            weight_decay=document.weight_decay,
            er_lr=document.er_lr,
            er_every=document.er_every,
            layers=document.er_layers,
            window=document.window,
            optimizer=optimizer,
        )

    @property
    def active(self) -> bool:
        """Whether there is anything to do but weight decay: not in a healthy stream."""
        return self.er_lr > 0 and self.er_every > 0

    def __repr__(self) -> str:
        return (
            f"L2ER(weight_decay={self.weight_decay:g}, er_lr={self.er_lr:g}, "
            f"er_every={self.er_every}, window={self.window}, {len(self.layers)} layers)"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove every hook and forget the window; the model and optimizer are as before."""
        self._handles.close()
        self._held.clear()
        self._batches = 0

    def step(self, batch: Any) -> float | None:
        """Take note of a mini-batch, after the optimizer's step on it.

        Args:
            batch: What the model was called with: a tensor, a mapping of keywords, a `Batch`, or
                a tuple whose first entry is one of them (the rest, targets, is not used).

        Returns:
            The mean effective rank where a step up was due, as it was before the step; else None.

        Raises:
            UsageError: `batch` is none of these.
        """
        return self.step_all([batch])

    def step_all(self, batches: Sequence[Any]) -> float | None:
        """As `step`, for micro-batches whose gradients were accumulated into one step."""
        if not self.active:
            return None
        for batch in batches:
            self._hold(_inputs_of(batch))
        self._batches += 1
        if self._batches < self.er_every:
            return None
        held, self._held, self._batches = self._held, [], 0
        return self._ascend(held)

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs to take the same steps: counters, and the window."""
        return {
            "batches": self._batches,
            "held": [_detached(x, "cpu") for x in self._held],
            "steps": self.steps,
            "skipped": self.skipped,
            "effective_rank": self.effective_rank,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where `state_dict` was taken.

        Raises:
            InputError: `state` is not one.
        """
        try:
            batches, held = int(state["batches"]), list(state["held"])
            steps, skipped = int(state["steps"]), int(state["skipped"])
            rank = state["effective_rank"]
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"not a state of L2ER: {error!r}") from error
        self._batches, self._held = batches, [_detached(_inputs_of(x)) for x in held]
        self.steps, self.skipped, self.effective_rank = steps, skipped, rank

    def callback(self) -> TrainerCallback:
        """For the Hugging Face ``Trainer``: ``Trainer(..., callbacks=[reg.callback()])``.

        It applies the weight decay (give ``TrainingArguments(weight_decay=0.0)``), sees the
        batches through the model, and keeps its state in the Trainer's checkpoints.
        """
        from clcurv.training.l2er_callback import L2erCallback

        return L2erCallback(self)

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        """Add the weight decay to the gradients before each of the optimizer's steps.

        Raises:
            UsageError: It has a weight decay of its own.
        """
        own = next((g["weight_decay"] for g in optimizer.param_groups if g.get("weight_decay")), 0)
        if own:
            raise UsageError(
                f"the optimizer already has a weight decay of {own:g}, which would come on top",
                hint="give it weight_decay=0",
            )
        if self.weight_decay == 0:
            return

        @torch.no_grad()
        def decay(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            for group in optimizer.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        p.grad.add_(p, alpha=self.weight_decay)

        self._handles.callback(optimizer.register_step_pre_hook(decay).remove)

    def _check(self) -> None:
        for name in ("weight_decay", "er_lr", "er_every", "window"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise UsageError(f"{name} must be a number of at least 0, not {value}")
        if self.active and self.window < 2:
            raise UsageError(f"an effective rank needs a window of samples, not {self.window}")

    def _hold(self, inputs: Inputs) -> None:
        """Keep at most the last `window` samples."""
        self._held.append(_detached(inputs))
        surplus = sum(map(_length, self._held)) - self.window
        while surplus > 0:
            size = _length(self._held[0])
            if size <= surplus:
                del self._held[0]
            else:
                self._held[0] = _without_first(self._held[0], surplus)
            surplus -= size

    def _ascend(self, held: Sequence[Inputs]) -> float | None:
        trained = [p for p in self.model.parameters() if p.requires_grad]
        with torch.enable_grad():
            rank = mean_effective_rank(self.model, held, self.layers)
        grads: Sequence[Tensor | None] = ()
        if bool(rank.isfinite()) and rank.requires_grad:
            grads = torch.autograd.grad(rank, trained, allow_unused=True)
        usable = bool(grads) and all(bool(g.isfinite().all()) for g in grads if g is not None)
        if not _all_agree(usable, rank.device):
            self.skipped += 1
            if self.skipped == 1:
                warnings.warn(
                    "L2ER: a step was left out, the layers' inputs or the gradient of their "
                    "effective rank are not finite",
                    stacklevel=4,
                )
            return None
        with torch.no_grad():
            for p, g in zip(trained, _averaged(grads), strict=True):
                if g is not None:
                    p.add_(g, alpha=self.er_lr)
        self.steps += 1
        self.effective_rank = float(rank.detach())
        return self.effective_rank


def _unwrapped(model: nn.Module) -> nn.Module:
    """The module inside of DDP, DataParallel or a compiled one: it has its parameters."""
    while (inner := next((model._modules.get(w) for w in _WRAPPERS), None)) is not None and (
        len(model._modules) == 1
    ):
        model = inner
    return model


def _found_layers(model: nn.Module, layers: Sequence[str]) -> tuple[str, ...]:
    if not layers:
        raise UsageError("no layer is named whose effective rank should grow")
    names = [name for name, _ in model.named_modules() if name]
    found = pair_names(layers, names).to_model
    missing = [name for name in layers if name not in found]
    if missing:
        raise MismatchError(
            f"layer {missing[0]!r} of the recommendation is not in the model "
            f"({len(missing)} of {len(layers)} are not)",
            hint="give the architecture that clcurv spectrum measured",
        )
    return tuple(found[name] for name in layers)


def _inputs_of(batch: Any) -> Inputs:
    if isinstance(batch, Batch):
        batch = batch.inputs
    if isinstance(batch, tuple | list) and batch:
        batch = batch[0]
    if isinstance(batch, Tensor):
        return batch
    if isinstance(batch, Mapping):
        return {str(k): v for k, v in batch.items() if isinstance(v, Tensor)}
    raise UsageError(
        f"L2ER.step takes what the model was called with, not {type(batch).__name__}",
        hint="reg.step(x), after optimizer.step()",
    )


def _detached(inputs: Inputs, device: str | None = None) -> Inputs:
    """A copy: the caller may write the next batch into the same memory."""

    def copy(value: Tensor) -> Tensor:
        return value.detach().to(device).clone() if device else value.detach().clone()

    if isinstance(inputs, Tensor):
        return copy(inputs)
    return {key: copy(value) for key, value in inputs.items()}


def _length(inputs: Inputs) -> int:
    first = inputs if isinstance(inputs, Tensor) else next(iter(inputs.values()))
    return len(first) if first.ndim else 1


def _without_first(inputs: Inputs, n: int) -> Inputs:
    size = _length(inputs)
    if isinstance(inputs, Tensor):
        return inputs[n:]
    return {k: v[n:] if v.ndim and len(v) == size else v for k, v in inputs.items()}


def _world() -> int:
    distributed = torch.distributed
    ready = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if ready else 1


def _all_agree(usable: bool, device: torch.device) -> bool:
    """Whether every process of a distributed run can take the step."""
    if _world() == 1:
        return usable
    flag = torch.tensor(float(usable), device=device)
    torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MIN)
    return bool(flag)


def _averaged(grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """The mean over the processes of a distributed run, so that its replicas stay one."""
    world = _world()
    if world > 1:
        for g in grads:
            if g is not None:
                torch.distributed.all_reduce(g)
                g /= world
    return grads
