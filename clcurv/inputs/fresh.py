"""The same architecture with newly drawn weights: what a trained network is compared with."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import nn

from clcurv.inputs.loaded import LoadedModel

EMBEDDING_STD = 0.02


def fresh_copy(loaded: LoadedModel, *, seed: int = 0) -> LoadedModel:
    """A copy whose parameters are drawn anew, as each module draws its own.

    Every module's ``reset_parameters`` is called (for batch normalisation that resets the running
    statistics, too), then the network's own ``init_weights`` where it has one that takes no
    arguments. Parameters that no module draws (class tokens, position embeddings) are Gaussian
    with a standard deviation of 0.02 where they are not all zero or all one.

    Args:
        loaded: Left as it is.
        seed: Of the draw; the global generator is left as it was.
    """
    model = copy.deepcopy(loaded.model)
    drawn: set[int] = set()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        for module in model.modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
                drawn |= {id(p) for p in module.parameters(recurse=False)}
        for parameter in model.parameters():
            if id(parameter) not in drawn and not _constant(parameter):
                nn.init.trunc_normal_(parameter, std=EMBEDDING_STD)
        own = getattr(model, "init_weights", None)
        if callable(own):
            own()
    note = f"fresh weights of {loaded.arch}, seed {seed}"
    return replace(
        loaded, model=model.eval(), arch_source="given", notes=(*loaded.notes, note), candidates=()
    )


def _constant(parameter: nn.Parameter) -> bool:
    return bool((parameter == parameter.flatten()[0]).all()) if parameter.numel() else True
