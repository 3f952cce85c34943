"""What a file really is, told from its content and never from its suffix."""

from __future__ import annotations

import json
import re
import shlex
import zipfile
from pathlib import Path
from typing import Literal

from clcurv.errors import CorruptFileError, InputError, NotWeightsError, UnsafeFileError

Kind = Literal["torch", "torch-legacy", "safetensors", "pickle"]

# The first pickle of torch's format before 1.6 is its magic number 0x1950a86a20f9469cfc6c.
_LEGACY_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19"
_HEAD = 4096
_HUB_LIKE = re.compile(r"[\w-][\w.-]*/[\w-]+").fullmatch
_MOST_HEADER = 20_000_000  # bytes of a safetensors header: 150,000 tensors
_MOST_DIRECTORY = 32_000_000  # bytes of a zip archive's table of contents: 300,000 entries

RESAVE = "torch.save(model.state_dict(), 'weights.pt')"

# (first bytes, what it is, hint)
_FOREIGN: tuple[tuple[bytes, str, str], ...] = (
    (b"version https://git-lfs", "a git-lfs pointer, not the file itself", "run: git lfs pull"),
    (b"# xet version", "a Xet pointer, not the file itself", "download the real file"),
    (b"\x1f\x8b", "a gzip archive, not a weights file", "unpack it first: gunzip or tar xzf"),
    (b"BZh", "a bzip2 archive, not a weights file", "unpack it first: bunzip2"),
    (b"\xfd7zXZ\x00", "an xz archive, not a weights file", "unpack it first: xz -d"),
    (b"(\xb5/\xfd", "a zstd archive, not a weights file", "unpack it first: zstd -d"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive, not a weights file", "unpack it first"),
    (b"\x89HDF", "an HDF5 (Keras) file, not torch weights", "convert it to a state dict"),
    (b"GGUF", "a GGUF file: quantised weights have no gradients", "give the original weights"),
    (b"\x93NUMPY", "a single numpy array, not a weights file", "pass it with --data"),
    (b"\x89PNG", "a PNG image, not a weights file", "pass images with --data"),
    (b"\xff\xd8\xff", "a JPEG image, not a weights file", "pass images with --data"),
    (b"%PDF", "a PDF document, not a weights file", ""),
    (b"#!", "a script, not a weights file", "to name a model factory use --arch FILE.py:FACTORY"),
)


def describe_size(n: int) -> str:
    """Bytes for people: ``1,234 bytes`` or ``12.3 MB``."""
    return f"{n:,} bytes" if n < 10_000 else f"{n / 1e6:,.1f} MB"


def identify(path: Path, *, pickles: bool = False) -> Kind:
    """Tell which loader a regular file needs; refuse, naming it, what is not weights.

    Args:
        path: An existing regular file.
        pickles: Name a plain pickle instead of refusing it.

    Raises:
        CorruptFileError: Empty or cut short.
        UnsafeFileError: A zip archive or a header that could exhaust the machine, or that can be
            read in two ways.
        NotWeightsError: Anything that does not hold a state dict, named.
        InputError: It may not be read.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from error
    if size == 0:
        raise CorruptFileError(f"{path} is empty (0 bytes)", hint="copy or download it again")
    if head.startswith(b"PK"):
        return _identify_zip(path, size)
    if head.startswith(_LEGACY_MAGIC):
        return "torch-legacy"
    if _is_safetensors(head, size, path):
        return "safetensors"
    if pickles and _is_pickle(head):
        return "pickle"
    _refuse_foreign(path, head, size)
    raise NotWeightsError(
        f"{path} is no weights file: it begins with {head[:8]!r} ({describe_size(size)})",
        hint="give a torch or safetensors file, or a timm or Hugging Face folder",
    )


def _is_safetensors(head: bytes, size: int, path: Path) -> bool:
    """8-byte little-endian header length, then the header's ``{``."""
    if len(head) < 9 or head[8:9] != b"{":
        return False
    if all(byte in b"\t\n\r" or 0x20 <= byte < 0x7F for byte in head[:8]):
        return False  # text whose ninth letter happens to be a brace
    length = int.from_bytes(head[:8], "little")
    if length > size - 8:
        raise CorruptFileError(
            f"{path} is cut short or lying: its safetensors header claims {length:,} bytes, "
            f"the file has {size:,}",
            hint="copy or download it again",
        )
    if length > _MOST_HEADER:
        raise UnsafeFileError(
            f"{path} has a safetensors header of {describe_size(length)}, more than any model needs"
        )
    _check_header(path, length)
    return True


def _check_header(path: Path, length: int) -> None:
    """No name twice: readers differ in which tensor they then take.

    The library checks the rest (offsets, gaps, overlaps, types) when it opens the file.
    """
    twice: list[str] = []

    def pairs(found: list[tuple[str, object]]) -> None:
        names = [name for name, _ in found]
        if len(set(names)) != len(names):
            twice.append(next(name for name in names if names.count(name) > 1))

    try:
        with path.open("rb") as file:
            file.seek(8)
            json.loads(file.read(length), object_pairs_hook=pairs)
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(
            f"{path} is no valid safetensors file: its header is no JSON",
            hint="copy or download it again",
        ) from error
    if twice:
        raise UnsafeFileError(
            f"{path} names {twice[0]!r} twice in its safetensors header; its content is ambiguous"
        )


def _refuse_foreign(path: Path, head: bytes, size: int) -> None:
    for magic, what, hint in _FOREIGN:
        if head.startswith(magic):
            raise NotWeightsError(f"{path} is {what} ({describe_size(size)})", hint=hint or None)
    if head[257:262] == b"ustar":
        raise NotWeightsError(
            f"{path} is a tar archive, not a weights file",
            hint=f"unpack it first: tar xf {shlex.quote(str(path))}",
        )
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text.startswith(b"<"):
        raise NotWeightsError(
            f"{path} is an HTML or XML page: the download was probably an error page "
            f"({describe_size(size)})",
            hint="download the file again and look at its size",
        )
    if text.startswith((b"{", b"[")) and _is_json(path, size):
        raise NotWeightsError(
            f"{path} is a JSON file, not weights",
            hint="give the folder that holds it (config.json beside its weights)",
        )
    if head[:1] == b"\x08" and (b"pytorch" in head[:64] or b"onnx" in head[:200].lower()):
        raise NotWeightsError(
            f"{path} is an ONNX file, which torch cannot differentiate ({describe_size(size)})",
            hint="give the torch weights that it was exported from",
        )
    if head[1:].startswith((b"\xa6params", b"\xa5model")):
        raise NotWeightsError(f"{path} is a Flax (msgpack) file, not torch weights")
    if _is_pickle(head):
        raise NotWeightsError(
            f"{path} is a plain pickle, not a torch file; it is not opened, since pickles run code",
            hint=f"save the weights with {RESAVE} (or, for a file you made yourself, "
            "--unsafe-pickle)",
        )


def _is_pickle(head: bytes) -> bool:
    """Protocols 2 to 5 begin with their number; the older ones of text end with a dot."""
    if head[:1] == b"\x80":
        return head[1:2] <= b"\x05"
    return head[:1] in (b"(", b"c", b"]", b"}") and head.rstrip()[-1:] == b"."


def _is_json(path: Path, size: int) -> bool:
    if size > 50_000_000:
        return False
    try:
        json.loads(path.read_text("utf-8-sig"))
    except (ValueError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _identify_zip(path: Path, size: int) -> Kind:
    _check_directory(path, size)
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise CorruptFileError(
            f"{path} is cut short or damaged: it begins as a zip archive of {describe_size(size)} "
            "but its table of contents is unreadable",
            hint="copy or download it again",
        ) from error
    names = [entry.filename for entry in entries]
    tails = {name.split("/", 1)[-1] for name in names}
    if "constants.pkl" in tails and any(tail.startswith("code/") for tail in tails):
        raise NotWeightsError(
            f"{path} is a TorchScript archive; second derivatives do not pass through it",
            hint="save the original model's weights: " + RESAVE,
        )
    if "data.pkl" not in tails:
        raise NotWeightsError(f"{path} is {_name_zip(names, tails)}", hint=_zip_hint(names, tails))
    _check_entries(path, size, entries)
    return "torch"


def _name_zip(names: list[str], tails: set[str]) -> str:
    if not names:
        return "an empty zip archive, not a weights file"
    if {"archive_format", "serialized_exported_program.json"} & tails or any(
        tail.startswith(("models/", "data/weights/")) and "archive_version" in tails
        for tail in tails
    ):
        return "an exported program (.pt2), not a weights file"
    if all(name.endswith(".npy") for name in names):
        return "a numpy .npz archive, which is data rather than torch weights"
    if any(name.startswith(".data/") or "/.data/" in name for name in names):
        return "a torch.package archive, not a weights file"
    if any(Path(name).name in ("config.json", "model.safetensors") for name in names):
        return "a zipped model folder"
    return f"a zip archive without torch weights (it holds {names[0]!r}, ...)"


def _zip_hint(names: list[str], tails: set[str]) -> str:
    what = _name_zip(names, tails)
    if "zipped model folder" in what:
        return "unzip it and give the folder"
    if "numpy" in what:
        return "give the weights as the checkpoint, and the .npz with --data"
    return "give the model's state dict: " + RESAVE


def _check_entries(path: Path, size: int, entries: list[zipfile.ZipInfo]) -> None:
    """torch stores entries uncompressed; anything else is re-zipped or a zip bomb."""
    packed = next((e for e in entries if e.compress_type != zipfile.ZIP_STORED), None)
    if packed is not None:
        raise UnsafeFileError(
            f"{path} holds a compressed entry ({packed.filename!r}: {packed.compress_size:,} to "
            f"{packed.file_size:,} bytes); torch never writes these, so it is re-zipped or a "
            "zip bomb",
            hint="re-save it with torch.save",
        )
    names = [entry.filename.casefold() for entry in entries]
    if len(set(names)) != len(names):
        raise UnsafeFileError(f"{path} holds two entries of one name; its content is ambiguous")
    folders = {entry.filename.partition("/")[0] for entry in entries}
    odd = next((e for e in entries if not _is_plain_name(e.orig_filename)), None)
    if len(folders) > 1 or odd is not None:
        raise UnsafeFileError(
            f"{path} is no archive that torch wrote: its entries lie in {len(folders)} folders"
            + (f", one is called {odd.orig_filename!r}" if odd is not None else "")
        )
    if any(entry.flag_bits & 1 for entry in entries):
        raise NotWeightsError(f"{path} is an encrypted zip archive", hint="decrypt it first")
    if sum(entry.file_size for entry in entries) > size:
        raise UnsafeFileError(
            f"{path} claims more content than its {size:,} bytes: its entries overlap"
        )


def _is_plain_name(name: str) -> bool:
    """Names that all zip readers understand alike."""
    return min(map(ord, name), default=0) >= 32 and "\\" not in name and ".." not in name.split("/")


def _check_directory(path: Path, size: int) -> None:
    """The table of contents is read as a whole, into many times its size."""
    with path.open("rb") as file:
        file.seek(max(0, size - 66_000))
        tail = file.read()
    end, end64 = tail.rfind(b"PK\x05\x06"), tail.rfind(b"PK\x06\x06")
    claims = [int.from_bytes(tail[end + 12 : end + 16], "little")] if end >= 0 else []
    if end64 >= 0:
        claims = [c for c in claims if c != 0xFFFFFFFF]
        claims.append(int.from_bytes(tail[end64 + 40 : end64 + 48], "little"))
    if any(_MOST_DIRECTORY < claim <= size for claim in claims):
        raise UnsafeFileError(
            f"{path} is a zip archive with a table of contents of "
            f"{describe_size(max(claims))}, more than any model needs"
        )


def require_there(path: Path) -> None:
    """Refuse a path that leads nowhere.

    Raises:
        InputError: Nothing is there, or the name is none that a file can have.
    """
    try:
        there = path.exists()
    except OSError as error:
        raise InputError(f"{str(path)[:200]} cannot be opened ({error.strerror})") from error
    if not there:
        hub = f", or --online hf:{path} for a model of the Hub" if _HUB_LIKE(str(path)) else ""
        raise InputError(f"{path} does not exist", hint=f"check the path of the checkpoint{hub}")


def require_file(path: Path) -> None:
    """Refuse what is no regular file, saying which."""
    require_there(path)
    if not path.is_file():
        raise NotWeightsError(f"{path} is neither a regular file nor a folder")
