"""Is every timm model recognised by the names and shapes of its tensors?

For each model whose parameters fit into 2 GiB, its state dict with another number of classes and,
where it takes one, another image size is looked up in the fingerprint index. Models are built on
the meta device, so nothing is allocated. Printed are the models that were named alone, among
siblings of identical shapes, among siblings that differ in tables whose size follows the image,
and those missed.

    python tests/benchmarks/detection.py
    python tests/benchmarks/detection.py 'vit_*' --groups
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import timm
import torch
from timm.models.mlp_mixer import MlpMixer
from torch import nn
from torch.overrides import TorchFunctionMode

from clcurv.inputs.fingerprints import is_head, is_volatile, lookup

_LIMIT = 2**31
_CLASSES = 7
_BUILD_ERRORS = (TypeError, ValueError, RuntimeError, AssertionError, KeyError, AttributeError)

_FILLING = frozenset(
    ("uniform_", "normal_", "erfinv_", "mul_", "add_", "sub_", "div_", "clamp_", "fill_", "zero_")
)

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Outcome:
    """What became of one model.

    Attributes:
        name: timm's name.
        kind: ``alone`` | ``identical`` | ``sizes`` | ``missed`` | ``large`` | ``unbuilt``.
        others: The other timm models that were named.
        changed: What was changed: ``classes``, ``classes+size``, or ``nothing``.
    """

    name: str
    kind: str
    others: tuple[str, ...] = ()
    changed: str = "nothing"


class _NoValues(TorchFunctionMode):
    """Initialising is most of the time of building a model, and shapes do not need it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in _FILLING and args and args[0].is_meta:
            return args[0]
        return func(*args, **(kwargs or {}))


def _built(name: str, **arguments: Any) -> nn.Module:
    with warnings.catch_warnings(), torch.device("meta"), _NoValues():
        warnings.simplefilter("ignore")
        model: nn.Module = timm.create_model(name, **arguments)
    return model


def _shapes(model: nn.Module) -> Shapes:
    return {name: tuple(t.shape) for name, t in model.state_dict().items()}


def _body(shapes: Mapping[str, tuple[int, ...]]) -> frozenset[tuple[str, tuple[int, ...]]]:
    return frozenset(
        (name.replace("fc_norm.", "norm."), shape)
        for name, shape in shapes.items()
        if not (is_head(name) or is_volatile(name))
    )


def _changed(name: str, model: nn.Module) -> tuple[Shapes, str]:
    """The model with another head and, if it takes one, for another image size."""
    size = (getattr(model, "pretrained_cfg", None) or {}).get("input_size", (3, 224, 224))[-1]
    own = _body(_shapes(model))
    # Weights that mix tokens are as many as tokens: for another size it is another network.
    sizes = () if isinstance(model, MlpMixer) else (2 * size, size + 128, size + 64, size // 2)
    for other in sizes:
        try:
            shapes = _shapes(_built(name, num_classes=_CLASSES, img_size=other))
        except _BUILD_ERRORS:
            continue
        if _body(shapes) != own:
            return shapes, "classes+size"
    try:
        return _shapes(_built(name, num_classes=_CLASSES)), "classes"
    except _BUILD_ERRORS:
        return _shapes(model), "nothing"


def outcomes(names: list[str]) -> Iterator[Outcome]:
    """Look every model up."""
    bodies: dict[str, frozenset[tuple[str, tuple[int, ...]]]] = {}

    def body(name: str) -> frozenset[tuple[str, tuple[int, ...]]]:
        if name not in bodies:
            bodies[name] = _body(_shapes(_built(name)))
        return bodies[name]

    for name in names:
        try:
            model = _built(name)
        except _BUILD_ERRORS:
            yield Outcome(name, "unbuilt")
            continue
        if sum(p.numel() * 4 for p in model.parameters()) > _LIMIT:
            yield Outcome(name, "large")
            continue
        shapes, changed = _changed(name, model)
        bodies[name] = _body(_shapes(model))
        found = [n.removeprefix("timm:") for n in lookup(shapes) if n.startswith("timm:")]
        others = tuple(n for n in found if n != name)
        if name not in found:
            kind = "missed"
        elif not others:
            kind = "alone"
        else:
            kind = "identical" if all(body(n) == body(name) for n in others) else "sizes"
        yield Outcome(name, kind, others, changed)


def main() -> int:
    """Entry of the script; 1 if a model was missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pattern", nargs="?", default="*", help="of timm's names")
    parser.add_argument("--groups", action="store_true", help="print who is taken for whom")
    options = parser.parse_args()
    names = timm.list_models(options.pattern)
    all_of_them = []
    for outcome in outcomes(names):
        all_of_them.append(outcome)
        if outcome.kind == "missed":
            print(f"missed: {outcome.name} ({outcome.changed}), named: {outcome.others or 'none'}")
        if len(all_of_them) % 100 == 0:
            print(f"{len(all_of_them)} of {len(names)}", file=sys.stderr)
    count = Counter(outcome.kind for outcome in all_of_them)
    looked = [o for o in all_of_them if o.kind not in ("large", "unbuilt")]
    changed = Counter(o.changed for o in looked)
    print(f"timm {timm.__version__}: {len(names)} models, {len(looked)} fit into 2 GiB")
    print("changed:", ", ".join(f"{key} {changed[key]}" for key in sorted(changed)))
    print(
        f"named alone {count['alone']}, among siblings of identical shapes {count['identical']}, "
        f"among siblings that differ in size {count['sizes']}, missed {count['missed']}"
    )
    if options.groups:
        groups = {tuple(sorted((o.name, *o.others))) for o in looked if o.others}
        for group in sorted(groups, key=lambda g: (-len(g), g)):
            print(f"{len(group)}: {', '.join(group)}")
    return int(count["missed"] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
