"""What every command does first: read the checkpoint, find its task and loss, read data."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from clcurv.curvature.objective import Objective
from clcurv.curvature.user_objective import UserObjective
from clcurv.errors import ArchitectureError, UsageError
from clcurv.inputs.architecture import load_model
from clcurv.inputs.checkpoint import Weights, default_max_bytes, load_weights
from clcurv.inputs.dataset import Samples, load_samples
from clcurv.inputs.hub import is_hub_name, local_copy
from clcurv.inputs.labelmap import read_label_map
from clcurv.inputs.live import wrap_module
from clcurv.inputs.loaded import LoadedModel
from clcurv.inputs.loss_names import LossName
from clcurv.inputs.matching import cast_notes
from clcurv.inputs.user_code import code_version, import_code, is_code
from clcurv.inputs.user_data import live_data
from clcurv.pipeline.options import InputOptions

Checkpoint = str | Path | nn.Module | LoadedModel
Progress = Callable[[str, int, int], None]

_LOSSES: dict[str, LossName] = {
    "classification": "cross-entropy",
    "causal-lm": "next-token",
    "masked-lm": "masked-lm",
    "regression": "mse",
}


_SURE_OF_THEIR_TASK = ("hf:", "timm:", "torchvision:")


def load_checkpoint(
    checkpoint: Checkpoint, asked: InputOptions, data: Any = None
) -> tuple[LoadedModel, Weights | None]:
    if isinstance(checkpoint, LoadedModel):
        return checkpoint, None
    if isinstance(checkpoint, nn.Module):
        return wrap_module(checkpoint, arch=asked.arch), None
    weights = read_weights(checkpoint, asked)
    return find_model(weights, asked, data), weights


def read_weights(checkpoint: str | Path, asked: InputOptions) -> Weights:
    """The checkpoint's tensors, read as the options say.

    Raises:
        UsageError: ``unsafe_pickle`` for a file from the network.
        InputError: The checkpoint is refused, see `load_weights`.
    """
    return load_weights(
        local_path(checkpoint, asked),
        key=asked.key,
        max_bytes=asked.max_bytes,
        unsafe_pickle=asked.unsafe_pickle,
    )


def local_path(checkpoint: str | Path, asked: InputOptions) -> str | Path:
    """The path itself, or the folder that a model of the Hub has here.

    Raises:
        UsageError: No path; ``unsafe_pickle`` for a file from the network.
        InputError: It cannot be had.
    """
    if not isinstance(checkpoint, str | os.PathLike):
        raise UsageError(
            f"a {type(checkpoint).__name__} is not the path of a checkpoint",
            hint="torch.save(model.state_dict(), 'model.pt') makes one of a module"
            if isinstance(checkpoint, nn.Module)
            else "give a file, a folder or a torch.nn.Module",
        )
    if not is_hub_name(checkpoint):
        return checkpoint
    if asked.unsafe_pickle:
        raise UsageError(
            f"--unsafe-pickle is for local files, not for {checkpoint}",
            hint="leave it out, or give a file that you made",
        )
    limit = default_max_bytes() if asked.max_bytes is None else asked.max_bytes
    return local_copy(str(checkpoint), online=asked.online, max_bytes=limit)


def _pickled_model(weights: Weights, module: nn.Module) -> LoadedModel:
    """A module that was in the file itself needs no architecture."""
    loaded = wrap_module(module.float().eval())
    notes = (*weights.notes, *cast_notes(weights.tensors), *loaded.notes)
    return replace(loaded, arch_source="pickle", notes=notes)


def find_model(
    weights: Weights,
    asked: InputOptions,
    data: Any = None,
    *,
    told: Callable[[LoadedModel, float], None] = lambda candidate, loss: None,
) -> LoadedModel:
    """The model that the weights belong to.

    Args:
        weights: From `read_weights`.
        asked: The options.
        data: Labelled data, which decide where several models fit.
        told: Called with every candidate that the data were tried on, and its mean loss.
    """

    def labelled(candidate: LoadedModel) -> float:
        objective = objective_of(candidate, asked)
        few = replace(asked, samples=min(asked.samples, 128))
        samples = read_samples(data, candidate, few, objective.name)
        mean = _mean_loss(candidate.model, samples, objective)
        told(candidate, mean)
        return mean

    if weights.module is not None and asked.arch is None:
        return _pickled_model(weights, weights.module)
    return load_model(
        weights,
        arch=asked.arch,
        match_by_order=asked.match_by_order,
        trust_code=asked.trust_code,
        labelled=None if data is None or asked.head != "model" else labelled,
    )


@torch.no_grad()
def _mean_loss(model: nn.Module, samples: Samples, objective: Objective) -> float:
    batches = samples.split(32)
    total = sum(float(objective.loss_sum(model, b)) for b in batches)
    return total / max(1, sum(objective.terms(b.targets) for b in batches))


def columns_of(asked: InputOptions) -> dict[str, Any] | None:
    """Columns by what they hold and the label map, as `load_samples` takes them."""
    named = {
        "image": asked.image_column,
        "text": asked.text_column,
        "label": asked.label_column,
        "label_map": None if asked.label_map is None else read_label_map(asked.label_map),
    }
    return {name: column for name, column in named.items() if column is not None} or None


def data_of(data: Any, asked: InputOptions) -> Any:
    """A path or an object; data that the user's code makes are made."""
    return live_data(data, batch_fn=asked.batch_fn, trust_code=asked.trust_code)


