"""A schedule in a training job: parameter groups, scaled importances, λ by name.

Nothing here imports torch: a model is asked for its ``named_parameters()``, an importance
for its product with a number.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from clcurv.errors import InputError, MismatchError, UsageError
from clcurv.report.kappa_document import Group, KappaDocument
from clcurv.report.reader import Source, load_document
from clcurv.report.text import printable
from clcurv.training.names import Pairing, pair_names

if TYPE_CHECKING:
    from torch import nn

MIN_MATCHED = 0.5


class _Scalable(Protocol):
    def __mul__(self, other: float, /) -> Any: ...


T = TypeVar("T", bound=_Scalable)


@dataclass(frozen=True)
class Match:
    """How a report's parameters and a model's found each other.

    Attributes:
        matched: Names (as in the model) that take their group's values.
        unmatched_model: Names that no group has: they take the defaults (new heads).
        unmatched_document: Names in the report's backbone that the model lacks.
        fraction: Share of the backbone's names in the report that were found.
        prefix_document, prefix_model: Constant prefixes that were ignored on either side.
        resized: Groups whose number of elements differs from the measured one.
    """

    matched: tuple[str, ...]
    unmatched_model: tuple[str, ...]
    unmatched_document: tuple[str, ...]
    fraction: float
    prefix_document: str
    prefix_model: str
    resized: tuple[str, ...]

    def __str__(self) -> str:
        """``78 of 80 parameters take their group's values; ...``: what to look at in one line."""
        total = len(self.matched) + len(self.unmatched_model)
        parts = [
            f"{len(self.matched)} of {total} parameters take their group's values, "
            f"{100 * self.fraction:.1f} % of the report's backbone found"
        ]
        for text, names in (
            ("defaults for", self.unmatched_model),
            ("in the report only", self.unmatched_document),
            ("of another size", self.resized),
        ):
            if names:
                more = f" and {len(names) - 3} more" if len(names) > 3 else ""
                parts.append(f"{text}: {', '.join(names[:3])}{more}")
        if self.prefix_document or self.prefix_model:
            parts.append(f"prefix {self.prefix_document!r} is {self.prefix_model!r} in the model")
        return "; ".join(parts)


