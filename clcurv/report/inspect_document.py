"""The report of ``clcurv inspect``: schema ``clcurv.inspect``, version 1.0.

`clcurv.pipeline.inspect_run.inspect` makes one.
"""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from clcurv.report.document import Count, Document, Section

SCHEMA: Final = "clcurv.inspect"

Part = Literal["backbone", "head", "pretraining"]


class FilePart(Section):
    """One file; sha256 is of its bytes, as model hubs and ``sha256sum`` give it.

    It is None where reading the whole file would take long and serve nobody.
    """

    name: str
    size_bytes: Count
    sha256: str | None = None


class FileInfo(Section):
    """What lies on the disk.

    Attributes:
        format: ``torch`` | ``torch-legacy`` | ``safetensors`` | ``timm-folder`` | ``hf-folder`` |
            ...; None where it is nothing that is read.
        files: The file, or those of a folder, the weights among them; folders inside are left out.
        begins: A file's first 16 bytes, hexadecimal.
    """

    path: str
    kind: Literal["file", "folder"]
    format: str | None = None
    size_bytes: Count
    files: tuple[FilePart, ...] = ()
    begins: str | None = None


class WeightsInfo(Section):
    """The state dict that was taken.

    Attributes:
        key: Where it was in the file; None for a bare state dict.
        other_keys: Further state dicts there, for ``--key``.
        prefix: Taken off every name.
        dtypes: Elements of each type, as stored.
        digest: sha256 over names, types, shapes and bytes of the tensors, as reports carry it.
        aside: Tensors of a second copy of the network.
    """

    key: str | None = None
    other_keys: tuple[str, ...] = ()
    prefix: str = ""
    n_tensors: Count
    n_elements: Count
    size_bytes: Count
    dtypes: dict[str, Count]
    digest: str
    aside: tuple[str, ...] = ()


class CandidateInfo(Section):
    """An architecture that these weights may belong to.

    Attributes:
        status: ``chosen``; ``same`` (the same network under another name, or one that the data
            did not prefer); ``fits`` (nobody has chosen yet); ``refused``.
        reason: Why it was refused.
        mean_loss: On the labelled data, where several had to be told apart.
    """

    name: str
    status: Literal["chosen", "same", "fits", "refused"]
    evidence: str
    reason: str | None = None
    mean_loss: float | None = None


class ArchitectureInfo(Section):
    """The network that the commands would measure.

    Attributes:
        source: As `clcurv.inputs.loaded.LoadedModel.arch_source`.
        n_parameters: Of the model; tied ones counted once.
        classes: The first class names, where the checkpoint or its library has them.
        preprocess: What happens to inputs, in the words of the library.
    """

    name: str
    source: str
    task: str
    modality: str
    num_classes: int | None = None
    n_parameters: Count
    matched_fraction: float
    classes: tuple[str, ...] = ()
    preprocess: dict[str, str] = Field(default_factory=dict)


class PartInfo(Section):
    """How the tensors of one part of the network pair up; names as the model has them.

    Attributes:
        matched, matched_elements: In the model and in the file, of equal shape.
        missing: In the model only.
        unexpected: In the file only.
        different: In both, and their shapes differ.
    """

    matched: Count = 0
    matched_elements: Count = 0
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    different: tuple[str, ...] = ()


class MatchInfo(Section):
    """Backbone and head apart, since another head is no fault; so are pretraining's leftovers.

    Attributes:
        arch: The model the tensors were compared with: the chosen one, or the first refused.
        pretraining: Decoders, projectors, queues that self-supervised training left behind.
    """

    arch: str
    backbone: PartInfo
    head: PartInfo
    pretraining: tuple[str, ...] = ()


class TensorInfo(Section):
    """One tensor of the file.

    Attributes:
        name: In the file.
        shape: As stored.
        dtype: As stored, e.g. ``float32``.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str


class InspectedLayer(Section):
    """What the commands would measure as one layer, shallow to deep."""

    name: str
    depth: Count
    numel: Count
    is_head: bool = False
    param_names: tuple[str, ...]
    tied_names: tuple[str, ...] = ()


class SkillInfo(Section):
    """How the model does on the data given: near chance, something does not belong together."""

    path: str | None
    n_samples: Count
    accuracy: float | None = None
    chance: float | None = None
    mean_loss: float | None = None
    near_chance: bool = False
    notes: tuple[str, ...] = ()


class RefusalInfo(Section):
    """Why the commands would not measure it.

    Attributes:
        kind: Class in `clcurv.errors`.
        stage: Where it ended: ``reading`` | ``architecture`` | ``data`` | ``layers``.
    """

    kind: str
    stage: Literal["reading", "architecture", "data", "layers"]
    message: str
    hint: str | None = None
    exit_code: int


class NextStep(Section):
    """A command to run, quoted for the shell; words in capitals stand for your own files."""

    command: str
    purpose: str
    placeholders: tuple[str, ...] = ()


class InspectDocument(Document):
    """The whole report of ``clcurv inspect``; later parts are missing where it was refused."""

    schema_: Literal["clcurv.inspect"] = Field(
        default=SCHEMA, validation_alias="schema", serialization_alias="schema"
    )
    file: FileInfo
    weights: WeightsInfo | None = None
    metadata: dict[str, str | int | float | bool | None] = Field(default_factory=dict)
    metadata_left_out: Count = 0
    candidates: tuple[CandidateInfo, ...] = ()
    architecture: ArchitectureInfo | None = None
    match: MatchInfo | None = None
    tensors: tuple[TensorInfo, ...] = ()
    layers: tuple[InspectedLayer, ...] = ()
    layers_by: str = "block"
    data: SkillInfo | None = None
    refusal: RefusalInfo | None = None
    notes: tuple[str, ...] = ()
    next: tuple[NextStep, ...] = ()
