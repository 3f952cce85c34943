"""Makes `SpectrumResult`s and reports with chosen numbers, without a network."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from clcurv.diagnostics.spectrum import (
    EpsRank,
    FastModes,
    LayerFeatures,
    Quadrature,
    SpectrumResult,
    TaskDiagnosis,
    TaskSpectrum,
)
from clcurv.recommend.l2er import L2erAdvice, Signal, Verdict
from clcurv.report.document import ModelInfo
from clcurv.report.spectrum_build import l2er_document, spectrum_document

P = 1000
FAST = 0.1
"""ε_fast of all these reports."""


def make_rank(fraction=0.05, *, low=None, high=None, eps=FAST, n=P, **changes):
    """Fraction with an interval of ± a tenth of it."""
    base = {
        "eps": eps,
        "count": fraction * n,
        "fraction": fraction,
        "positive": fraction * n,
        "negative": 0.0,
        "low": (0.9 * fraction if low is None else low) * n,
        "high": (1.1 * fraction if high is None else high) * n,
        "half_steps": fraction * n,
        "status": "ok",
    }
    return EpsRank(**{**base, **changes})


def make_spectrum(fraction=0.05, *, top=10.0, bottom=-0.5, probes=2, fast=True, **changes):
    """A bulk at zero, and `fraction` of the eigenvalues spread over log λ up to `top`."""
    outside = [top * 10 ** (-k / 4) for k in range(9)][::-1]
    nodes = (bottom, -1e-3, 0.0, *outside)
    weights = (2 / P, 0.1, 1 - 0.1 - 2 / P - fraction, *[fraction / len(outside)] * len(outside))
    base = {
        "operator": "hessian",
        "method": "lanczos-quadrature",
        "n_parameters": P,
        "lambda_max": top,
        "lambda_min": bottom,
        "lambda_max_residual": 1e-3,
        "lambda_min_residual": 1e-3,
        "lambda_min_converged": True,
        "trace": P * math.fsum(n * w for n, w in zip(nodes, weights, strict=True)),
        "trace_stderr": 0.5,
        "rank_fast": make_rank(fraction, upper=200.0) if fast else None,
        "rank_relative": make_rank(0.8 * fraction, eps=0.01 * top),
        "curve": tuple(make_rank(fraction / (k + 1), eps=10.0 ** (k - 3)) for k in range(4)),
        "quadrature": tuple(Quadrature(nodes, weights) for _ in range(probes)),
        "probes": probes,
        "steps": 40,
        "noise": 1e-6,
    }
    return TaskSpectrum(**{**base, **changes})


def make_features(erank=30.0, **changes):
    base = {
        "name": "body.2",
        "n": 512,
        "d": 100,
        "ceiling": 100,
        "erank": erank,
        "erank_covariance": erank / 4,
        "approximate_rank": 20,
        "dormant": 0.05,
        "dead": 0.01,
        "enough": True,
    }
    return LayerFeatures(**{**base, **changes})


def make_modes(share=0.9, **changes):
    base = {
        "lower": FAST,
        "upper": 200.0,
        "share": share,
        "count": 50.0,
        "half_steps": share,
        "status": "ok",
        "method": "lanczos",
    }
    return FastModes(**{**base, **changes})


def make_task(
    index, fraction=0.05, *, erank=30.0, share=0.9, share_stderr=None, erank_stderr=None, **changes
):
    base = {
        "index": index,
        "name": f"task-{index}",
        "checkpoint": f"ckpt/task-{index - 1}.pt",
        "n_samples": 512,
        "classes": (0, 1),
        "label_histogram": {0: 256, 1: 256},
        "digest": f"d{index}",
        "mean_loss": 2.3,
        "accuracy": 0.52,
        "chance": 0.5,
        "spectrum": make_spectrum(fraction),
        "fast_modes": make_modes(share, share_stderr=share_stderr),
        "features": (
            make_features(erank, erank_stderr=erank_stderr),
            make_features(erank / 2, name="body.4", erank_stderr=erank_stderr),
        ),
        "gradient_norm": 0.7,
        "cost_gradients": 100.0,
        "seconds": 2.0,
    }
    return TaskDiagnosis(**{**base, **changes})


def failed_task(index, reason="NaN in batch 3", **changes):
    gone = {"spectrum": None, "fast_modes": None, "features": (), "mean_loss": None,
            "accuracy": None, "gradient_norm": None}  # fmt: skip
    return make_task(index, status="failed", reason=reason, **{**gone, **changes})


def make_result(fractions=(0.05, 0.03, 0.01), *, tasks=None, reference=None, **changes):
    """A stream that loses ε-rank, fast share and effective rank together."""
    if tasks is None:
        tasks = [
            make_task(i, f, erank=600 * f, share=min(1.0, 18 * f))
            for i, f in enumerate(fractions, 1)
        ]
    base = {
        "tasks": tuple(tasks),
        "reference": reference or tasks[0],
        "reference_kind": "first-task",
        "operator": "hessian",
        "loss": "cross-entropy",
        "dtype": "float32",
        "device": "cpu",
        "seed": 0,
        "lr": 0.01,
        "momentum": 0.0,
        "steps": 2000,
        "gamma": 0.1,
        "seconds": 6.0,
    }
    return SpectrumResult(**{**base, **changes})


def make_verdict(verdict="collapsed", evidence="three measures fell by half", **changes):
    signal = Signal(
        name="eps_rank.fast", value=0.01, reference=0.05, ratio=0.2, direction="falls", agrees=True
    )
    base = {"verdict": verdict, "evidence": evidence, "signals": (signal,), "late": (3,)}
    return Verdict(**{**base, **changes})


def make_advice(**changes):
    base = {
        "weight_decay": 1e-3,
        "er_lr": 1e-2,
        "er_every": 10,
        "er_layers": ("body.2", "body.4"),
        "window": 100,
        "order": ("optimizer", "effective-rank"),
        "lam": 5e-4,
        "beta": 0.05,
        "derivation": "the step is 3 % of the task gradient",
        "lr": 0.01,
    }
    return L2erAdvice(**{**base, **changes})


def make_document(fractions=(0.05, 0.03, 0.01), *, document=None, verdict=None, **changes):
    """A report on such a result; `document` holds options of the builder."""
    result = make_result(fractions, **changes)
    base = {
        "verdict": verdict or make_verdict(),
        "advice": make_advice(),
        "model": ModelInfo(
            arch="mlp:64-100-10", arch_source="given", num_params=P, task="classification"
        ),
        "stream": {
            "name": "permuted:3",
            "scenario": "domain-il",
            "modality": "array",
            "origin": "generated",
            "seed": 0,
            "notes": [],
            "tasks": [
                {
                    "name": t.name,
                    "train": "/data/digits.npz",
                    "transform": {"kind": "permute", "number": t.index - 1, "seed": 0},
                    "n": 512,
                    "classes": [0, "b"],
                    "label_histogram": {0: 256, 1: 256},
                    "digest": t.digest,
                }
                for t in result.tasks
            ],
        },
        "checkpoints": [(t.checkpoint, "ab") for t in result.tasks],
        "created": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    }
    return spectrum_document(result=result, **{**base, **(document or {})})


def make_l2er_document(**changes):
    """The recommendation as its own document; `changes` are coefficients."""
    return l2er_document(
        advice=make_advice(**changes),
        verdict=make_verdict(),
        arch="mlp:64-100-10",
        stream="permuted:3",
        created=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    )
