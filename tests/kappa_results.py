"""Makes `KappaResult`s and reports with chosen numbers, without a network."""

from __future__ import annotations

from datetime import UTC, datetime

from clcurv.diagnostics.kappa import KappaResult, LayerSensitivity
from clcurv.recommend.schedule import recommend_schedule
from clcurv.report.build import kappa_document
from clcurv.report.document import ModelInfo


def make_layer(name, depth, s, **changes):
    base = {
        "name": name,
        "param_names": (f"{name}.weight",),
        "depth": depth,
        "numel": 100,
        "is_head": False,
        "s": s,
        "s_stderr": None,
        "lambda_min": -0.01,
        "residual": 1e-3,
        "error_bound": 1e-4,
        "steps": 5,
        "converged": True,
        "status": "ok",
    }
    return LayerSensitivity(**{**base, **changes})


def make_result(sensitivities, *, numel=None, stderr=None, head=None, layers=None, **changes):
    """A KappaResult from a list of s, or of ready layers."""
    if layers is None:
        layers = [
            make_layer(
                f"blocks.{i}",
                i,
                s,
                numel=numel[i] if numel else 100,
                s_stderr=stderr[i] if stderr else None,
            )
            for i, s in enumerate(sensitivities)
        ]
    if head is not None:
        layers = [*layers, make_layer("head", len(layers), head, is_head=True)]
    body = [x.s for x in layers if not x.is_head and x.status == "ok"]
    base = {
        "layers": tuple(layers),
        "kappa": max(body) / min(body) if body else None,
        "kappa_low": max(body) / min(body) if body else None,
        "kappa_high": max(body) / min(body) if body else None,
        "p90_p10": None,
        "status": "ok",
        "reason": "",
        "include_head": False,
        "mean_loss": 0.5,
        "accuracy": 0.9,
        "chance": 0.1,
        "n_samples": 64,
        "n_terms": 64,
        "n_batches": 4,
        "batch_size": 16,
        "operator": "hessian",
        "loss": "cross-entropy",
        "dtype": "float32",
        "device": "cpu",
        "tol": 1e-2,
        "max_steps": 50,
        "seed": 0,
    }
    return KappaResult(**{**base, **changes})


def make_document(sensitivities=(), *, document=None, schedule=None, **changes):
    """A report on such a result; `document` and `schedule` hold options of the two builders."""
    result = make_result(sensitivities, **changes)
    base = {
        "model": ModelInfo(
            arch="timm:vit", arch_source="given", num_params=1000, task="classification"
        ),
        "samples": None,
        "granularity": "block",
        "created": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    }
    return kappa_document(
        result=result,
        schedule=recommend_schedule(result, **(schedule or {})),
        **{**base, **(document or {})},
    )
