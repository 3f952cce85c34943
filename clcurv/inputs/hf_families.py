"""A bare state dict -> the transformers class it belongs to, and a config for it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from clcurv.errors import ArchitectureError
from clcurv.inputs.archspec import with_arguments
from clcurv.inputs.checkpoint import Weights
from clcurv.inputs.fingerprints import is_volatile
from clcurv.inputs.hf_index import Family, collapse, load_families

_ALIKE = 0.85  # names in common over all names, to be called the same family
_FAMILIES = 4  # with the same names, tried
# Families with the same tensors and the same function: the usual one's name is given.
_USUAL = (
    *("bert", "roberta", "distilbert", "electra", "deberta-v2", "mpnet", "gpt2", "opt", "t5"),
    *("llama", "mistral", "qwen2", "vit", "deit", "beit", "dinov2", "swin", "clip"),
)
# Published sizes: width -> attention heads. Where people publish several, both.
_TEXT_HEADS = {128: (2,), 256: (4,), 312: (12,), 384: (12, 6), 512: (8,), 768: (12,), 1024: (16,)}
_IMAGE_HEADS = {192: (3,), 384: (6,), 768: (12,), 1024: (16,), 1280: (16,)}
_OTHER_WIDTHS = (64, 32, 128, 80, 96, 48, 16)  # of one head, tried where nothing is published
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json")


@dataclass(frozen=True)
class Recognised:
    """A transformers class and the config that the shapes tell.

    Attributes:
        cls, model_type: Of transformers.
        config: What was read off the shapes, and the number of heads.
        tensors: Under the names that the class uses in files.
        guessed: Whether the number of heads is one of several possible ones.
        note: What was read.
    """

    cls: str
    model_type: str
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    guessed: bool
    note: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def arch(self) -> str:
        """As `--arch` takes it."""
        return with_arguments(f"hf:{self.cls}", self.arguments)


def recognise(
    weights: Weights, *, cls: str | None = None, arguments: Mapping[str, Any] | None = None
) -> list[list[Recognised]]:
    """Classes and configs that these tensors can belong to.

    Args:
        weights: A file, or a folder without a usable config.
        cls: Only this class of transformers.
        arguments: Numbers of the config that the user gives.

    Returns:
        One list for each family with these names, the most used one first: several entries
        where the number of attention heads, which no shape tells, can be more than one
        thing. Empty where no family has these names.

    Raises:
        ArchitectureError: The family is known, but what it computes depends on numbers of its
            config that neither names nor shapes tell.
    """
    found: list[list[Recognised]] = []
    for family, tensors in _alike_families(weights, cls):
        try:
            found.append(_variants(weights, family, tensors, dict(arguments or {}), cls))
        except ArchitectureError:
            # Less used families are only worth a try; the first one is what it looks like.
            if not found:
                raise
    return found


def _variants(
    weights: Weights,
    family: Family,
    tensors: Mapping[str, Tensor],
    arguments: dict[str, Any],
    cls: str | None,
) -> list[Recognised]:
    solved = _solve(family, {name: tuple(t.shape) for name, t in tensors.items()})
    told = ", ".join(f"{key} {solved[key]}" for key in sorted(solved))
    lacking = [key for key in family.unseen if key not in arguments]
    if (family.depth and family.depth not in solved) or not family.depth:
        lacking.append("the number of blocks" if not family.depth else family.depth)
    if lacking and cls is None:
        raise ArchitectureError(
            f"{weights.path}: these are weights of transformers' {family.cls} "
            f"({told or 'no sizes read'}), but {', '.join(lacking[:4])} cannot be told from them",
            hint="put the model's config.json beside the file",
        )
    note = f"recognised by names and shapes as {family.cls}: {told}"
    note += "; the rest of the config (activation, epsilon, preprocessing) is the family's default"
    found = Recognised(
        family.cls, family.model_type, {**solved, **arguments}, tensors, False, note, arguments
    )
    if not family.heads or family.heads in arguments:
        return [found]
    width = next(
        (solved[key] for key in ("hidden_size", "n_embd", "dim", "d_model") if key in solved), None
    )
    choices, published = _heads(family, tensors, width)
    if not choices:
        raise ArchitectureError(
            f"{weights.path}: these are weights of transformers' {family.cls} ({told}), but the "
            "number of attention heads cannot be told from them",
            hint=f"--arch 'hf:{family.cls}({family.heads}=N)', or its config.json beside the file",
        )
    if len(choices) == 1 and published:
        told = f"{note}; {choices[0]} attention heads, as published models of this width have"
        return [replace(found, config={**found.config, family.heads: choices[0]}, note=told)]
    return [
        replace(
            found,
            config={**found.config, family.heads: count},
            guessed=True,
            arguments={**arguments, family.heads: count},
        )
        for count in choices
    ]


def class_by_names(weights: Weights, model_type: str) -> str | None:
    """Which class of a family has these tensors."""
    found = _alike_families(weights, None, model_type=model_type)
    return found[0][0].cls if found else None


def beside(path: Path) -> Path | None:
    """The folder of a weight file if it has a tokenizer for it."""
    folder = path if path.is_dir() else path.parent
    return folder if any((folder / name).is_file() for name in _TOKENIZER_FILES) else None


def _alike_families(
    weights: Weights, cls: str | None, *, model_type: str | None = None
) -> list[tuple[Family, dict[str, Tensor]]]:
    """The families most alike in names, with the tensors under theirs."""
    ranked: list[tuple[float, int, Family, dict[str, Tensor]]] = []
    spellings = [dict(weights.tensors)]
    if weights.prefix:
        spellings.append({weights.original_names.get(n, n): t for n, t in weights.tensors.items()})
    for tensors in spellings:
        collapsed = {n: collapse(n) for n in tensors if not is_volatile(n)}
        mine = set(collapsed.values())
        for family in load_families():
            if cls not in (None, family.cls) or model_type not in (None, family.model_type):
                continue
            alike, rename = _alike(family, mine)
            if alike >= _ALIKE:
                usual = _USUAL.index(family.model_type) if family.model_type in _USUAL else 99
                named = {
                    _renamed(n, collapsed.get(n, n), rename, family): t for n, t in tensors.items()
                }
                ranked.append((-round(alike, 3), usual, family, named))
    if not ranked:
        return []

    def order(entry: tuple[float, int, Family, dict[str, Tensor]]) -> tuple[float, int, bool, str]:
        # BERT's causal and masked classes have the same tensors; it is trained on masked words.
        return entry[0], entry[1], "Masked" not in entry[2].cls, entry[2].cls

    ranked.sort(key=order)
    chosen: dict[str, tuple[Family, dict[str, Tensor]]] = {}
    for score, _, family, named in ranked:
        if score == ranked[0][0]:
            chosen.setdefault(family.model_type, (family, named))
    return list(chosen.values())[:_FAMILIES]


def _alike(family: Family, mine: set[str]) -> tuple[float, str]:
    """Share of names in common, and whether the base's prefix was missing in the file."""
    best = (0.0, "")
    prefix = f"{family.prefix}."
    for rename in ("", "add", "drop"):
        if rename == "add":
            names = {n if n in family.names else prefix + n for n in mine}
        elif rename == "drop":
            names = {n.removeprefix(prefix) for n in mine}
        else:
            names = mine
        if rename and names == mine:
            continue
        both = len(names & family.names)
        wanted = len(family.names - (family.optional - names))
        score = both / max(1, len(names) + wanted - both)
        if score > best[0]:
            best = (score, rename)
    return best


