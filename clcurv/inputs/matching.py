"""Put a checkpoint's tensors into a model, or prove that they do not fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from clcurv.errors import ArchitectureError, MismatchError, NumericalError
from clcurv.inputs.checkpoint import Weights
from clcurv.inputs.fingerprints import is_head, is_pretraining, is_volatile

REQUIRED = 0.99  # of the backbone's elements, on either side


@dataclass(frozen=True)
class Match:
    """Which tensors of a checkpoint go into a model.

    Attributes:
        names: Tensors that both have, in the model's order.
        missing: Names in the model without a partner.
        unexpected: Names in the checkpoint without a partner.
        fraction: Elements of the backbone filled from the checkpoint, 0..1.
    """

    names: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    fraction: float


def arrange(weights: Weights, state: Mapping[str, Tensor], *, by_order: bool) -> dict[str, Tensor]:
    """The checkpoint's tensors under the names that a model's state dict uses.

    By name: prefixes were stripped, but a model may have them (``encoder.``), so the
    spelling that fits better is taken. By order: the i-th tensor gets the i-th name,
    counters like num_batches_tracked left out on both sides.

    Raises:
        MismatchError: By order, and the numbers of tensors differ.
    """
    tensors = dict(weights.tensors)
    if by_order:
        own = [name for name in state if not is_volatile(name)]
        theirs = [tensor for name, tensor in tensors.items() if not is_volatile(name)]
        if len(own) != len(theirs):
            raise MismatchError(
                f"the model has {len(own)} tensors, the checkpoint {len(theirs)}: they cannot be "
                "matched by order",
                hint="name another model with --arch",
            )
        return dict(zip(own, theirs, strict=True))
    if not weights.prefix:
        return tensors
    original = {weights.original_names.get(name, name): t for name, t in tensors.items()}
    fits = len(state.keys() & original.keys()) > len(state.keys() & tensors.keys())
    return original if fits else tensors


def match_names(
    model: nn.Module, tensors: Mapping[str, Tensor], head: Sequence[str], *, arch: str
) -> Match:
    """Pair tensors of equal name and shape; refuse what leaves the backbone unfilled.

    Args:
        model: With random weights.
        tensors: The checkpoint's.
        head: Names of the model's head.
        arch: For messages.

    Raises:
        MismatchError: A shape differs, or under 99 % of the backbone's elements are
            matched on either side.
    """
    state = model.state_dict()
    lazy = [name for name, tensor in state.items() if is_lazy(tensor)]
    if lazy:
        raise ArchitectureError(
            f"{arch}: {lazy[0]} has no shape before the first batch (a lazy module)",
            hint="give the layers their sizes, or run a batch in the function that makes the model",
        )
    wrong = [
        f"{name} is {_shape(tensors[name])} in the checkpoint and {_shape(own)} in the model"
        for name, own in state.items()
        if name in tensors and tensors[name].shape != own.shape and not is_volatile(name)
    ]
    if wrong:
        raise _mismatch(arch, "shapes differ", wrong)
    heads = set(head)
    used = {n for n in state if n in tensors and tensors[n].shape == state[n].shape}
    missing = [n for n in state if n not in used and not is_volatile(n)]
    unexpected = [n for n in tensors if n not in used and not is_volatile(n)]
    backbone = {n: state[n].numel() for n in state if n not in heads and not is_volatile(n)}
    fraction = _share(backbone, [n for n in backbone if n in used])
    if fraction < REQUIRED:
        lost = [n for n in missing if n not in heads]
        wanted = Counter(tuple(state[n].shape) for n in backbone)
        found = wanted & Counter(tuple(t.shape) for t in tensors.values())
        renamed = found.total() >= REQUIRED * wanted.total()
        hint = "the shapes agree: if only the names differ, add --match-by-order"
        share = f"only {fraction:.1%} of its backbone is in the checkpoint, which lacks"
        raise _mismatch(arch, share, lost, hint=hint if renamed else None)
    lost = [n for n in missing if n in heads]
    if lost:
        raise _mismatch(arch, "the checkpoint lacks the model's head", lost)
    strangers = [n for n in unexpected if not (is_head(n) or is_pretraining(n))]
    theirs = {n: t.numel() for n, t in tensors.items() if n in used or n in strangers}
    if _share(theirs, strangers) > 1 - REQUIRED:
        raise _mismatch(
            arch, "the checkpoint has tensors that the model has no place for", strangers
        )
    return Match(tuple(n for n in state if n in used), tuple(missing), tuple(unexpected), fraction)


def _share(numels: Mapping[str, int], names: Sequence[str]) -> float:
    total = sum(numels.values())
    return sum(numels[name] for name in names) / total if total else 1.0


def _shape(tensor: Tensor) -> str:
    return str(list(tensor.shape))


def _mismatch(
    arch: str, what: str, items: Sequence[str], *, hint: str | None = None
) -> MismatchError:
    shown = "; ".join(items[:3]) + (f"; and {len(items) - 3} more" if len(items) > 3 else "")
    return MismatchError(
        f"the checkpoint does not fit {arch}: {what}: {shown}",
        hint=hint or "name the right model with --arch NAME",
    )


def fill(model: nn.Module, tensors: Mapping[str, Tensor], names: Sequence[str]) -> list[str]:
    """Copy tensors into the model (cast to its float32), make it ready, say what was cast.

    Raises:
        NumericalError: A tensor holds NaN or infinity.
    """
    chosen = {name: tensors[name] for name in names}
    check_finite(chosen)
    model.load_state_dict(chosen, strict=False)
    make_ready(model)
    return cast_notes(chosen)


def cast_notes(tensors: Mapping[str, Tensor]) -> list[str]:
    """One sentence for each floating dtype that is not float32."""
    casts = {
        str(tensor.dtype).removeprefix("torch.")
        for tensor in tensors.values()
        if tensor.is_floating_point() and tensor.dtype != torch.float32
    }
    return [f"{name} weights were cast to float32" for name in sorted(casts)]


def check_finite(tensors: Mapping[str, Tensor]) -> None:
    """Refuse weights with NaN or infinity.

    Raises:
        NumericalError: Naming the first such tensor.
    """
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            bad = int((~torch.isfinite(tensor)).sum())
            raise NumericalError(
                f"the weights are not finite: {name} holds {bad:,} NaN or infinite of "
                f"{tensor.numel():,} values; the training that wrote them diverged",
                hint="use an earlier checkpoint",
            )


def make_ready(model: nn.Module) -> nn.Module:
    """Eval mode, float32, every parameter requiring grad.

    Raises:
        ArchitectureError: A parameter of whole numbers.
    """
    model.float().eval()
    for name, param in model.named_parameters():
        if not param.is_floating_point():
            raise ArchitectureError(
                f"parameter {name} of type {param.dtype} has no gradient",
                hint="measure the network before quantisation, or register it as a buffer",
            )
        param.requires_grad_(True)
    return model
