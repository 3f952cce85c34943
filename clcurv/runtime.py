"""What every command needs from the machine it runs on."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from pathlib import Path

from clcurv.errors import ResourceError, UsageError

_PATH_FAULTS = {
    errno.ENOENT: "its folder does not exist",
    errno.ENOTDIR: "its folder is a file",
    errno.EISDIR: "it is a folder",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.EROFS: "the file system is read-only",
    errno.ENAMETOOLONG: "the name is too long",
}


def atomic_write(path: str | Path, data: bytes) -> None:
    """Write a file whole or not at all.

    The bytes go to a temporary file in the same folder, are flushed to the disk and only
    then renamed over `path`, so readers see the old file or the new one. An existing file's
    permissions are kept. Special files (``/dev/stdout``, a pipe) are written directly.

    Args:
        path: Where to; a symbolic link is followed.
        data: The whole content.

    Raises:
        UsageError: `path` cannot be a file (no such folder, a folder, no permission).
        ResourceError: The disk is full or failing.
    """
    shown = str(path)
    try:
        given = Path(path)  # what a link in /proc/self/fd to a pipe resolves to is no path
        if given.exists() and not given.is_file() and not given.is_dir():
            given.write_bytes(data)
            return
        _replace(Path(os.path.realpath(path)), data)
    except ValueError as error:  # a NUL byte in the name
        raise UsageError(f"cannot write {shown!r}: {error}") from error
    except OSError as error:
        if error.errno in _PATH_FAULTS:
            raise UsageError(
                f"cannot write {shown!r}: {_PATH_FAULTS[error.errno]}",
                hint="name a file in an existing folder you may write to",
            ) from error
        raise ResourceError(
            f"cannot write {shown!r}: {error.strerror or error}",
            hint="free some disk space or write elsewhere",
        ) from error


def _replace(target: Path, data: bytes) -> None:
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a directory")
    try:
        mode = target.stat().st_mode & 0o777
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        mode = 0o666 & ~mask
    handle, name = tempfile.mkstemp(prefix=".clcurv-", suffix=".tmp", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, mode)
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def free_bytes(device: str = "cpu") -> int:
    """Memory that can still be had: of the GPU named, or of this machine."""
    if device.startswith("cuda"):
        import torch

        return int(torch.cuda.mem_get_info(torch.device(device))[0])
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