def _renamed(name: str, collapsed: str, rename: str, family: Family) -> str:
    prefix = f"{family.prefix}."
    if rename == "add" and collapsed not in family.names:
        return prefix + name
    return name.removeprefix(prefix) if rename == "drop" else name


def _solve(family: Family, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Numbers of the config from the shapes."""
    by_name: dict[str, tuple[int, ...]] = {}
    for name, shape in shapes.items():
        by_name.setdefault(collapse(name), shape)
    solved: dict[str, Any] = {}
    for key, where in family.fields.items():
        sizes = by_name.get(where.tensor, ())
        if where.axis >= len(sizes):
            continue
        size = sizes[where.axis]
        if where.slope:
            value = (size - where.offset) / where.slope
            if value >= 1 and value == int(value):
                solved[key] = int(value)
    table = family.fields.get("image_size")
    if table is not None and table.tensor in by_name and "patch_size" in solved:
        patches = by_name[table.tensor][table.axis] - int(table.offset)
        side = math.isqrt(max(patches, 0))
        if side * side == patches:
            solved["image_size"] = side * solved["patch_size"]
    if family.stack:
        numbers = {
            int(m[1]) for n in shapes if (m := re.match(rf"{re.escape(family.stack)}(\d+)\.", n))
        }
        if numbers:
            solved[family.depth] = max(numbers) + 1
    return solved


def _heads(
    family: Family, tensors: Mapping[str, Tensor], width: int | None
) -> tuple[tuple[int, ...], bool]:
    """Possible numbers of attention heads, and whether they are those of published models."""
    if width is None:
        return (), False
    # Images enter through a convolution.
    image = any(tensor.ndim == 4 for tensor in tensors.values())
    published = (_IMAGE_HEADS if image else _TEXT_HEADS).get(width)
    if published:
        return published, True
    return tuple(width // w for w in _OTHER_WIDTHS if width % w == 0), False
