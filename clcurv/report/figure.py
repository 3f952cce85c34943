"""A figure file: no display, no global figure state, whole or not at all."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from clcurv.errors import UsageError
from clcurv.runtime import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")


def write_figure(path: str | Path, draw: Callable[[], Figure]) -> None:
    """Draw with matplotlib's defaults and write the file.

    Args:
        path: Ends in .png, .svg or .pdf.
        draw: Makes the figure.

    Raises:
        UsageError: Another suffix, or a path that cannot be written.
        ResourceError: The disk is full.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise UsageError(
            f"cannot draw {str(path)!r}: the suffix must be one of {', '.join(SUFFIXES)}",
            hint="for example --plot figure.svg",
        )
    atomic_write(path, _render(draw, suffix[1:]))


def _render(draw: Callable[[], Figure], kind: str) -> bytes:
    import matplotlib as mpl

    buffer = io.BytesIO()
    # The user's own rc file must not run TeX on names from an untrusted checkpoint.
    # A salt of our own: element names in an svg are random otherwise.
    settings = {**mpl.rcParamsDefault, "text.usetex": False, "svg.hashsalt": "clcurv"}
    with mpl.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from")
        # No dates: the same report gives the same bytes.
        dated = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[kind]
        draw().savefig(buffer, format=kind, dpi=150, metadata=dated)
    return buffer.getvalue()
