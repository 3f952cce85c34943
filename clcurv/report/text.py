"""Names and numbers as people should see them, shared by all renderings."""

from __future__ import annotations

import math
import unicodedata

# Control, format (bidi overrides, zero widths), surrogate, private, line and paragraph ends.
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def printable(text: str, *, limit: int | None = None) -> str:
    r"""The text on one line with nothing that acts: ESC becomes ``\x1b``.

    Args:
        text: Any string, also one from a hostile file.
        limit: Longest result; the middle is replaced by an ellipsis.
    """
    safe = "".join(_spell(c) if unicodedata.category(c) in _HIDDEN else c for c in text)
    if limit is None or len(safe) <= limit:
        return safe
    tail = (limit - 1) // 2
    return f"{safe[: limit - 1 - tail]}…{safe[len(safe) - tail :]}"


def _spell(char: str) -> str:
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def number(value: float | None) -> str:
    """Three significant digits; a dash for nothing."""
    if value is None:
        return "–"
    if value and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.2e}"
    return f"{value:.{_decimals(value, 3)}f}"


def count(value: int) -> str:
    """``1.18M`` for 1180000; whole below a thousand."""
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if value >= size:
            scaled = value / size
            return f"{scaled:.{_decimals(scaled, 3)}f}{unit}"
    return str(value)


def percent(value: float) -> str:
    """``59.2 %`` for 0.592."""
    return f"{100 * value:.1f} %"


def with_error(value: float | None, error: float | None) -> str:
    """``12.34 ± 0.56``: both to the second significant digit of the error."""
    if value is None or not error:
        return number(value)
    magnitude = max(abs(value), error)
    if 1e-3 <= magnitude < 1e5:
        digits = min(_decimals(error, 2), max(_decimals(magnitude, 6), 0))
        return f"{value:.{digits}f} ± {error:.{digits}f}"
    exponent = math.floor(math.log10(magnitude))
    scale = 10.0**exponent
    digits = min(_decimals(error / scale, 2), 5)
    return f"({value / scale:.{digits}f} ± {error / scale:.{digits}f})e{exponent:+03d}"


def interval(value: float | None, low: float | None, high: float | None) -> str:
    """``35.4 (95 % 28.1 to 44.0)``; an upper end that is missing beside a lower one is ∞."""
    if value is None:
        return "–"
    if low is None:
        return number(value)
    upper = "∞" if high is None else number(high)
    return f"{number(value)} (95 % {number(low)} to {upper})"


def _decimals(value: float, significant: int) -> int:
    """Decimals that show `significant` digits of the value."""
    if not value:
        return significant - 1
    # Round first: 0.0996 to two digits is 0.10, which needs one decimal less than 0.099.
    exponent = int(f"{abs(value):.{significant - 1}e}".split("e")[1])
    return max(significant - 1 - exponent, 0)
