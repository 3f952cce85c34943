"""The manifest of a stream: YAML or JSON, checked before anything it names is opened."""

from __future__ import annotations

import difflib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictInt,
    StrictStr,
    ValidationError,
    field_validator,
    model_validator,
)

from clcurv.errors import DataError

SCHEMA = "clcurv.stream"
SCHEMA_VERSION = "1.0"
Scenario = Literal["class-il", "task-il", "domain-il"]
StreamModality = Literal["image", "text", "array"]
Format = Literal[
    "imagefolder", "npz", "csv", "tsv", "json", "jsonl", "ndjson", "parquet", "arrow", "webdataset"
]
_Label = StrictStr | StrictInt
_MAX_BYTES = 64 << 20
_COLUMNS = ("image", "text", "array", "label")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TransformSpec(_Part):
    """One of the generated permutations; see `clcurv.inputs.stream_transform`."""

    kind: Literal["none", "permute", "label-shuffle"]
    number: int | None = Field(default=None, ge=0, description="Default: the task's place, from 0.")
    seed: int | None = Field(default=None, ge=0, description="Default: the stream's seed.")


class _Data(_Part):
    """Keys that a task has and that the manifest may set for all tasks."""

    train: str | None = Field(default=None, description="Path, relative to the manifest.")
    test: str | None = Field(default=None, description="Path, relative to the manifest.")
    split: str | None = None
    format: Format | None = Field(default=None, description="A check: contents decide.")
    columns: dict[Literal["image", "text", "array", "label"], str | list[str]] = Field(
        default_factory=dict
    )
    transform: TransformSpec | None = None

    @field_validator("train", "test")
    @classmethod
    def _local(cls, path: str | None) -> str | None:
        if path is not None and (not path.strip() or "\0" in path):
            raise ValueError("an empty path")
        if path is not None and "://" in path:
            raise ValueError(f"{path!r} is a link; nothing is downloaded")
        return path

    @field_validator("transform", mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value


class TaskSpec(_Data):
    """One task.

    Attributes:
        classes: Labels, as written in the data, of the rows that belong to the task; in this
            order they are the outputs of a head of the task's own. None takes every row.
        t: Rows of an npz whose ``t`` is this.
        n, classes_seen, label_histogram, digest: As `clcurv stream resolve` found them; `n` and
            `digest` are held against the data.
    """

    name: StrictStr | None = Field(default=None, min_length=1)
    classes: list[_Label] | None = Field(default=None, min_length=1)
    t: _Label | None = None
    n: int | None = Field(default=None, ge=0)
    label_histogram: dict[str, int] | None = None
    digest: str | None = None

    @field_validator("classes")
    @classmethod
    def _distinct(cls, classes: list[str | int] | None) -> list[str | int] | None:
        if twice := _repeated(str(c) for c in classes or ()):
            raise ValueError(f"class {twice} is listed twice")
        return classes


class Manifest(_Data):
    """A stream of tasks.

    Attributes:
        classes: How labels are numbered: their list in the order of the head's outputs, a
            mapping of label to output, or None (see `clcurv.inputs.labels`).
        local: In a domain-incremental stream: every task numbers its own classes from 0.
        origin, notes: As `clcurv stream resolve` wrote them.
    """

    schema_: Literal["clcurv.stream"] = Field(alias="schema")
    schema_version: str = Field(default=SCHEMA_VERSION, pattern=r"^\d+\.\d+$")
    name: StrictStr | None = None
    scenario: Scenario = "class-il"
    modality: StreamModality | None = None
    classes: list[_Label] | dict[_Label, StrictInt] | None = Field(default=None, min_length=1)
    seed: int | None = Field(default=None, ge=0)
    local: bool = False
    tasks: list[TaskSpec] = Field(min_length=1)
    origin: str | None = None
    notes: list[str] = Field(default_factory=list)

    @field_validator("schema_version")
    @classmethod
    def _readable(cls, version: str) -> str:
        if version.split(".")[0] != SCHEMA_VERSION.split(".")[0]:
            raise ValueError(f"version {version} is not read by this clcurv")
        return version

    @model_validator(mode="after")
    def _names(self) -> Manifest:
        first: dict[str, int] = {}
        for place, task in enumerate(self.tasks, 1):
            name = task.name or f"task-{place}"
            if name in first:
                raise ValueError(f"tasks {first[name]} and {place} are both named {name!r}")
            first[name] = place
        if isinstance(self.classes, list) and (twice := _repeated(map(str, self.classes))):
            raise ValueError(f"classes: {twice} is listed twice")
        ids = list(self.class_ids().values())
        if len(set(ids)) < len(ids) or any(i < 0 for i in ids):
            raise ValueError("classes: two labels have one output, or an output is negative")
        return self

    def class_ids(self) -> dict[str, int]:
        """Label as written -> class id; empty where the manifest does not say."""
        if isinstance(self.classes, dict):
            return {str(label): number for label, number in self.classes.items()}
        return {str(label): number for number, label in enumerate(self.classes or ())}


def _repeated(names: Iterable[str]) -> str | None:
    return next((name for name, times in Counter(names).items() if times > 1), None)


def read_mapping(path: Path) -> dict[str, Any]:
    """A YAML or JSON file whose top level is a mapping.

    Nothing but plain values can come out of it (`yaml.safe_load`); keys given twice are an
    error, not a silent choice of the last.

    Raises:
        DataError: It is neither, or too large.
    """
    content = read_plain(path, "a manifest")
    if not isinstance(content, dict):
        raise DataError(
            f"{path}: neither a stream manifest nor another description of tasks",
            hint=f"a manifest begins with `schema: {SCHEMA}`; a data set becomes a stream with "
            "--stream split:K --data PATH",
        )
    return content


def read_plain(path: Path, what: str, *, limit: int = _MAX_BYTES) -> Any:
    """The plain values of a YAML or JSON file; see `read_mapping`.

    Args:
        path: The file.
        what: What it should be, for messages.
        limit: Most bytes.

    Raises:
        DataError: It is neither, or too large.
    """
    if path.stat().st_size > limit:
        raise DataError(f"{path}: too large for {what} ({path.stat().st_size} bytes)")
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as text ({error})") from error
    json_like = text.lstrip().startswith(("{", "["))
    try:
        return _json(text) if json_like else _yaml(text)
    except RecursionError as error:
        raise DataError(f"{path}: nested too deeply for {what}") from error
    except (ValueError, yaml.YAMLError) as error:
        kind = "JSON" if json_like else "YAML"
        reason = " ".join(str(error).split())
        raise DataError(f"{path}: not valid {kind}: {reason}") from error


def _json(text: str) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content = dict(pairs)
        if len(content) < len(pairs):
            raise ValueError(f"key {_repeated(name for name, _ in pairs)!r} is given twice")
        return content

    def constant(name: str) -> Any:
        raise ValueError(f"{name} is no JSON number")

    return json.loads(text, object_pairs_hook=unique, parse_constant=constant)


def _yaml(text: str) -> Any:
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if root is not None:
        _refuse_duplicates(root)
    return yaml.safe_load(text)


def _refuse_duplicates(root: yaml.Node) -> None:
    todo, seen = [root], {id(root)}
    while todo:
        node = todo.pop()
        inside: list[Any] = []
        if isinstance(node, yaml.MappingNode):
            keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            if twice := _repeated(key for key in keys if key != "<<"):
                line = node.start_mark.line + 1
                raise ValueError(f"key {twice!r} is given twice (mapping in line {line})")
            inside = [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            inside = list(node.value)
        for part in inside:
            if id(part) not in seen:
                seen.add(id(part))
                todo.append(part)


def parse_manifest(path: Path, content: dict[str, Any]) -> Manifest:
    """The content of a file as a manifest.

    Raises:
        DataError: An unknown key, a value of another kind, duplicate task names.
    """
    try:
        return Manifest.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where, hint = _place(first["loc"]), None
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            message = "unknown key"
            known = _keys(first["loc"])
            close = difflib.get_close_matches(str(first["loc"][-1]), known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known keys: {', '.join(known)}"
        elif "columns" in first["loc"][:-1]:
            hint = f"columns: {', '.join(_COLUMNS)}"
        elif isinstance(first.get("input"), bool) or "classes" in first["loc"]:
            # YAML 1.1 reads no, off, yes and dates as something else than words.
            hint = "labels are numbers or words; put words such as 'no' and '2024-01-01' in quotes"
        more = len(error.errors()) - 1
        also = f" (and {more} more)" if more and first["type"] == "extra_forbidden" else ""
        at = f"{where}: " if where else ""
        raise DataError(f"{path}: {at}{message[:1].lower()}{message[1:]}{also}", hint=hint) from (
            error
        )


def _place(loc: Sequence[Any]) -> str:
    place = ""
    for part in loc:
        if part in ("str", "int", "[key]") or str(part).startswith(("dict[", "list[")):
            continue
        place += f"[{part}]" if isinstance(part, int) else f".{part}" if place else str(part)
    return place


def _keys(loc: Sequence[Any]) -> list[str]:
    if "columns" in loc[:-1]:
        return list(_COLUMNS)
    kind = Manifest if len(loc) == 1 else TransformSpec if "transform" in loc[:-1] else TaskSpec
    return [field.alias or name for name, field in kind.model_fields.items()]


SCENARIOS: tuple[str, ...] = get_args(Scenario)
