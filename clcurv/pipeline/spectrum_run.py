"""From checkpoints and a task stream to spectra, task by task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from clcurv import __version__
from clcurv.diagnostics.er_scale import ErScale, measure_er_scale
from clcurv.diagnostics.sensitivity import DTYPES
from clcurv.diagnostics.spectrum import TaskDiagnosis
from clcurv.diagnostics.stream_spectrum import (
    Settings,
    diagnose_task,
    failed_task,
    parameters_matching,
)
from clcurv.errors import ClcurvError, NumericalError, ResourceError, UsageError
from clcurv.inputs.checkpoint import Weights
from clcurv.inputs.dataset import Samples
from clcurv.inputs.fresh import fresh_copy
from clcurv.inputs.loaded import LoadedModel
from clcurv.inputs.stream import Stream, open_stream
from clcurv.inputs.user_code import model_version
from clcurv.pipeline.options import SpectrumOptions, checked
from clcurv.pipeline.pairs import listed, paired, pairs_told, same_architecture
from clcurv.pipeline.prepare import (
    Checkpoint,
    Progress,
    columns_of,
    data_of,
    device_of,
    load_checkpoint,
    objective_of,
    refuse_unsuited,
    shown,
)
from clcurv.pipeline.resume import FinishedTasks, key_of
from clcurv.pipeline.spectrum_report import SpectrumReport, report_of

METHODS = {
    "auto": "auto",
    "lanczos": "lanczos-quadrature",
    "lanczos-quadrature": "lanczos-quadrature",
    "dense": "dense",
    "gram": "gram",
}


def spectrum(
    checkpoints: Checkpoint | Sequence[Checkpoint],
    *,
    progress: Progress | None = None,
    note: Callable[[str], None] | None = None,
    **options: Any,
) -> SpectrumReport:
    """Measures the curvature's spectrum along a task stream and recommends L2-ER coefficients.

    Args:
        checkpoints: One network for the whole stream, or one per task: the k-th is what task k
            meets. Files, folders or modules.
        progress: Called with (stage, done, total).
        note: Called before the work with sentences on which network meets which task.
        **options: Fields of `SpectrumOptions`.

    Raises:
        ClcurvError: Before anything is measured, see `clcurv.errors`. A task that fails later is
            marked as failed instead, see `SpectrumReport.failure`.
        KeyboardInterrupt: With a partial `document` attribute once a task is finished.
    """
    run = StreamRun(checkpoints, checked(SpectrumOptions, "spectrum", options), progress)
    run.check()
    if note is not None:
        for sentence in pairs_told([task.name for task in run.stream.tasks], run.paired):
            note(sentence)
    try:
        run.measure()
    except KeyboardInterrupt as interrupt:
        if any(task.status == "ok" for task in run.tasks):
            interrupt.document = report_of(run, complete=False).document  # type: ignore[attr-defined]
        raise
    return report_of(run, complete=True)


class StreamRun:
    """One stream: what is asked for, what has been read, and the tasks finished so far."""

    def __init__(
        self,
        checkpoints: Checkpoint | Sequence[Checkpoint],
        asked: SpectrumOptions,
        progress: Progress | None,
    ) -> None:
        if asked.stream is None:
            raise UsageError("no stream is given", hint="--stream permuted:10 --data PATH")
        if asked.method not in METHODS:
            raise UsageError(f"unknown method {asked.method!r}", hint="--method auto")
        self.asked = asked
        self.tell = progress or (lambda stage, done, total: None)
        self.settings = Settings(
            layers=asked.layers,
            operator=asked.operator,
            method=METHODS[asked.method],  # type: ignore[arg-type]
            probes=asked.probes,
            lanczos_steps=asked.lanczos_steps,
            eps=asked.eps,
            lr=asked.lr,
            steps=asked.steps,
            momentum=asked.momentum,
            gamma=asked.gamma,
            dtype=asked.dtype,
            device=device_of(asked),
            seed=asked.seed,
            batch_size=asked.batch_size,
            memory=asked.memory,
        )
        _ = self.settings.band  # refuses numbers that say nothing before anything is read
        self.columns = columns_of(asked)
        self.given = listed(checkpoints)
        self.finished = FinishedTasks(asked.resume)
        self.tasks: list[TaskDiagnosis] = []
        self.reference: TaskDiagnosis | None = None
        self.failure: ClcurvError | None = None
        self.scale: ErScale | None = None
        self.weights: Weights | None = None
        self.digests: dict[int, str] = {}
        self.warnings: list[str] = []
        self._held: tuple[int, LoadedModel, str] | None = None

    # Reading

    def check(self) -> None:
        """Reads and compares all there is before hours are spent on it."""
        asked = self.asked
        self.tell("reading the stream", 0, 0)
        self.stream: Stream = open_stream(
            asked.stream,
            data=data_of(asked.data, asked),
            seed=asked.seed,
            split=asked.split,
            columns=self.columns,
        )
        self.paired = paired(self.given, len(self.stream))
        self._compare_checkpoints()
        refuse_unsuited(objective_of(self.first, asked), operator=asked.operator)
        if asked.reference not in ("first-task", "fresh"):
            other, _ = load_checkpoint(asked.reference, asked)
            same_architecture(self.first, other, self.first_name, shown(asked.reference))
        whose = self.first if asked.head == "keep" else None
        self.resolved: Mapping[str, Any] = self.stream.resolved(
            whose, split=asked.split, columns=self.columns, progress=self.tell
        )

    def _compare_checkpoints(self) -> None:
        """All of one architecture; a diverged one fails with its task, not before."""
        first: LoadedModel | None = None
        named, refused = "", None
        seen: set[Any] = set()
        for i, checkpoint in enumerate(self.paired):
            key = checkpoint if isinstance(checkpoint, str) else id(checkpoint)
            if key in seen:
                continue
            seen.add(key)
            self.tell("reading the checkpoints", i, len(self.paired))
            try:
                loaded, _ = self._load(i)
            except NumericalError as error:
                refused = refused or error
                continue
            if first is None:
                first, named = loaded, shown(checkpoint)
                parameters_matching(loaded.model, self.asked.layers)
            else:
                same_architecture(first, loaded, named, shown(checkpoint))
        if first is None:
            raise refused or NumericalError("no checkpoint is given")
        self.first, self.first_name = first, named

    def _load(self, i: int) -> tuple[LoadedModel, str]:
        """The network that task i meets, and what tells it from others."""
        checkpoint = self.paired[i]
        if self._held is not None and self.paired[self._held[0]] is checkpoint:
            return self._held[1], self._held[2]
        loaded, weights = load_checkpoint(checkpoint, self.asked)
        mark = weights.digest if weights is not None else f"live:{id(loaded.model)}"
        self.weights = self.weights or weights
        self.digests[i] = "" if weights is None else weights.digest
        self._held = (i, loaded, mark)
        return loaded, mark

    def _samples(self, i: int, loaded: LoadedModel) -> Samples:
        asked = self.asked
        samples = self.stream.samples(
            i,
            loaded,
            n=asked.samples,
            seed=asked.seed,
            loss=objective_of(loaded, asked).name,
            columns=self.columns,
            max_length=asked.max_length,
            skip_bad=asked.skip_bad,
            split=asked.split,
        )
        name = self.stream.tasks[i].name
        self.warnings.extend(f"task {name}: {text}" for text in samples.warnings)
        return samples

    # Measuring

    def measure(self) -> None:
        """All tasks in their order, then the reference."""
        total = len(self.stream)
        for i in range(total):
            name, where = self.stream.tasks[i].name, shown(self.paired[i])
            samples: Samples | None = None
            try:
                loaded, mark = self._load(i)
                model = self._adapted(i, loaded)
                samples = self._samples(i, model)
                place = f"task {i + 1} of {total}"
                task = self._diagnosed(i, i + 1, model, mark, samples, name, where, place)
                if i == total - 1:
                    self._measure_scale(model, samples, task)
            except UsageError:
                raise
            except ClcurvError as error:
                self.failure = self.failure or error
                task = failed_task(error, index=i + 1, name=name, checkpoint=where, samples=samples)
            self.tasks.append(task)
        self.tell("reference", 0, 0)
        self._measure_reference()

    def _adapted(self, i: int, loaded: LoadedModel) -> LoadedModel:
        asked = self.asked
        return self.stream.adapt(
            i, loaded, head=asked.head, seed=asked.seed, split=asked.split, columns=self.columns
        )

    def _diagnosed(
        self,
        slot: int,
        index: int,
        model: LoadedModel,
        mark: str,
        samples: Samples,
        name: str,
        where: str,
        place: str,
    ) -> TaskDiagnosis:
        """The diagnosis kept under a slot, or a new one, which is kept there."""
        objective = objective_of(model, self.asked)
        settings = asdict(self.settings)
        for free in ("memory", "batch_size"):  # they change time, not numbers
            del settings[free]
        key = key_of(
            {
                "checkpoint": mark,
                "data": samples.digest,
                "loss": objective.name,
                "loss_version": getattr(objective, "version", ""),
                "head": self.asked.head,
                "arch": model.arch,
                "model": model_version(model.model),
                "settings": settings,
                "version": __version__,
            }
        )
        found = self.finished.get(slot, key)
        if found is not None:
            self.tell(f"{place}: taken from {self.asked.resume}", 1, 1)
            return replace(found, index=index, name=name, checkpoint=where)
        task = diagnose_task(
            model.model,
            samples,
            objective,
            self.settings,
            index=index,
            name=name,
            checkpoint=where,
            progress=lambda stage, done, total: self.tell(f"{place}: {stage}", done, total),
        )
        try:
            self.finished.put(slot, key, task)
        except ResourceError as error:  # the measurement is not lost with it
            self.warnings.append(f"{place} is not kept for --resume: {error}")
        return task

    def _measure_scale(self, model: LoadedModel, samples: Samples, task: TaskDiagnosis) -> None:
        """The effective rank's gradient beside the task's, at the end of the stream."""
        if not task.features:
            return
        self.scale = measure_er_scale(
            model.model,
            samples,
            objective_of(model, self.asked),
            task.features,
            device=self.settings.device,
            dtype=DTYPES[self.asked.dtype],
        )

    def _measure_reference(self) -> None:
        if self.asked.reference == "first-task":
            good = [task for task in self.tasks if task.status == "ok"]
            self.reference = good[0] if good else (self.tasks[0] if self.tasks else None)
            return
        mark = f"fresh:{self.asked.seed}"
        if self.asked.reference == "fresh":
            loaded = fresh_copy(self.first, seed=self.asked.seed)
        else:
            loaded, weights = load_checkpoint(self.asked.reference, self.asked)
            mark = weights.digest if weights is not None else f"live:{id(loaded.model)}"
        where = shown(self.asked.reference)
        samples: Samples | None = None
        name = self.stream.tasks[0].name
        try:
            model = self._adapted(0, loaded)
            samples = self._samples(0, model)
            self.reference = self._diagnosed(
                len(self.stream), 1, model, mark, samples, name, where, "reference"
            )
        except UsageError:
            raise
        except ClcurvError as error:
            self.failure = self.failure or error
            self.reference = failed_task(
                error, index=1, name=name, checkpoint=where, samples=samples
            )
