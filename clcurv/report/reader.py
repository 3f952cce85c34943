"""A report file -> a checked document. The file is untrusted."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from typing import IO, Any

from pydantic import ValidationError

from clcurv.errors import CorruptFileError, InputError
from clcurv.report.document import SCHEMA, SCHEMA_VERSION, KappaDocument

MAX_BYTES = 256 * 2**20

Source = str | os.PathLike[str] | Mapping[str, Any] | IO[str] | IO[bytes]


def load_document(source: Source | KappaDocument) -> KappaDocument:
    """Read a report and check it against the schema.

    Args:
        source: A path, ``"-"`` for standard input, an open file, a mapping, or a document.

    Raises:
        InputError: It cannot be read, is not strict JSON, or is another schema or version.
    """
    if isinstance(source, KappaDocument):
        return source
    text, where = _text_of(source)
    data = _parse(text, where)
    _check_header(data, where)
    try:
        # Through JSON text again: pydantic's strict mode then takes lists for tuples but
        # never "1" for 1.
        return KappaDocument.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(x) for x in first["loc"]) or "the document"
        raise InputError(
            f"{where} does not follow {SCHEMA} {SCHEMA_VERSION}: {place}: {first['msg']}",
            hint="clcurv schema clcurv.schedule prints what is expected",
        ) from None


def _text_of(source: Source) -> tuple[str, str]:
    """The text, and a name for it in messages."""
    if isinstance(source, Mapping):
        try:
            return json.dumps(dict(source), allow_nan=False), "the given mapping"
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(f"the given mapping is not strict JSON: {error}") from error
    where = "the given file"
    try:
        if isinstance(source, str | os.PathLike):
            if os.fspath(source) == "-":
                where, raw = "standard input", sys.stdin.buffer.read(MAX_BYTES + 1)
            else:
                where = repr(os.fspath(source))
                with open(source, "rb") as file:
                    raw = file.read(MAX_BYTES + 1)
        else:
            content = source.read(MAX_BYTES + 1)
            raw = content.encode() if isinstance(content, str) else content
        if len(raw) > MAX_BYTES:
            raise InputError(f"{where} is too large for a report (over {MAX_BYTES >> 20} MiB)")
        return raw.decode("utf-8-sig"), where
    except UnicodeError as error:
        raise CorruptFileError(f"{where} is not UTF-8 text") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"cannot read {where}: {reason}",
            hint="clcurv kappa CHECKPOINT --data DATA -o schedule.json writes one",
        ) from error


def _parse(text: str, where: str) -> dict[str, Any]:
    if not text.strip():
        raise CorruptFileError(f"{where} is empty")
    try:
        data = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(f"{where} is not strict JSON: {error}") from None
    if not isinstance(data, dict):
        raise InputError(f"{where} holds a JSON {type(data).__name__}, not a report")
    return data


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key occurs twice in one object")
    return result


def _check_header(data: Mapping[str, Any], where: str) -> None:
    schema, version = data.get("schema"), data.get("schema_version")
    if schema != SCHEMA:
        raise InputError(
            f"{where} has schema {schema!r}, not {SCHEMA!r}",
            hint="give the JSON that clcurv kappa -o wrote",
        )
    if not (isinstance(version, str) and re.fullmatch(r"1\.\d{1,6}", version)):
        raise InputError(
            f"{where} has {SCHEMA} version {version!r}; this clcurv reads 1.x",
            hint="update clcurv, or write the report again",
        )
