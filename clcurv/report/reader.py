"""A file -> a checked document. The file is untrusted."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from typing import IO, Any, TypeVar, overload

from pydantic import ValidationError

from clcurv.errors import CorruptFileError, InputError
from clcurv.report.document import Document
from clcurv.report.kappa_document import KappaDocument
from clcurv.report.registry import REPORTS, document_class

MAX_BYTES = 256 * 2**20

Source = str | os.PathLike[str] | Mapping[str, Any] | IO[str] | IO[bytes]


_Document = TypeVar("_Document", bound=Document)
_WRITERS = {
    "clcurv.schedule": "clcurv kappa CHECKPOINT --data DATA -o schedule.json",
    "clcurv.spectrum": "clcurv spectrum CHECKPOINT... --stream STREAM -o spectrum.json",
    "clcurv.relimp": "clcurv relimp CHECKPOINT --past OLD --current NEW -o relimp.json",
    "clcurv.inspect": "clcurv inspect FILE -o inspect.json",
    "clcurv.l2er": "clcurv spectrum CHECKPOINT... --stream STREAM --l2er l2er.json",
}


@overload
def load_document(source: Source | KappaDocument) -> KappaDocument: ...
@overload
def load_document(source: Source | _Document, kind: type[_Document]) -> _Document: ...
def load_document(source: Source | Document, kind: type[Document] = KappaDocument) -> Document:
    """Read a document and check it against its schema.

    Args:
        source: A path, ``"-"`` for standard input, an open file, a mapping, or a document.
        kind: What it must be.

    Raises:
        InputError: It cannot be read, is not strict JSON, or is another schema or version.
    """
    if isinstance(source, kind):
        return source
    schema = _schema_of(kind)
    if isinstance(source, Document):
        raise _other_schema("the given document", source.schema_, schema)
    text, where = _text_of(source, _WRITERS[schema])
    data = _parse(text, where)
    if data.get("schema") != schema:
        raise _other_schema(where, data.get("schema"), schema)
    return _validated(data, kind, where)


def load_report(source: Source) -> Document:
    """Read whichever kind of report it says it is.

    Raises:
        InputError: As `load_document`, or it is no kind of report.
    """
    text, where = _text_of(source, _WRITERS["clcurv.schedule"])
    data = _parse(text, where)
    schema = data.get("schema")
    if schema not in REPORTS:
        raise _other_schema(where, schema, " or ".join(REPORTS))
    return _validated(data, document_class(schema), where)


def _schema_of(kind: type[Document]) -> str:
    name: str = kind.model_fields["schema_"].default
    return name


def _other_schema(where: str, found: object, wanted: str) -> InputError:
    writer = _WRITERS.get(wanted, "clcurv kappa, spectrum or relimp with -o FILE")
    return InputError(f"{where} has schema {found!r}, not {wanted}", hint=f"{writer} writes one")


def _validated(data: Mapping[str, Any], kind: type[_Document], where: str) -> _Document:
    schema, version = _schema_of(kind), data.get("schema_version")
    if not (isinstance(version, str) and re.fullmatch(r"1\.\d{1,6}", version)):
        raise InputError(
            f"{where} has {schema} version {version!r}; this clcurv reads 1.x",
            hint="update clcurv, or write the report again",
        )
    try:
        # Through JSON text again: pydantic's strict mode then takes lists for tuples but
        # never "1" for 1.
        return kind.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(x) for x in first["loc"]) or "the document"
        raise InputError(
            f"{where} does not follow {schema} 1.x: {place}: {first['msg']}",
            hint=f"clcurv schema {schema} prints what is expected",
        ) from None


def _text_of(source: Source, writer: str) -> tuple[str, str]:
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
            hint=f"{writer} writes one",
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
