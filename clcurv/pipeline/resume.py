"""Finished tasks on disk, so that an interrupted stream goes on where it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from clcurv.diagnostics.spectrum import TaskDiagnosis
from clcurv.errors import ResourceError, UsageError
from clcurv.runtime import atomic_write

_TASK = TypeAdapter(TaskDiagnosis)
VERSION = 1


class FinishedTasks:
    """A folder with one JSON file a task, each under a key of all that its numbers depend on."""

    def __init__(self, folder: str | Path | None) -> None:
        """Args: folder: Made if need be; None keeps nothing.

        Raises:
            UsageError: It is a file.
            ResourceError: It cannot be made.
        """
        self._folder = None if folder is None else Path(folder)
        if self._folder is None:
            return
        if self._folder.exists() and not self._folder.is_dir():
            raise UsageError(f"--resume {folder}: is a file", hint="name a folder")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ResourceError(f"--resume {folder}: {error.strerror or error}") from None

    def get(self, index: int, key: str) -> TaskDiagnosis | None:
        """The finished task, or None where there is none of this key, or none that can be read."""
        path = self._path(index)
        if path is None or not path.is_file():
            return None
        try:
            held = json.loads(path.read_text())
            if held["version"] != VERSION or held["key"] != key:
                return None
            return _TASK.validate_python(held["task"])
        except (OSError, ValueError, KeyError, TypeError, ValidationError):
            return None

    def put(self, index: int, key: str, task: TaskDiagnosis) -> None:
        """Keeps a finished task.

        Raises:
            ResourceError: It cannot be written.
        """
        path = self._path(index)
        if path is None:
            return
        held = {"version": VERSION, "key": key, "task": _TASK.dump_python(task, mode="json")}
        atomic_write(path, json.dumps(held, indent=1).encode())

    def _path(self, index: int) -> Path | None:
        return None if self._folder is None else self._folder / f"task-{index:04d}.json"


def key_of(parts: Mapping[str, Any]) -> str:
    """sha256 (hex) over everything that a task's numbers depend on."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
