"""Hugging Face families by the names of their tensors, and their sizes by the shapes.

The index (`hf_families.json.gz`) is made by ``python -m clcurv.inputs.hf_index --build``. For
every transformers class with a sequence-, token- or image-classification or a language-model
head, and for the model below it, it holds the names of the tensors (block numbers left out) and,
for every number of the config that can be read off a shape, where: found by changing that number
alone in a model without memory and seeing which size follows it.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gzip
import json
import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INDEX = Path(__file__).with_name("hf_families.json.gz")

Shapes = Mapping[str, tuple[int, ...]]

_HEADS = (
    "MODEL_MAPPING",
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING",
    "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING",
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING",
    "MODEL_FOR_CAUSAL_LM_MAPPING",
    "MODEL_FOR_MASKED_LM_MAPPING",
)
_SIZE = re.compile(
    r"size|dim|width|heads|max_position|n_embd|n_inner|n_positions|n_head|channels|d_model|d_ff"
    r"|d_kv|ffn|embed|vocab|rank|num_experts|num_local_experts"
)
# What changes the function and no shape, and has no value that most models share.
_UNSEEN = re.compile(r"rope|rotary|sliding|window|experts_per|layer_types|num_hidden_groups")
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


@dataclass(frozen=True)
class Field:
    """A number of the config that a shape tells: size = slope * number + offset.

    Attributes:
        tensor: Name, block numbers as ``#``.
        axis: Of its shape.
        slope, offset: Of the line.
    """

    tensor: str
    axis: int
    slope: float
    offset: float


@dataclass(frozen=True)
class Family:
    """A class of transformers.

    Attributes:
        cls: Its name.
        model_type: As in config.json.
        prefix: What `cls` calls the model below its head.
        names: Its tensors, block numbers as ``#``.
        optional: Those that a file may lack (tied to others).
        fields: Number of the config -> where a shape tells it.
        stack: Where the blocks are, e.g. ``bert.encoder.layer.``; "" where no number of
            blocks follows from the names.
        depth: The config's name for the number of blocks.
        heads: The config's name for the number of attention heads if no shape tells it.
        unseen: Numbers of the config that decide what the model computes and that neither
            names nor shapes tell.
    """

    cls: str
    model_type: str
    prefix: str
    names: frozenset[str]
    optional: frozenset[str]
    fields: Mapping[str, Field]
    stack: str
    depth: str
    heads: str
    unseen: tuple[str, ...]


def collapse(name: str) -> str:
    """A tensor's name with its block numbers as ``#``."""
    return _NUMBER.sub("#", name)


@functools.cache
def load_families() -> tuple[Family, ...]:
    """Read the shipped index."""
    content = json.loads(gzip.decompress(INDEX.read_bytes()))
    table = content["names"]
    return tuple(
        Family(
            cls=entry["class"],
            model_type=entry["model_type"],
            prefix=entry["prefix"],
            names=frozenset(table[i] for i in entry["names"]),
            optional=frozenset(table[i] for i in entry["optional"]),
            fields={
                key: Field(table[where[0]], where[1], where[2], where[3])
                for key, where in entry["fields"].items()
            },
            stack=entry["stack"],
            depth=entry["depth"],
            heads=entry["heads"],
            unseen=tuple(entry["unseen"]),
        )
        for entry in content["families"]
    )


