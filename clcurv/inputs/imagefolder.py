"""Image folders: one folder per class, perhaps below one folder per split."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from clcurv.errors import DataError
from clcurv.inputs.source import FORMATS, IMAGE_SUFFIXES, SPLITS, Source


def has_metadata(path: Path) -> bool:
    """Whether a table beside the images names them (Hugging Face's imagefolder layout)."""
    return any((path / f"metadata.{suffix}").is_file() for suffix in ("csv", "jsonl", "parquet"))


def class_root_exists(path: Path) -> bool:
    """Whether some folder below `path` holds images."""
    return any(_holds_image(folder) for folder in _subfolders(path))


def read_image_folder(path: Path, *, split: str | None) -> Source:
    """List ``root/class/**/image`` or ``root/split/class/**/image``, sorted by name.

    Raises:
        DataError: No such split, or a single folder that is no class.
    """
    root, notes = _choose_split(path, split)
    folders = _subfolders(root)
    rows: list[tuple[str, str]] = []
    ignored = 0
    for folder in folders:
        images, others = _images_below(folder)
        ignored += others
        rows += [(image, folder.name) for image in images]
    if not rows:
        raise DataError(f"{root}: no class folder with images in it", hint=FORMATS)
    if len(folders) == 1 and _subfolders(folders[0]) and not _own_images(folders[0]):
        raise DataError(
            f"{root}: its only folder {folders[0].name!r} holds folders itself",
            hint=f"if those are the classes, give --data {folders[0]}",
        )
    empty = len(folders) - len({label for _, label in rows})
    if empty:
        notes += (f"{empty} class folders hold no images",)
    if ignored:
        notes += (f"{ignored} files in the class folders are not images by name: ignored",)
    return Source(
        format="imagefolder",
        kind="image",
        length=len(rows),
        read=lambda row: root / rows[row][0],
        name=lambda row: str(root / rows[row][0]),
        labels=[label for _, label in rows],
        class_names=tuple(folder.name for folder in folders),
        notes=notes,
    )


def _choose_split(path: Path, split: str | None) -> tuple[Path, tuple[str, ...]]:
    """The folder that holds the classes, when `path` may hold one folder per split."""
    found = {
        name: folder
        for folder in _subfolders(path)
        for name, spellings in SPLITS.items()
        if folder.name.lower() in spellings and any(map(_holds_image, _subfolders(folder)))
    }
    if split is None:
        if not found:
            return path, ()
        name = next(name for name in SPLITS if name in found)
        others = sorted(folder.name for key, folder in found.items() if key != name)
        more = f" (there are also {', '.join(others)})" if others else ""
        return found[name], (f"split {found[name].name!r} taken{more}",)
    for name, folder in found.items():
        if split.lower() in (folder.name.lower(), *SPLITS[name]):
            return folder, (f"split {folder.name!r} taken",)
    named = path / split
    if Path(split).name == split and named.is_dir():
        return named, (f"split {split!r} taken",)
    there = ", ".join(folder.name for folder in found.values()) or "none"
    raise DataError(f"{path}: no split {split!r} (there are: {there})", hint="leave --split out")


def _subfolders(path: Path) -> list[Path]:
    try:
        inside = [p for p in path.iterdir() if p.is_dir() and not p.name.startswith((".", "__"))]
    except OSError as error:
        raise DataError(f"{path}: cannot be listed ({error.strerror})") from error
    # A link to the folder itself, or above it, would make a class of all images once more.
    own = Path(os.path.realpath(path))
    back = {own, *own.parents}
    inside = [p for p in inside if not (p.is_symlink() and Path(os.path.realpath(p)) in back)]
    return sorted(inside, key=lambda p: p.name)


def _is_image(name: str) -> bool:
    return Path(name).suffix.lower() in IMAGE_SUFFIXES


def _own_images(folder: Path) -> bool:
    return any(_is_image(p.name) for p in folder.iterdir() if p.is_file())


def _walk(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """`os.walk` through links (class folders often are links), each real folder once."""
    seen: set[str] = set()
    for directory, subfolders, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(directory)
        if real in seen:
            subfolders.clear()
            continue
        seen.add(real)
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        yield directory, [name for name in files if not name.startswith(".")]


def _holds_image(folder: Path) -> bool:
    return any(_is_image(name) for _, files in _walk(folder) for name in files)


def _images_below(folder: Path) -> tuple[list[str], int]:
    """Images as paths relative to the folder's parent, and how many other files there are."""
    images: list[str] = []
    others = 0
    for directory, files in _walk(folder):
        inside = Path(directory).relative_to(folder.parent)
        for name in files:
            if _is_image(name):
                images.append((inside / name).as_posix())
            else:
                others += 1
    return sorted(images), others
