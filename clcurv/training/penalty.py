"""λ/2 Σ α'(θ−θ*)² in a training job: as a loss term, or as its gradient in place.

Suresh et al. (arXiv 2608.00630) hold every parameter with its own α'; with α' = F, the diagonal
Fisher, it is EWC (Kirkpatrick et al. 2017), with α' = 2Ω it is MAS (Aljundi et al. 2018).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from clcurv.errors import MismatchError, UsageError
from clcurv.report.kappa_document import KappaDocument
from clcurv.report.reader import Source
from clcurv.report.text import printable
from clcurv.training.multipliers import load_multipliers
from clcurv.training.names import pair_names
from clcurv.training.schedule import MIN_MATCHED, LayerSchedule, load_schedule

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle
    from transformers import TrainerCallback

Schedule = LayerSchedule | KappaDocument | Source
Reference = str | Path | nn.Module | Mapping[str, Tensor]


@dataclass
class _Held:
    """One parameter: its multipliers and the value it is held to, on its device."""

    name: str
    parameter: nn.Parameter
    alpha: Tensor
    anchor: Tensor

    def difference(self, value: Tensor) -> Tensor:
        """θ − θ*, of the rows that were there."""
        if self.alpha.device != value.device:  # the model was moved after it was held
            self.alpha, self.anchor = self.alpha.to(value.device), self.anchor.to(value.device)
        rows = value[: len(self.anchor)] if value.ndim else value
        return rows.to(self.anchor.dtype) - self.anchor


class ImportancePenalty:
    """The penalty λ/2 Σ_j α'_j (θ_j − θ*_j)² of one model.

    As a term of the loss, or (less memory, no graph) as its gradient::

        penalty = ImportancePenalty.from_file(model, "multipliers.safetensors")
        for x, y in loader:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()      # (loss + penalty.penalty()).backward()
            penalty.add_gradient_()                    # instead of this line
            optimizer.step()

    Call `add_gradient_` once per optimizer step: after the last backward pass of accumulated
    gradients, after ``scaler.unscale_``, and before clipping if the sum is to be clipped.
    Parameters without a multiplier, and rows that a layer gained since (new classes of a head,
    new words of an embedding), are free. Frozen parameters get no gradient.

    Attributes:
        lambda_: λ; may be changed while training.
        names: Parameters held, as in the model.
        grown: Those that have more rows now than when they were measured.
        unmatched: Names with multipliers that the model lacks.
    """

    def __init__(
        self,
        model: nn.Module,
        multipliers: Mapping[str, Tensor],
        *,
        lambda_: float = 1.0,
        schedule: Schedule | None = None,
        reference: Reference | None = None,
    ) -> None:
        """Hold a model to where it is, or to a reference.

        Args:
            model: The model to train; one constant prefix of its names may differ
                (``module.``, ``_orig_mod.``).
            multipliers: Parameter name -> α', of its shape or of its first rows.
            lambda_: λ.
            schedule: Report of ``clcurv kappa``: α' is multiplied by λ_ℓ of its layer.
            reference: θ*: a checkpoint, a model, or name -> tensor; None takes the model as it
                is now (copied). A job that resumes in mid-task must name the task's start.

        Raises:
            MismatchError: Fewer than half of the names are in the model, or a shape differs.
            UsageError: λ is negative or not finite.
            InputError: The checkpoint or schedule cannot be read.
        """
        if not 0 <= lambda_ < math.inf:
            raise UsageError(f"the weight of the penalty must be at least 0, not {lambda_}")
        self.lambda_ = float(lambda_)
        if schedule is not None:
            scheduled = schedule if isinstance(schedule, LayerSchedule) else load_schedule(schedule)
            multipliers = scheduled.scale_importance(multipliers)
        parameters = dict(model.named_parameters(remove_duplicate=False))
        found = pair_names(multipliers, parameters).to_model
        self.unmatched = tuple(name for name in multipliers if name not in found)
        _check_found(multipliers, self.unmatched)
        anchors = _anchors(reference, found.values())
        held: dict[int, _Held] = {}
        for name, other in found.items():
            parameter = parameters[other]
            if id(parameter) not in held:  # a tied tensor counts once
                anchor = parameter if anchors is None else anchors[other]
                held[id(parameter)] = _hold(other, parameter, multipliers[name], anchor)
        self._held = list(held.values())
        self.names = tuple(h.name for h in self._held)
        self.grown = tuple(
            h.name for h in self._held if h.parameter.ndim and len(h.parameter) > len(h.anchor)
        )

    @classmethod
    def from_file(
        cls,
        model: nn.Module,
        path: str | Path,
        *,
        schedule: Schedule | None = None,
        lambda_: float | None = None,
        reference: Reference | None = None,
    ) -> Self:
        """Read the side file that ``clcurv relimp`` wrote.

        Args:
            model, schedule, reference: As for the class.
            path: The side file of multipliers.
            lambda_: Instead of the λ in the file.

        Raises:
            InputError: Unreadable, or another kind of file.
            MismatchError: Of another model.
            UsageError: No λ in the file and none given, or a schedule is applied twice.
        """
        read = load_multipliers(path)
        weight = read.lambda_ if lambda_ is None else lambda_
        if weight is None:
            raise UsageError(f"{path} states no weight of the penalty", hint="give lambda_=")
        if schedule is not None and read.about.get("schedule"):
            raise UsageError(
                f"{path} holds multipliers with a schedule already in them",
                hint="leave schedule= out, or write the file without one",
            )
        return cls(model, read.tensors, lambda_=weight, schedule=schedule, reference=reference)

    @classmethod
    def ewc(
        cls,
        model: nn.Module,
        fisher: Mapping[str, Tensor],
        *,
        lambda_: float,
        reference: Reference | None = None,
    ) -> Self:
        """EWC: L + λ/2 Σ F(θ−θ*)² (Kirkpatrick et al. 2017, eq. 3), F the diagonal Fisher."""
        return cls(model, fisher, lambda_=lambda_, reference=reference)

    @classmethod
    def mas(
        cls,
        model: nn.Module,
        importance: Mapping[str, Tensor],
        *,
        lambda_: float,
        reference: Reference | None = None,
    ) -> Self:
        """MAS: L + λ Σ Ω(θ−θ*)² (Aljundi et al. 2018, eq. 4); without the half, so twice λ."""
        return cls(model, importance, lambda_=2 * lambda_, reference=reference)

    def __repr__(self) -> str:
        return f"ImportancePenalty(lambda_={self.lambda_:g}, {len(self._held)} tensors)"

    def penalty(self) -> Tensor:
        """λ/2 Σ α'(θ−θ*)² with its graph: a scalar to add to the loss."""
        parts = [(h.alpha * h.difference(h.parameter).square()).sum() for h in self._held]
        if not parts:
            return torch.zeros(())
        where = parts[0].device
        return self.lambda_ / 2 * torch.stack([p.to(where) for p in parts]).sum()

    @torch.no_grad()
    def value(self) -> float:
        """The penalty now, without a graph, summed in float64."""
        total = 0.0
        for h in self._held:
            total += float((h.alpha * h.difference(h.parameter).square()).sum(dtype=torch.float64))
        return self.lambda_ / 2 * total

    @torch.no_grad()
    def add_gradient_(self) -> None:
        """Add λ α'(θ−θ*) to ``.grad`` in place; no graph, one tensor of memory at a time.

        A parameter without ``.grad`` gets one, as from the backward pass of `penalty`.

        Raises:
            UsageError: A gradient is sparse.
        """
        if self.lambda_ == 0:
            return
        for h in self._held:
            p = h.parameter
            if not p.requires_grad:
                continue
            pull = h.difference(p).mul_(h.alpha)
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            if p.grad.is_sparse:
                raise UsageError(
                    f"the gradient of {h.name} is sparse, and the penalty's is not",
                    hint="make the embedding with sparse=False",
                )
            rows = p.grad[: len(h.anchor)] if p.ndim else p.grad
            rows.add_(pull.to(rows.dtype), alpha=self.lambda_)

    def attach(self, optimizer: torch.optim.Optimizer) -> RemovableHandle:
        """Add the gradient by itself, right before each of the optimizer's steps.

        It sees gradients that are accumulated, unscaled and clipped already. A step that a
        gradient scaler leaves out leaves the penalty out too.

        Returns:
            A handle: ``handle.remove()`` ends it.

        Raises:
            UsageError: The optimizer has none of the parameters held, or (in a step) is called
                with a closure, which computes gradients after this.
        """
        trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if not any(id(h.parameter) in trained for h in self._held):
            raise UsageError(
                "the optimizer trains none of the parameters that the penalty holds",
                hint="make both from the same model object",
            )

        def pull(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kw: Any) -> None:
            # The step method itself is the first argument, the closure the second.
            if kw.get("closure") is not None or any(callable(a) for a in args[1:]):
                raise UsageError(
                    "a step with a closure computes its gradients after the penalty is added",
                    hint="add penalty.penalty() to the loss inside the closure",
                )
            self.add_gradient_()

        return optimizer.register_step_pre_hook(pull)

    def callback(self) -> TrainerCallback:
        """For the Hugging Face ``Trainer``: ``Trainer(..., callbacks=[penalty.callback()])``.

        Gradient accumulation and mixed precision are seen to; the Trainer's clipping comes before
        the penalty and its logged loss is the task's. Make the penalty before ``train()``.
        """
        from clcurv.training.penalty_callbacks import PenaltyCallback

        return PenaltyCallback(self)

    def lightning_callback(self) -> Any:
        """For Lightning: ``Trainer(callbacks=[penalty.lightning_callback()])``.

        Works through ``on_before_optimizer_step``, which comes after unscaling and before
        Lightning's clipping. In your own module the same is
        ``def on_before_optimizer_step(self, optimizer): self.penalty.add_gradient_()``.

        Raises:
            UsageError: Lightning is not installed.
        """
        from clcurv.training.penalty_callbacks import lightning_callback

        return lightning_callback(self)