def read_samples(data: Any, loaded: LoadedModel, asked: InputOptions, loss: str) -> Samples:
    return load_samples(
        data_of(data, asked),
        loaded,
        n=asked.samples,
        seed=asked.seed,
        split=asked.split,
        columns=columns_of(asked),
        max_length=asked.max_length,
        skip_bad=asked.skip_bad,
        loss=loss,
    )


def objective_of(loaded: LoadedModel, asked: InputOptions) -> Objective:
    """The loss asked for, or what the model's head is usually trained with.

    Raises:
        UsageError: A loss that does not suit the model.
        UnsafeFileError: A function outside installed packages without ``trust_code``.
        ArchitectureError: A function that cannot be imported.
    """
    usual: LossName = "cross-entropy" if loaded.task == "backbone" else _LOSSES[loaded.task]
    if asked.loss == "auto":
        return Objective(usual)
    if callable(asked.loss) or is_code(asked.loss):
        return _user_objective(asked)
    objective = Objective(asked.loss)
    suited = {usual} | ({"mse"} if usual == "cross-entropy" else set())
    # What the head of other modules does was only inferred: there the user knows better.
    if loaded.arch.startswith(_SURE_OF_THEIR_TASK) and objective.name not in suited:
        raise UsageError(
            f"--loss {objective.name} does not suit {loaded.arch}, whose task is {loaded.task}",
            hint=f"--loss {' or '.join(sorted(suited))}",
        )
    return objective


def refuse_unsuited(objective: Objective, *, operator: str) -> None:
    """Before the work: what cannot be measured of a loss that is only a function.

    Raises:
        UsageError: A matrix that needs to know how the loss depends on the outputs.
    """
    if isinstance(objective, UserObjective) and operator != "hessian":
        raise UsageError(
            f"--operator {operator} needs a loss that clcurv knows, and {objective.name} is yours",
            hint="--operator hessian",
        )


def _user_objective(asked: InputOptions) -> UserObjective:
    loss = asked.loss
    if callable(loss):
        return UserObjective(
            name=getattr(loss, "__qualname__", type(loss).__name__),
            function=loss,
            version=code_version(loss),
        )
    function = import_code(loss, trust_code=asked.trust_code)
    if isinstance(function, type):  # a module or a factory without arguments
        function = _made(loss, function)
    return UserObjective(name=loss, function=function, version=code_version(function))


def _made(name: str, kind: type) -> Callable[..., Any]:
    try:
        made = kind()
    except Exception as error:
        # The user's code can raise anything.
        raise ArchitectureError(f"{name}() failed ({type(error).__name__}: {error})") from error
    if not callable(made):
        raise ArchitectureError(f"{name}() is no function of (output, targets)")
    result: Callable[..., Any] = made
    return result


def device_of(asked: InputOptions) -> str:
    if asked.device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        # A value must come back: the device "meta" has none.
        torch.zeros(1, device=asked.device).item()
    except (RuntimeError, AssertionError, NotImplementedError):
        there = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
        there += ["mps"] if torch.backends.mps.is_available() else []
        raise UsageError(
            f"--device {asked.device}: this machine and this torch have no such device",
            hint=f"--device {' or '.join(['cpu', *there])}",
        ) from None
    return asked.device


def shown(value: object) -> str:
    return str(value) if isinstance(value, str | Path) else type(value).__name__
