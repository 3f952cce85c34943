"""What a generated stream does to a task: a permutation of its inputs or of its labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from clcurv.errors import DataError
from clcurv.inputs.dataset import Samples
from clcurv.inputs.labels import Label
from clcurv.inputs.loaded import LoadedModel
from clcurv.inputs.sampling import sample_digest
from clcurv.inputs.stream_rows import sort_labels
from clcurv.inputs.tokens import IGNORED, load_tokenizer, vocabulary

Array = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Transform:
    """One task's permutation.

    Attributes:
        kind: ``none`` | ``permute`` (inputs) | ``label-shuffle`` (classes).
        number: Which permutation; 0 is the identity.
        seed: Of the stream.
    """

    kind: Literal["none", "permute", "label-shuffle"] = "none"
    number: int = 0
    seed: int = 0

    def __str__(self) -> str:
        return "none" if self.kind == "none" else f"{self.kind} {self.number} (seed {self.seed})"


def task_permutation(size: int, *, number: int, seed: int) -> Array:
    """The permutation π of task `number`: position i holds what was at π[i].

    ``numpy.random.default_rng([seed, number]).permutation(size)``; number 0 is the identity, as
    in the permuted MNIST of van de Ven and Tolias (2019) and of continuum, so that the first task
    is the data set as it is. (Online permuted MNIST, Dohare et al. 2024, permutes it too; apply
    a permutation to the data to have that.)

    Args:
        size: Number of positions.
        number: Of the task, from 0.
        seed: Of the stream.
    """
    if number == 0:
        return np.arange(size, dtype=np.int64)
    return np.random.default_rng([seed, number]).permutation(size).astype(np.int64)


def permute_labels(labels: Iterable[Label], transform: Transform) -> dict[Label, Label]:
    """Label -> the label it becomes: the classes' order permuted.

    Label-permuted streams as in Elsayed and Mahmood (2024), "Addressing loss of plasticity and
    catastrophic forgetting in continual learning", section 4.
    """
    ordered = sort_labels(labels)
    order = task_permutation(len(ordered), number=transform.number, seed=transform.seed)
    return {label: ordered[int(i)] for label, i in zip(ordered, order, strict=True)}


def permute_inputs(samples: Samples, loaded: LoadedModel, transform: Transform) -> Samples:
    """The sample under the task's permutation of the input's coordinates.

    Images ``(N, C, H, W)``: of the H·W positions, all channels alike, after resizing and
    normalisation. Arrays: of all features. Texts: of the vocabulary's words, special tokens
    stay (a token is a one-hot vector, whose coordinates are the words); a language model's
    targets are permuted with them.

    Raises:
        DataError: There is nothing to permute.
    """
    if transform.number == 0:
        return samples
    inputs, targets, what = samples.inputs, samples.targets, ""
    if isinstance(inputs, Mapping):
        name = next((k for k in ("input_ids", "pixel_values") if k in inputs), None)
        if name is None:
            raise DataError(
                f"which of the inputs {', '.join(inputs)} to permute cannot be told",
                hint="give the tasks in a manifest",
            )
        changed, what, mapping = _permuted(inputs[name], loaded, transform, name == "input_ids")
        inputs = {**inputs, name: changed}
    else:
        text = loaded.modality == "text" and not inputs.is_floating_point()
        inputs, what, mapping = _permuted(inputs, loaded, transform, text)
    if mapping is not None and loaded.task in ("causal-lm", "masked-lm"):
        scored = targets != IGNORED
        targets = torch.where(scored, _mapped(targets.clamp(min=0), mapping), targets)
    return replace(
        samples,
        inputs=inputs,
        targets=targets,
        digest=sample_digest(inputs, targets),
        notes=(*samples.notes, f"permutation {transform.number} of {what}"),
    )


def _permuted(
    inputs: Tensor, loaded: LoadedModel, transform: Transform, tokens: bool
) -> tuple[Tensor, str, Tensor | None]:
    number, seed = transform.number, transform.seed
    if tokens:
        vocab = vocabulary(loaded, load_tokenizer(loaded))
        words = vocab.words()
        mapping = np.arange(vocab.size, dtype=np.int64)
        mapping[words] = words[task_permutation(len(words), number=number, seed=seed)]
        table = torch.from_numpy(mapping)
        return _mapped(inputs, table), f"the {len(words)} words of the vocabulary", table
    image = loaded.modality == "image" and inputs.ndim == 4
    flat = inputs.flatten(2) if image else inputs.flatten(1)
    size = flat.shape[-1]
    if size < 2:
        raise DataError(f"inputs of shape {tuple(inputs.shape[1:])} have nothing to permute")
    order = torch.from_numpy(task_permutation(size, number=number, seed=seed))
    what = f"the {size} {'pixel positions' if image else 'features'}"
    return flat[..., order].reshape(inputs.shape).contiguous(), what, None


def _mapped(ids: Tensor, table: Tensor) -> Tensor:
    known = ids < len(table)
    return torch.where(known, table[ids.clamp(max=len(table) - 1)], ids)