def _check_found(multipliers: Mapping[str, Tensor], unmatched: tuple[str, ...]) -> None:
    if not multipliers:
        raise UsageError("there are no multipliers")
    if not unmatched:
        return
    example = printable(unmatched[0])
    some = f"{len(unmatched)} of {len(multipliers)} tensors with multipliers are not in the model"
    if len(multipliers) - len(unmatched) < MIN_MATCHED * len(multipliers):
        raise MismatchError(
            f"{some} (for example {example!r}): the file is of another model",
            hint="give the file that clcurv relimp wrote for this architecture",
        )
    warnings.warn(f"{some} (for example {example!r}): they are not held", stacklevel=4)


def _anchors(reference: Reference | None, names: Any) -> dict[str, Tensor] | None:
    """Model's name -> θ*; None for the model itself."""
    if reference is None:
        return None
    wanted = list(names)
    tensors = _tensors(reference)
    found = pair_names(wanted, tensors).to_model
    missing = [name for name in wanted if name not in found]
    if missing:
        raise MismatchError(
            f"the reference has no {printable(missing[0])!r} ({len(missing)} of {len(wanted)} "
            "parameters with multipliers are not in it)",
            hint="give the checkpoint that the current task starts from",
        )
    return {name: tensors[found[name]] for name in wanted}