class LayerSchedule:
    """λ and learning-rate scales per layer, from a report of ``clcurv kappa``.

    Attributes:
        document: The validated report.
    """

    def __init__(self, document: KappaDocument) -> None:
        self.document = document
        self._groups: dict[str, Group] = {
            name: group
            for group in document.groups
            for name in (*group.param_names, *group.tied_names)
        }

    def __repr__(self) -> str:
        schedule = self.document.schedule
        return (
            f"LayerSchedule({printable(self.document.model.arch)}, {schedule.mode}, "
            f"{schedule.direction}, {len(self.document.groups)} groups)"
        )

    def lambda_of(self, name: str) -> float:
        """λ of a parameter, by its exact name in the report; the default for any other."""
        group = self._groups.get(name)
        return group.lambda_ if group else self.document.defaults.lambda_

    def lr_scale_of(self, name: str) -> float:
        """lr_scale of a parameter, by its exact name in the report; else the default."""
        group = self._groups.get(name)
        return group.lr_scale if group else self.document.defaults.lr_scale

    def match(self, model: nn.Module) -> Match:
        """Compare names with a model's; never raises, so it can be printed first."""
        sizes = {n: p.numel() for n, p in model.named_parameters(remove_duplicate=False)}
        pairing = pair_names(self._groups, sizes)
        found = set(pairing.to_model.values())
        backbone = [n for g in self.document.groups if not g.is_head for n in g.param_names]
        resized = []
        for group in self.document.groups:
            names = [pairing.to_model.get(n) for n in group.param_names]
            if all(names) and sum(sizes[n] for n in names if n) != group.numel:
                resized.append(group.name)
        lost = tuple(n for n in backbone if n not in pairing.to_model)
        return Match(
            matched=tuple(n for n in sizes if n in found),
            unmatched_model=tuple(n for n in sizes if n not in found),
            unmatched_document=lost,
            fraction=1 - len(lost) / len(backbone) if backbone else float(bool(found)),
            prefix_document=pairing.prefix_document,
            prefix_model=pairing.prefix_model,
            resized=tuple(resized),
        )

    def param_groups(
        self,
        model: nn.Module,
        *,
        lr: float | None = None,
        weight_decay: float | None = None,
        head_lr: float | None = None,
        no_decay: Collection[str] | Callable[[str, nn.Parameter], bool] | None = None,
    ) -> list[dict[str, Any]]:
        """Optimizer groups: named, disjoint, covering, never empty, shallow to deep.

        With `lr`, for ``torch.optim``, the HF ``Trainer`` and Lightning: every group has its
        own ``lr`` = lr·lr_scale and no ``lr_scale``, which those ignore and timm would apply
        again. Without it, for timm: groups carry ``lr_scale`` and take the optimizer's rate;
        timm's schedulers multiply, so use one (a plain torch scheduler would ignore it).

        Frozen parameters are left out, tied ones appear once. Parameters in no group of the
        report, such as a new head, form the last group, ``default``.

        Args:
            model: The model to train; a constant name prefix may differ from the report's.
            lr: Base learning rate; None for timm.
            weight_decay: Set on every group, and split: a group ``NAME.no_decay`` with 0
                holds the parameters that `no_decay` names. None leaves the optimizer's own.
            head_lr: Rate of the report's heads and of ``default``; with ``lr=None`` not
                allowed. SLCA trains the head at 100 times the backbone's rate.
            no_decay: Names, or a test of (name, parameter). By default all parameters with
                at most one dimension and those in the model's own ``no_weight_decay()``.

        Raises:
            MismatchError: Fewer than half of the report's parameters are in the model.
            UsageError: A rate is negative, or nothing is left to train.
        """
        _check_rates(lr=lr, weight_decay=weight_decay, head_lr=head_lr)
        parameters = dict(model.named_parameters(remove_duplicate=False))
        owner = self._owners(parameters, whole=True)
        decays = _decay_test(model, no_decay)
        order: list[Group | None] = [*self.document.groups, None]
        buckets: dict[tuple[int, bool], list[nn.Parameter]] = {}
        position = {group.name: i for i, group in enumerate(self.document.groups)}
        seen: set[int] = set()
        # A tensor under several names belongs to the name that the report knows.
        for name, parameter in sorted(parameters.items(), key=lambda item: item[0] not in owner):
            if id(parameter) in seen or not parameter.requires_grad:
                continue
            seen.add(id(parameter))
            group = owner.get(name)
            index = position[group.name] if group else len(order) - 1
            decayed = weight_decay is None or decays(name, parameter)
            buckets.setdefault((index, not decayed), []).append(parameter)
        if not buckets:
            raise UsageError(
                "no parameter to train: all are frozen", hint="set requires_grad on some"
            )
        names = _unique_names(order, buckets)
        return [
            self._group_dict(
                names[key], order[key[0]], buckets[key], key[1], lr, weight_decay, head_lr
            )
            for key in sorted(buckets)
        ]

    def scale_importance(self, importance: Mapping[str, T]) -> dict[str, T]:
        """Multiply stored importances (EWC's Fisher, MAS's α) by λ of their layer.

        Equivalent to the penalty ½λ Σ_ℓ λ_ℓ Σ_i F_i (θ_i − θ*_i)². Names in no group take
        the default λ.

        Args:
            importance: Parameter name -> tensor (or array) of importances.

        Returns:
            New values under the same names; the input is left as it was.

        Raises:
            MismatchError: Fewer than half of the names meet the report.
        """
        owner = self._owners(importance, whole=False)
        default = self.document.defaults.lambda_
        return {
            name: value * (owner[name].lambda_ if name in owner else default)
            for name, value in importance.items()
        }

    def _owners(self, names: Collection[str], *, whole: bool) -> dict[str, Group]:
        """Name on the other side -> its group.

        Args:
            names: The other side's names.
            whole: Most of the report must be found; else most of the smaller side (an
                importance often leaves norms and biases out).
        """
        pairing: Pairing = pair_names(self._groups, names)
        backbone = [n for g in self.document.groups if not g.is_head for n in g.param_names]
        found = sum(n in pairing.to_model for n in backbone)
        least = MIN_MATCHED * (len(backbone) if whole else min(len(backbone), len(names)))
        if found < least or (backbone and not found):
            example = printable(next((n for n in backbone if n not in pairing.to_model), ""))
            raise MismatchError(
                f"only {found} of the report's {len(backbone)} backbone parameters are here "
                f"(for example {example!r} is not): the report is of "
                f"{printable(self.document.model.arch)}",
                hint="schedule.match(model) lists the names of both sides",
            )
        return {other: self._groups[name] for name, other in pairing.to_model.items()}

    def _group_dict(
        self,
        name: str,
        group: Group | None,
        parameters: list[nn.Parameter],
        exempt: bool,
        lr: float | None,
        weight_decay: float | None,
        head_lr: float | None,
    ) -> dict[str, Any]:
        scale = group.lr_scale if group else self.document.defaults.lr_scale
        result: dict[str, Any] = {"name": name, "params": parameters}
        if lr is None:
            result["lr_scale"] = scale
        elif head_lr is not None and (group is None or group.is_head):
            result["lr"] = head_lr
        else:
            result["lr"] = lr * scale
        if weight_decay is not None:
            result["weight_decay"] = 0.0 if exempt else weight_decay
        return result


