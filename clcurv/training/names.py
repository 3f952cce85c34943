"""Parameter names of a report against those of a model: exact, but for one constant prefix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_CANDIDATES = 8  # prefix pairs worth a full count
_COMMON = 8  # a tail under more prefixes than this ("weight") says nothing


@dataclass(frozen=True)
class Pairing:
    """Which name of the model each name of the report is.

    Attributes:
        prefix_document, prefix_model: What stands before the common names on either side.
        to_model: Name in the report -> name in the model, for those found.
    """

    prefix_document: str
    prefix_model: str
    to_model: dict[str, str]


def pair_names(document: Iterable[str], model: Iterable[str]) -> Pairing:
    """Find the constant prefixes that bring most names together, then match exactly.

    Whole names are compared, so ``blocks.1`` never meets ``blocks.10``. A prefix ends at a
    dot: ``module.``, ``model.``, ``_orig_mod.``, ``backbone.`` or any other.

    Args:
        document: Names in the report.
        model: Names in the model.
    """
    wanted, present = list(document), set(model)
    best = Pairing("", "", _match(wanted, present, "", ""))
    for prefix_document, prefix_model in _candidates(wanted, present):
        found = _match(wanted, present, prefix_document, prefix_model)
        if len(found) > len(best.to_model):
            best = Pairing(prefix_document, prefix_model, found)
    return best


def _match(wanted: list[str], present: set[str], before: str, instead: str) -> dict[str, str]:
    found = {}
    for name in wanted:
        if name.startswith(before) and (other := instead + name[len(before) :]) in present:
            found[name] = other
    return found


def _candidates(wanted: list[str], present: set[str]) -> Iterator[tuple[str, str]]:
    """Prefix pairs by votes: each name votes with its longest tail that the model has."""
    tails: dict[str, list[str]] = {}
    for name in present:
        for cut in _cuts(name):
            tails.setdefault(name[cut:], []).append(name[:cut])
    votes: Counter[tuple[str, str]] = Counter()
    for name in wanted:
        for cut in _cuts(name):
            if prefixes := tails.get(name[cut:]):
                if len(prefixes) <= _COMMON:
                    votes.update((name[:cut], prefix) for prefix in prefixes)
                break
    ranked = sorted(votes.items(), key=lambda item: (-item[1], sum(map(len, item[0])), item[0]))
    yield from (pair for pair, _ in ranked[:_CANDIDATES])


def _cuts(name: str) -> Iterator[int]:
    """Where a tail of the name may begin, longest tail first."""
    yield 0
    yield from (i + 1 for i, char in enumerate(name[:-1]) if char == ".")
