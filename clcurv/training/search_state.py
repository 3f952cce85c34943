"""The search's trials on disk: one JSON file, written whole after each of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from clcurv.errors import CorruptFileError, UsageError
from clcurv.runtime import atomic_write
from clcurv.training.search_plan import Trial

SCHEMA = "clcurv.search-state"
VERSION = 1
_TRIALS = TypeAdapter(list[Trial])


def save_trials(path: Path, key: str, trials: Sequence[Trial]) -> None:
    """Write all trials so far under the key of their search.

    Raises:
        UsageError: `path` cannot be a file.
        ResourceError: The disk is full.
    """
    held = {
        "schema": SCHEMA,
        "version": VERSION,
        "key": key,
        "trials": _TRIALS.dump_python(list(trials), mode="json"),
    }
    atomic_write(path, json.dumps(held, indent=1, allow_nan=False).encode())


def load_trials(path: Path, key: str) -> list[Trial]:
    """Trials of an earlier run; none where there is no file yet.

    Raises:
        UsageError: The file is of another search, or no state of one.
        CorruptFileError: It is damaged.
    """
    if not path.exists():
        return []
    if not path.is_file():  # a device may never end
        raise UsageError(f"{path} is no regular file", hint="name another file")
    again = f"delete {path} to start over, or name another file"
    try:
        held: Any = json.loads(path.read_bytes())
        if not isinstance(held, dict) or held.get("schema") != SCHEMA:
            raise UsageError(f"{path} is no state of a search", hint="name another file")
        if held.get("version") == VERSION and held.get("key") == key:
            return _TRIALS.validate_python(held["trials"])
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}", hint="name another file") from None
    except UnicodeDecodeError:  # likely data, which no hint should have deleted
        raise UsageError(f"{path} is no state of a search", hint="name another file") from None
    except (ValueError, KeyError, RecursionError, ValidationError) as error:
        raise CorruptFileError(f"{path}: the search's state is damaged", hint=again) from error
    raise UsageError(
        f"{path} belongs to another search (other data, weights, importance or options)", hint=again
    )
