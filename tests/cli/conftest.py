"""A hand-written report, a stand-in for the library, and the program with its streams caught."""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import clcurv
from clcurv.cli.app import run
from clcurv.report.kappa_document import KappaDocument


def _group(name: str, depth: int, s: float, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "layer_id": depth,
        "depth": depth,
        "param_names": (f"{name}.weight",),
        "numel": 1000,
        "s": s,
        "s_stderr": 0.1 * s,
        "lambda_min": -0.1,
        "residual": 1e-3,
        "error_bound": 1e-4,
        "steps": 5,
        "converged": True,
        "status": "ok",
        "lambda": 1.0,
        "lr_scale": 1.0,
        "reason": "the fit",
    } | more


def make_document(**changes: Any) -> KappaDocument:
    """κ = 40 on data from a file; `changes` replace whole sections."""
    values: dict[str, Any] = {
        "tool": {"version": "0.1.0"},
        "created": "2026-01-01T00:00:00+00:00",
        "model": {
            "path": "model.pt",
            "arch": "timm:resnet18",
            "arch_source": "option",
            "num_params": 2000,
            "num_classes": 10,
            "task": "classification",
        },
        "data": {
            "path": "data",
            "source": "path",
            "n_samples": 64,
            "n_terms": 64,
            "n_batches": 2,
            "batch_size": 32,
            "accuracy": 0.9,
            "chance": 0.1,
            "mean_loss": 0.3,
        },
        "estimator": {
            "operator": "hessian",
            "loss": "cross-entropy",
            "dtype": "float32",
            "device": "cpu",
            "attention": "math",
            "tol": 0.01,
            "max_steps": 60,
            "seed": 0,
            "granularity": "block",
        },
        "kappa": {"value": 40.0, "low": 38.0, "high": 42.0, "p90_p10": 30.0, "status": "ok"},
        "schedule": {
            "mode": "geometric",
            "requested": "geometric",
            "direction": "early",
            "gamma": 0.5,
            "gamma_low": 0.4,
            "gamma_high": 0.6,
            "gamma_applied": 0.5,
            "level": 0.95,
            "fit_depth": 0.5,
            "fit_s": 6.0,
            "r2": 0.9,
            "spearman": -1.0,
            "n_fitted": 2,
            "range": 2.0,
            "regret_bound": 0.7,
            "advice": "protect the early layers",
            "normalisation": "parameter-weighted mean 1",
        },
        "defaults": {},
        "groups": (_group("stem", 0, 40.0), _group("\x1b[31mevil[/red]", 1, 1.0)),
    }
    return KappaDocument.model_validate(values | changes)


@pytest.fixture
def document() -> KappaDocument:
    return make_document()


@dataclass
class FakePipeline:
    """Stands where clcurv.pipeline will be imported from, and remembers how it was called."""

    document: Any
    l2er: Any = None
    calls: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)
    action: Any = None

    def kappa(self, checkpoint: Any, **options: Any) -> SimpleNamespace:
        self.calls.append((checkpoint, options))
        options["progress"]("measuring", 1, 2)
        if self.action is not None:
            self.action()
        return SimpleNamespace(document=self.document)

    def plan(self, checkpoint: str, **options: Any) -> "FakePlan":
        self.calls.append((checkpoint, options))
        return FakePlan()

    def spectrum(self, checkpoints: list[str], **options: Any) -> SimpleNamespace:
        report = self.kappa(checkpoints, **options)
        return SimpleNamespace(document=report.document, l2er=self.l2er)

    def plan_spectrum(self, checkpoints: list[str], **options: Any) -> "FakeStreamPlan":
        self.calls.append((checkpoints, options))
        return FakeStreamPlan()


@dataclass(frozen=True)
class FakeLayer:
    name: str
    numel: int
    is_head: bool


@dataclass(frozen=True)
class FakePlan:
    arch: str = "timm:resnet18"
    num_classes: int | None = None
    parameters: int = 11_000_000
    bytes_at_peak: int = 1_500_000_000
    notes: tuple[str, ...] = ("a \x1b[31mnote",)
    layers: tuple[FakeLayer, ...] = (
        FakeLayer("stem[/red]", 900, False),
        FakeLayer("fc", 5000, True),
    )


@dataclass(frozen=True)
class FakeTask:
    task: str
    checkpoint: str
    samples: int
    classes: tuple[int, ...]
    labels: dict[int, int]


@dataclass(frozen=True)
class FakeStreamPlan:
    arch: str = "mlp"
    bytes_at_peak: int = 2_000_000
    tasks: tuple[FakeTask, ...] = (
        FakeTask("one\x1b[31m", "task-0.pt", 512, (0, 1), {0: 256, 1: 256}),
        FakeTask("two[/red]", "task-1.pt", 512, (2, 3), {2: 256, 3: 256}),
    )


@pytest.fixture
def pipeline(monkeypatch: pytest.MonkeyPatch, document: KappaDocument) -> FakePipeline:
    fake = FakePipeline(document)
    module = ModuleType("clcurv.pipeline")
    module.kappa = fake.kappa  # type: ignore[attr-defined]
    module.plan = fake.plan  # type: ignore[attr-defined]
    module.spectrum = fake.spectrum  # type: ignore[attr-defined]
    module.plan_spectrum = fake.plan_spectrum  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "clcurv.pipeline", module)
    monkeypatch.setattr(clcurv, "pipeline", module, raising=False)
    return fake


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


@pytest.fixture
def program(capsys: pytest.CaptureFixture[str]) -> Any:
    def start(*arguments: str) -> Ran:
        capsys.readouterr()
        code = run(arguments)
        caught = capsys.readouterr()
        return Ran(code, caught.out, caught.err)

    return start


@pytest.fixture(autouse=True)
def clean_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty folder to run in; environment changes do not outlive the test."""
    monkeypatch.chdir(tmp_path)
    before = dict(os.environ)
    for name in list(os.environ):
        if name.startswith(("CLCURV_", "GITHUB_")) or name in {"FORCE_COLOR", "NO_COLOR"}:
            monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "100")
    # Subprocesses start in the empty folder and must find this package, installed or not.
    root = str(Path(run.__code__.co_filename).parents[2])
    monkeypatch.setenv("PYTHONPATH", root, prepend=os.pathsep)
    yield
    os.environ.clear()
    os.environ.update(before)
