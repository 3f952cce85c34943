"""Runs the program in a process of its own that may not take more memory or time than said.

Loading the libraries takes most of a small run, and most of its memory. So a server loads them
once, and every run is a fork of it; what a run takes is what it adds.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import resource
import sys
from contextlib import redirect_stderr, redirect_stdout
from multiprocessing.connection import Connection
from pathlib import Path

from program import ROOT, Ran

MIB = 2**20
_PRELOADED = ["limited", "clcurv.cli.app", "clcurv.pipeline.kappa_run", "timm", "torchvision"]
_STATUS = Path("/proc/self/status")


def _held(field: str) -> int:
    """Bytes of this process, by a field of its status."""
    for line in _STATUS.read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return 0


def _run(words: list[str], folder: str, mib: int, back: Connection) -> None:
    import torch

    from clcurv.cli.app import run

    os.chdir(folder)
    torch.set_num_threads(1)
    before = _held("VmRSS")
    room = _held("VmSize") + mib * MIB
    resource.setrlimit(resource.RLIMIT_AS, (room, room))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run(words)
    back.send((code, out.getvalue(), err.getvalue(), max(0, _held("VmHWM") - before)))
    os._exit(0)  # taking the libraries down again would take longer than the run


def available() -> bool:
    """Whether this system can fork and says what a process takes."""
    return sys.platform == "linux" and _STATUS.exists()


class Server:
    """Loads clcurv and its libraries once; a context manager."""

    def __init__(self) -> None:
        # The server looks for modules where a new interpreter would.
        here = Path(__file__).parent
        known = os.environ.get("PYTHONPATH", "")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(here), str(ROOT), known)))
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(_PRELOADED)

    def __call__(
        self, *words: object, folder: Path, mib: int = 512, seconds: float = 60
    ) -> tuple[Ran, int]:
        """Runs ``clcurv WORDS`` in a folder.

        Args:
            words: Of the command line.
            folder: Where it runs.
            mib: Memory that it may add to what the libraries take.
            seconds: Time that it may take.

        Returns:
            What it left, and the bytes of memory that it added at its peak. The code is negative
            when a signal ended it, as for `subprocess`.
        """
        ours, theirs = self._context.Pipe(duplex=False)
        process = self._context.Process(
            target=_run, args=([*map(str, words)], str(folder), mib, theirs)
        )
        process.start()
        theirs.close()
        try:
            if not ours.poll(seconds):
                raise TimeoutError(f"{words} took more than {seconds} s")
            code, out, err, added = ours.recv()
        except EOFError:
            process.join(seconds)
            return Ran(process.exitcode or -1, "", "it ended without a word"), 0
        finally:
            process.join(1)
            if process.is_alive():
                process.kill()
            ours.close()
        return Ran(code, out, err), added
