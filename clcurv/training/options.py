"""How the temporary copy is trained: options, and a training job's config file. No torch here."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from clcurv.errors import DataError, UsageError
from clcurv.report.text import printable

OptimizerName = Literal["adamw", "sgd"]
SECTION = "look_ahead"
_MAX_BYTES = 1 << 20

# What others call the same things: Hugging Face's TrainingArguments, timm's train.py.
_ALIASES = {
    "learning_rate": "lr",
    "num_train_epochs": "epochs",
    "num_epochs": "epochs",
    "max_epochs": "epochs",
    "per_device_train_batch_size": "batch_size",
    "train_batch_size": "batch_size",
    "opt": "optimizer",
    "optim": "optimizer",
    "max_grad_norm": "grad_clip",
    "clip_grad": "grad_clip",
    "gradient_clip_val": "grad_clip",
    "early_stopping_patience": "patience",
}
_OPTIMIZERS = {"adamw_torch": "adamw", "adamw_torch_fused": "adamw", "momentum": "sgd"}


@dataclass(frozen=True, kw_only=True)
class LookAheadOptions:
    """The training job in short: what the look-ahead does on the current task alone.

    Attributes:
        optimizer: ``adamw`` | ``sgd``.
        lr: Learning rate, constant; give the training job's own.
        epochs: Most passes over the training part of the sample.
        batch_size: Samples in a step.
        weight_decay: Decoupled for adamw, coupled for sgd.
        momentum: Of sgd; adamw has its own (0.9, 0.999).
        patience: Epochs without a better validation score after which it ends; None never ends
            early. The epoch with the best score is kept either way.
        validation: Part of every class held out for the score; 0 trains on all and scores there.
        seed: Of the split, the order of the batches, dropout and the new rows of the head.
        grad_clip: Largest norm of the gradient in a step; None does not clip.
    """

    optimizer: OptimizerName = "adamw"
    lr: float = 1e-4
    epochs: int = 10
    batch_size: int = 32
    weight_decay: float = 0.0
    momentum: float = 0.9
    patience: int | None = 3
    validation: float = 0.2
    seed: int = 0
    grad_clip: float | None = None

    def __post_init__(self) -> None:
        if self.optimizer not in get_args(OptimizerName):
            raise UsageError(
                f"unknown optimizer {self.optimizer!r}",
                hint=f"one of {', '.join(get_args(OptimizerName))}",
            )
        self._check("lr", 0 < self.lr < math.inf, "a number above 0")
        self._check("epochs", self.epochs >= 1, "at least 1")
        self._check("batch_size", self.batch_size >= 1, "at least 1")
        self._check("weight_decay", 0 <= self.weight_decay < math.inf, "a number of at least 0")
        self._check("momentum", 0 <= self.momentum < 1, "at least 0 and below 1")
        self._check("patience", self.patience is None or self.patience >= 1, "at least 1")
        self._check("validation", 0 <= self.validation < 1, "at least 0 and below 1")
        self._check("seed", 0 <= self.seed < 2**63, "a whole number of at least 0")
        clip = self.grad_clip
        self._check("grad_clip", clip is None or 0 < clip < math.inf, "a number above 0")

    def _check(self, name: str, holds: bool, words: str) -> None:
        if not holds:
            raise UsageError(f"{name} must be {words}, not {getattr(self, name)}")


class _Config(BaseModel):
    """The same in a file; what is not there is None."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    optimizer: str | None = None
    lr: float | None = None
    epochs: int | None = None
    batch_size: int | None = None
    weight_decay: float | None = None
    momentum: float | None = None
    patience: int | None = None
    validation: float | None = None
    seed: int | None = None
    grad_clip: float | None = None

    @field_validator("*", mode="before")
    @classmethod
    def _no_words(cls, value: Any) -> Any:
        if isinstance(value, bool):  # YAML 1.1 reads yes and on as true
            raise ValueError("true and false mean nothing here")
        return value


def load_look_ahead_options(
    path: str | Path, *, defaults: LookAheadOptions | None = None
) -> LookAheadOptions:
    """Read a training config: YAML or JSON, of plain values only.

    Where the file has a section ``look_ahead``, only that section is read, so that it can stand
    in the training job's own config; otherwise every key of the file must be one of
    `LookAheadOptions` or a name that Hugging Face or timm have for one (``learning_rate``,
    ``num_train_epochs``, ``per_device_train_batch_size``, ``opt``, ``max_grad_norm``, ...).

    Args:
        path: The file.
        defaults: Values for what the file leaves out.

    Raises:
        DataError: It cannot be read, or has an unknown key or a value of the wrong type.
        UsageError: A value is out of range.
    """
    content = _read(Path(path))
    if SECTION in content:
        section = content[SECTION]
        if not isinstance(section, Mapping):
            raise DataError(f"{path}: {SECTION} is no mapping of options to values")
        content = dict(section)
    given: dict[str, Any] = {}
    for key, value in content.items():
        name = _ALIASES.get(str(key), str(key))
        if name in given:
            raise DataError(f"{path}: {printable(str(key))} and another key both mean {name}")
        given[name] = _OPTIMIZERS.get(value, value) if isinstance(value, str) else value
    try:
        config = _Config.model_validate(given)
    except ValidationError as error:
        raise _refused(path, error) from None
    # An explicit null is a value: no patience, no clipping.
    held = {name: getattr(config, name) for name in config.model_fields_set}
    if held.get("grad_clip") == 0:  # what Hugging Face and Lightning write for none
        held["grad_clip"] = None
    nothing = [n for n, v in held.items() if v is None and n not in ("patience", "grad_clip")]
    if nothing:
        raise DataError(f"{path}: {nothing[0]} has no value")
    try:
        return replace(defaults or LookAheadOptions(), **held)
    except UsageError as error:
        raise UsageError(f"{path}: {error}", hint=error.hint) from None


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            said = file.read(_MAX_BYTES + 1)  # a device may never end, and tells no size
        if len(said) > _MAX_BYTES:
            raise DataError(f"{path}: too large for a training config")
        content = yaml.safe_load(said.decode("utf-8-sig"))  # JSON is YAML
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        raise DataError(f"{path}: the training config cannot be read ({reason})") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{path}: not valid YAML or JSON: {reason}") from error
    if not isinstance(content, dict):
        raise DataError(
            f"{path}: no mapping of options to values", hint="for example a file with `lr: 1e-4`"
        )
    return content


def _refused(path: str | Path, error: ValidationError) -> DataError:
    first = error.errors(include_url=False, include_context=False)[0]
    key = printable(str(first["loc"][0]))
    known = [field.name for field in fields(LookAheadOptions)]
    if first["type"] != "extra_forbidden":
        message = first["msg"].removeprefix("Value error, ")
        return DataError(f"{path}: {key}: {message}")
    close = difflib.get_close_matches(key, [*known, *_ALIASES], n=1)
    hint = f"did you mean {close[0]}?" if close else f"known keys: {', '.join(known)}"
    if not close:
        hint += f"; in a file with others, put them into a section {SECTION}:"
    return DataError(f"{path}: unknown key {key!r}", hint=hint)
