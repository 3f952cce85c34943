"""The commands to run next on a checkpoint, ready for a shell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from clcurv.errors import ClcurvError, NumericalError, ResourceError
from clcurv.inputs.checkpoint import Weights
from clcurv.inputs.loaded import LoadedModel
from clcurv.pipeline.options import InputOptions, InspectOptions
from clcurv.report.inspect_document import CandidateInfo, NextStep
from clcurv.report.parts import clean
from clcurv.report.shell import command_line

# Options about reading that every command takes, and that were needed here.
_OF_CHECKPOINT = (
    *(
        "arch",
        "key",
        "match_by_order",
        "trust_code",
        "max_bytes",
        "unsafe_pickle",
        "online",
        "loss",
    ),
)
_OF_DATA = (
    *("split", "image_column", "text_column", "label_column", "label_map", "max_length"),
    *("skip_bad", "batch_fn"),
)
_DEFAULTS = {f.name: f.default for f in fields(InputOptions)}
_MOST = 4  # candidates to try by name


def next_steps(
    path: str,
    asked: InspectOptions,
    *,
    weights: Weights | None,
    loaded: LoadedModel | None,
    candidates: Sequence[CandidateInfo],
    stage: str,
    refusal: ClcurvError | None,
    has_head: bool,
) -> list[NextStep]:
    """What to run, with the options that were needed to get this far.

    Args:
        path: The checkpoint as given.
        asked: The options of this run.
        weights: None where reading failed.
        loaded: The model; None where there is none.
        candidates: From `candidates_of`.
        stage: Where it ended.
        refusal: Why the commands refuse it as it stands.
        has_head: Whether there are outputs that labelled data could judge.
    """
    if weights is None or isinstance(refusal, NumericalError | ResourceError):
        return []  # the refusal's hint says all there is to say
    file = f"./{path}" if path.startswith("-") else path
    if loaded is None:
        return _to_find_the_model(file, asked, candidates, has_head=has_head)
    if refusal is not None and stage != "layers":  # the data are at fault: look again without
        return [_step([file, *_given(asked, _OF_CHECKPOINT)], "inspect", "the checkpoint alone")]
    return [*_to_measure(file, asked, loaded), *_other_weights(file, asked, weights)]


def _to_measure(file: str, asked: InspectOptions, loaded: LoadedModel) -> list[NextStep]:
    words = [file, *_given(asked, _OF_CHECKPOINT)]
    if loaded.arch_source == "loss" and asked.arch is None:
        words += ["--arch", loaded.arch]  # what the data have decided once
    columns = _given(asked, _OF_DATA)
    data = "DATA" if asked.data is None else str(asked.data)
    backbone = loaded.task == "backbone"
    probe = ["--head", "linear-probe"] if backbone else []
    fresh = ["--head", "fresh"] if backbone else []
    return [
        _step(
            [*words, *probe, "--data", data, *columns],
            "kappa",
            "how sharp each layer is, λ and learning rate for it",
        ),
        _step(
            [*words, *probe, "--past", data, "--current", "NEW_DATA", *columns],
            "relimp",
            "which parameters the next task may change",
        ),
        _step(
            [*words, *fresh, "--stream", "STREAM", *columns],
            "spectrum",
            "whether it can still learn; STREAM has a folder per task",
        ),
    ]


def _other_weights(file: str, asked: InspectOptions, weights: Weights) -> list[NextStep]:
    others = [name for name in _OF_CHECKPOINT if name != "key"]
    return [
        _step([file, *_given(asked, others), "--key", key], "inspect", "other weights in the file")
        for key in weights.other_keys[:1]
    ]


def _to_find_the_model(
    file: str, asked: InspectOptions, candidates: Sequence[CandidateInfo], *, has_head: bool
) -> list[NextStep]:
    others = [name for name in _OF_CHECKPOINT if name != "arch"]
    words = [file, *_given(asked, others)]
    fitting = [c.name for c in candidates if c.status == "fits"]
    steps = [
        _step([*words, "--arch", name], "inspect", "one of the architectures that fit")
        for name in fitting[:_MOST]
    ]
    if fitting and asked.data is None and has_head:
        steps.append(_step([*words, "--data", "DATA"], "inspect", "labelled data decide"))
    if not fitting:
        steps += [
            _step([*words, "--arch", "NAME"], "inspect", "a timm or torchvision model by name"),
            _step(
                [*words, "--arch", "FILE.py:FACTORY", "--trust-code"],
                "inspect",
                "your own code: FACTORY() returns the model",
            ),
        ]
    return steps


def _given(asked: InspectOptions, names: Sequence[str]) -> list[str]:
    """Flags for the options that were set."""
    words: list[str] = []
    for name in names:
        value = getattr(asked, name, None)
        if value is None or value == _DEFAULTS.get(name):
            continue
        flag = f"--{name.replace('_', '-')}"
        words += [flag] if value is True else [flag, str(value)]
    return words


_PLACEHOLDERS = ("DATA", "NEW_DATA", "STREAM", "NAME", "FILE.py:FACTORY")


def _step(words: Sequence[str], command: str, purpose: str) -> NextStep:
    return NextStep(
        command=clean(command_line(["clcurv", command, *words])),
        purpose=purpose,
        placeholders=tuple(word for word in words if word in _PLACEHOLDERS),
    )