# Building ------------------------------------------------------------------------------


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    log = logging.getLogger("transformers")
    before = log.level
    log.setLevel(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            log.setLevel(before)


class _Probe:
    """One class of transformers at changing configs."""

    def __init__(self, config_class: Any, cls: Any) -> None:
        self.config_class = config_class
        self.cls = cls
        self.attributes = dict(getattr(config_class, "attribute_map", None) or {})
        self.depth = self.attributes.get("num_hidden_layers", "num_hidden_layers")
        self.small: dict[str, Any] = {self.depth: 2}
        try:
            config_class(**self.small)
        except Exception:
            # Stages of fixed lengths, or no such number: as it comes.
            self.small = {}

    def config(self, **changes: Any) -> Any:
        return self.config_class(**{**self.small, **changes})

    def shapes(self, *, hub: bool, **changes: Any) -> dict[str, tuple[int, ...]]:
        """Names as in a file on the hub, or as in the living model."""
        import torch
        from transformers.core_model_loading import revert_weight_conversion

        with torch.device("meta"):
            model = self.cls(self.config(**changes))
        state = dict(model.state_dict())
        if hub:
            state = revert_weight_conversion(model, state)
        return {name: tuple(tensor.shape) for name, tensor in state.items()}


def _describe(probe: _Probe, *, hub: bool) -> dict[str, Any]:
    """One entry of the index; names in full."""
    here = probe.shapes(hub=hub)
    values = probe.config().to_dict()
    deeper: Any = {}
    with contextlib.suppress(Exception):
        deeper = probe.shapes(hub=hub, **{probe.depth: 3})
    stack = next((n[: m.start()] for n in deeper if n not in here and (m := _NUMBER.search(n))), "")
    numbers = {
        key: value
        for key, value in values.items()
        if type(value) is int and value > 0 and _SIZE.search(key) and not key.endswith("token_id")
    }
    changes = {key: {key: 2 * value} for key, value in numbers.items()}
    changes["num_labels"], numbers["num_labels"] = {"num_labels": 4}, 2
    moved: dict[str, dict[tuple[str, int], tuple[int, int]]] = {}
    for key, change in changes.items():
        with contextlib.suppress(Exception):
            there = probe.shapes(hub=hub, **change)
            moved[key] = {
                (name, axis): (old, new)
                for name, shape in here.items()
                if name in there and len(there[name]) == len(shape)
                for axis, (old, new) in enumerate(zip(shape, there[name], strict=True))
                if old != new
            }
    fields: dict[str, Any] = {}
    for key, found in moved.items():
        others = {place for other, places in moved.items() if other != key for place in places}
        for place in sorted(found, key=lambda place: _rarity(place[0], probe)):
            old, new = found[place]
            if place in others and key != "image_size":
                continue
            slope = (new - old) / numbers[key]
            offset = old - slope * numbers[key]
            if key == "image_size":
                if not isinstance(values.get("patch_size"), int):
                    continue
                # One row for each patch: the offset is that of the class token.
                slope, offset = 0.0, float(old - (numbers[key] // values["patch_size"]) ** 2)
            fields[key] = [collapse(place[0]), place[1], slope, offset]
            break
    heads = probe.attributes.get("num_attention_heads", "num_attention_heads")
    tied = getattr(probe.cls, "_tied_weights_keys", None) or {}
    tied = [name for name in here if any(re.fullmatch(t, name) or t == name for t in tied)]
    return {
        "class": probe.cls.__name__,
        "model_type": probe.config_class.model_type,
        "prefix": str(probe.cls.base_model_prefix),
        "names": sorted({collapse(name) for name in here}),
        "optional": sorted({collapse(name) for name in tied}),
        "fields": fields,
        "stack": stack,
        "depth": probe.depth if stack else "",
        "heads": heads if heads in values and heads not in fields else "",
        "unseen": sorted(
            key for key, value in values.items() if _UNSEEN.search(key) and value is not None
        ),
    }


def _rarity(name: str, probe: _Probe) -> tuple[bool, bool]:
    """Blocks are always there, a head or a projection only sometimes."""
    inside = name.startswith(f"{probe.cls.base_model_prefix}.")
    return collapse(name) == name, not inside


def build(only: frozenset[str] | None = None) -> dict[str, Any]:
    """Describe every class; a few minutes.

    Args:
        only: Only these ``model_type``s, for tests.
    """
    import transformers
    from transformers.models.auto import modeling_auto

    entries: list[dict[str, Any]] = []
    skipped: list[str] = []
    wanted = {
        config
        for mapping in _HEADS[1:]
        for config in getattr(modeling_auto, mapping).keys()  # noqa: SIM118
        if only is None or config.model_type in only
    }
    for mapping in _HEADS:
        by_config = getattr(modeling_auto, mapping)
        for config_class in by_config.keys():  # noqa: SIM118
            if config_class not in wanted:
                continue
            try:
                classes = by_config[config_class]
            except ValueError:
                skipped.append(f"{config_class.__name__} (names a class that is not there)")
                continue
            for cls in classes if isinstance(classes, tuple) else (classes,):
                probe = _Probe(config_class, cls)
                if getattr(cls, "config_class", config_class) is not config_class:
                    continue  # another family's class, borrowed
                try:
                    with _quiet():
                        both = [_describe(probe, hub=True)]
                        if probe.shapes(hub=False).keys() != probe.shapes(hub=True).keys():
                            both.append(_describe(probe, hub=False))
                except Exception as error:
                    # A few cannot be built from their default config, or not without memory.
                    skipped.append(f"{cls.__name__} ({type(error).__name__})")
                    continue
                entries += both
    names = sorted({name for entry in entries for name in _all_names(entry)})
    place = {name: index for index, name in enumerate(names)}
    for entry in entries:
        entry["names"] = [place[name] for name in entry["names"]]
        entry["optional"] = [place[name] for name in entry["optional"]]
        entry["fields"] = {k: [place[w[0]], *w[1:]] for k, w in entry["fields"].items()}
    return {
        "versions": {"transformers": transformers.__version__},
        "skipped": skipped,
        "names": names,
        "families": entries,
    }


def _all_names(entry: Mapping[str, Any]) -> list[str]:
    return [*entry["names"], *entry["optional"], *(w[0] for w in entry["fields"].values())]


def main() -> None:
    """Entry of ``python -m clcurv.inputs.hf_index``."""
    parser = argparse.ArgumentParser(description="Make the index of Hugging Face families.")
    parser.add_argument("--build", action="store_true", required=True)
    parser.add_argument("--output", type=Path, default=INDEX)
    options = parser.parse_args()
    content = build()
    text = json.dumps(content, separators=(",", ":"))
    options.output.write_bytes(gzip.compress(text.encode(), mtime=0))
    print(
        f"{options.output}: {options.output.stat().st_size:,} bytes, "
        f"{len(content['families'])} classes; left out: {', '.join(content['skipped']) or 'none'}"
    )


if __name__ == "__main__":
    main()