def _tensors(reference: Reference) -> Mapping[str, Tensor]:
    if isinstance(reference, nn.Module):
        return dict(reference.named_parameters(remove_duplicate=False))
    if isinstance(reference, Mapping):
        return reference
    from clcurv.inputs.checkpoint import load_weights

    return load_weights(reference).tensors


def _hold(name: str, parameter: nn.Parameter, alpha: Tensor, anchor: Tensor) -> _Held:
    """Checked, copied, in the parameter's place; in float32 for half-precision parameters."""
    shape = parameter.shape
    rows = len(parameter) if parameter.ndim else None
    if alpha.ndim and rows is not None and not bool(alpha[rows:].any()):
        alpha = alpha[:rows]  # of classes that the model is still to get
    for what, tensor in (("multipliers", alpha), ("reference", anchor)):
        same_rows = tensor.shape[1:] == shape[1:] and tensor.ndim == parameter.ndim
        if not same_rows or (rows is not None and len(tensor) > rows):
            raise MismatchError(
                f"the {what} of {printable(name)} have shape {tuple(tensor.shape)}, the parameter "
                f"{tuple(shape)}",
                hint="only further rows are allowed: of new classes, or new words",
            )
    if rows is not None:
        rows = min(len(alpha), len(anchor))
        alpha, anchor = alpha[:rows], anchor[:rows]
    dtype = torch.promote_types(parameter.dtype, torch.float32)

    def kept(tensor: Tensor) -> Tensor:
        return tensor.detach().to(device=parameter.device, dtype=dtype, copy=True)

    return _Held(name, parameter, kept(alpha), kept(anchor))
