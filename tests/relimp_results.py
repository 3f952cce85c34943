"""Makes `RelimpResult`s and reports with chosen numbers, without a network."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace

import torch

from clcurv.curvature.importance import Importance
from clcurv.diagnostics.agreement import Agreement
from clcurv.diagnostics.importance_density import ImportanceDensity
from clcurv.diagnostics.relimp import (
    LayerImportance,
    LookAhead,
    RelimpResult,
    TaskSide,
    TensorImportance,
)
from clcurv.inputs.layers import Layer
from clcurv.report.document import ModelInfo
from clcurv.report.relimp_build import relimp_document
from clcurv.training.search_plan import Trial


def make_layer(name="blocks.0", depth=0, **changes):
    base = {
        "name": name,
        "depth": depth,
        "numel": 1000,
        "is_head": False,
        "protected": 0.6,
        "shared": 0.1,
        "free": 0.3,
        "quantiles": (0.05, 0.2, 0.4, 0.7, 0.95),
        "past_mean": 0.5,
        "past_stderr": 0.05,
        "current_mean": 0.25,
        "current_stderr": 0.02,
        "rank_correlation": 0.5,
        "rank_low": 0.4,
        "rank_high": 0.6,
        "overlap": 0.3,
        "overlap_low": 0.2,
        "overlap_high": 0.4,
        "near_zero": 0.0,
        "multiplier_max": 12.0,
    }
    return LayerImportance(**{**base, **changes})


def make_tensor(layer, **changes):
    base = {
        "name": f"{layer.name}.weight",
        "layer": layer.name,
        "numel": layer.numel,
        "tau": 0.4,
        "protected": layer.protected,
        "shared": layer.shared,
        "relative_mean": 0.5,
        "relative_std": 0.1,
        "past_mean": layer.past_mean,
        "current_mean": layer.current_mean,
        "lambda_up": 3.0,
        "lambda_down": 1.0,
    }
    return TensorImportance(**{**base, **changes})


def make_side(**changes):
    base = {
        "kind": "data",
        "n_samples": 400,
        "digest": "a" * 64,
        "mean_loss": 0.3,
        "accuracy": 0.9,
        "chance": 0.1,
        "near_zero": 0.0,
    }
    return TaskSide(**{**base, **changes})


def make_look_ahead(**changes):
    base = {
        "optimizer": "sgd",
        "lr": 0.01,
        "epochs": 5,
        "batch_size": 32,
        "weight_decay": 0.0,
        "momentum": 0.9,
        "steps": 50,
        "stopped_early": True,
        "score_before": 0.2,
        "score_after": 0.85,
        "loss_before": 2.3,
        "loss_after": 0.4,
        "history": (0.6, 0.85, 0.8),
        "new_classes": 2,
    }
    return LookAhead(**{**base, **changes})


def make_result(layers=None, **changes):
    if layers is None:
        layers = [
            make_layer("blocks.0", 0),
            make_layer("blocks.1", 1, numel=3000, protected=0.2, shared=0.3, free=0.5),
            make_layer("head", 2, numel=50, is_head=True, rank_correlation=-0.9),
        ]
    base = {
        "tensors": tuple(make_tensor(x) for x in layers),
        "layers": tuple(layers),
        "past": make_side(),
        "current": make_side(digest="b" * 64, accuracy=0.85),
        "look_ahead": make_look_ahead(),
        "estimator": "mas",
        "compat": "per-sample",
        "tau_mode": "scaled-mean",
        "multiplier": "paper",
        "lambda_": 8.0,
        "lambda_ceiling": 8.333,
        "lambda_up": 3.0,
        "lambda_down": 1.0,
        "tau": 0.4,
        "learning_rate": 0.01,
        "rank_correlation": 0.5,
        "overlap": 0.3,
        "accumulated": 1,
        "loss": "cross-entropy",
        "dtype": "float32",
        "device": "cpu",
        "seed": 0,
        "cost_gradients": 2.0,
        "seconds": 3.0,
    }
    return RelimpResult(**{**base, **changes})


def make_trial(phase, number, score, **changes):
    base = {
        "phase": phase,
        "number": number,
        "lr": 0.01,
        "lambda_": 0.0 if phase == "reference" else 8.0 * 0.9**number,
        "lambda_down": 1.0,
        "m": 1.0,
        "status": "ok" if score is not None else "diverged",
        "score": score,
        "loss": None if score is None else 1 - score,
        "acceptable": score is not None and score > 0.7,
        "steps": 50,
        "seconds": 1.5,
    }
    return Trial(**{**base, **changes})


def make_search(*, acceptable=True, chosen=3):
    """Reference .85, uniform .6 and .75, relative .8."""
    trials = (
        make_trial("reference", 1, 0.85),
        make_trial("uniform", 1, 0.6),
        make_trial("uniform", 2, 0.75),
        make_trial("lambda-down", 1, 0.8),
        make_trial("lambda-down", 2, None, lambda_down=0.8),
    )
    return SimpleNamespace(
        trials=trials,
        reference=trials[0],
        uniform=trials[2],
        chosen=trials[chosen],
        acceptable=acceptable,
        resumed=0,
    )


def make_importance(layers):
    return Importance(
        tensors={f"{x.name}.weight": torch.full((x.numel,), 0.5) for x in layers},
        estimator="mas",
        n_samples=400,
        layer_stderr={x.name: 0.05 for x in layers},
    )


def make_document(layers=None, *, document=None, past_only=False, **changes):
    """A report on such a result; `document` holds options of the builder."""
    result = make_result(layers, **changes)
    base = {
        "past": make_importance(result.layers),
        "past_side": result.past,
        "layers": [Layer(x.name, (f"{x.name}.weight",), x.depth, x.is_head) for x in result.layers],
        "model": ModelInfo(
            arch="timm:vit_tiny", arch_source="metadata", num_params=4050, task="classification"
        ),
        "result": None if past_only else result,
        "agreement": None if past_only else Agreement(0.5, 0.45, 0.55, 0.3, 0.25, 0.35),
        "density": None
        if past_only
        else ImportanceDensity((-2.0, -1.0, 0.0), (-3.0, -1.5, 0.0), ((100, 50), (0, 3850))),
        "estimator": {
            "estimator": "mas",
            "compat": "per-sample",
            "mode": "per-sample",
            "loss": "cross-entropy",
            "tau_mode": "scaled-mean",
            "multiplier": "paper",
            "dtype": "float32",
            "device": "cpu",
            "seed": 0,
            "cost_gradients": 2.0,
        },
        "past_info": {"path": "old.npz", "class_counts": {0: 200, 1: 200}},
        "current_info": {"path": "new.npz", "class_counts": {2: 200, 3: 200}},
        "created": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    }
    return relimp_document(**{**base, **(document or {})})