def load_schedule(source: Source | KappaDocument) -> LayerSchedule:
    """Read the report that ``clcurv kappa -o`` wrote.

    Args:
        source: A path, ``"-"`` for standard input, an open file, a mapping, or a document.

    Raises:
        InputError: Unreadable, not strict JSON, not a ``clcurv.schedule`` 1.x, or what an
            interrupted run left.
    """
    document = load_document(source)
    if not document.complete:
        raise InputError(
            "the report is partial: the run that wrote it was interrupted",
            hint="run clcurv kappa again to its end",
        )
    return LayerSchedule(document)


def _check_rates(*, lr: float | None, weight_decay: float | None, head_lr: float | None) -> None:
    rates = {"lr": lr, "weight_decay": weight_decay, "head_lr": head_lr}
    for name, value in rates.items():
        if value is not None and not 0 <= value < float("inf"):
            raise UsageError(f"{name} must be a number of at least 0, not {value}")
    if head_lr is not None and lr is None:
        raise UsageError(
            "head_lr needs lr", hint="timm's groups only scale its own rate: give lr as well"
        )


def _decay_test(
    model: nn.Module, no_decay: Collection[str] | Callable[[str, nn.Parameter], bool] | None
) -> Callable[[str, nn.Parameter], bool]:
    if callable(no_decay):
        exempt = no_decay
        return lambda name, parameter: not exempt(name, parameter)
    if no_decay is not None:
        listed = set(no_decay)
        return lambda name, parameter: name not in listed
    own = getattr(model, "no_weight_decay", None)
    named = set(own()) if callable(own) else set()
    return lambda name, parameter: parameter.ndim > 1 and name not in named


def _unique_names(
    order: list[Group | None], keys: Collection[tuple[int, bool]]
) -> dict[tuple[int, bool], str]:
    """A name for each bucket; Lightning and the logs tell groups apart by it."""
    taken: set[str] = set()
    names = {}
    for index, exempt in sorted(keys):
        group = order[index]
        name = (group.name if group else "default") + (".no_decay" if exempt else "")
        while name in taken:
            name += "_"
        taken.add(name)
        names[index, exempt] = name
    return names
