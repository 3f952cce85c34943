from __future__ import annotations

import pytest

from clcurv.report.text import count, interval, number, printable, with_error


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (12.3456, 0.5678, "12.35 ± 0.57"),
        (12.3456, 56.78, "12 ± 57"),
        (1234.5, 0.0996, "1234.50 ± 0.10"),
        (1.5e-7, 2.3e-8, "(1.50 ± 0.23)e-07"),
        (2.5e8, 1e6, "(2.500 ± 0.010)e+08"),
        (3.14159, None, "3.14"),
        (3.14159, 0.0, "3.14"),
        (None, 1.0, "–"),
        (1.0, 1e-12, "1.00000 ± 0.00000"),
        (-2.0, 0.25, "-2.00 ± 0.25"),
    ],
)
def test_rounded_by_the_error(value, error, text):
    assert with_error(value, error) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.00"), (1.0, "1.00"), (0.9996, "1.00"), (123.4, "123"), (99999.0, "99999"),
        (1e5, "1.00e+05"), (4.2e-4, "4.20e-04"), (-0.0123, "-0.0123"), (None, "–"),
    ],
)  # fmt: skip
def test_number(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (999, "999"), (1000, "1.00k"), (11_689_512, "11.7M"), (3 * 10**9, "3.00G")],
)  # fmt: skip
def test_count(value, text):
    assert count(value) == text


def test_interval():
    assert interval(35.4, 28.0, 44.1) == "35.4 (95 % 28.0 to 44.1)"
    assert interval(35.4, 28.0, None) == "35.4 (95 % 28.0 to ∞)"
    assert interval(35.4, None, None) == "35.4"
    assert interval(None, None, None) == "–"


def test_printable_spells_out_what_acts():
    assert printable("a\x1b[31mb\n\x9b\u202e\u200b\ud800") == (
        "a\\x1b[31mb\\x0a\\x9b\\u202e\\u200b\\ud800"
    )
    assert printable("κ_é漢") == "κ_é漢"
    assert printable("abcdefghij", limit=7) == "abc…hij"
    assert len(printable("x" * 100, limit=20)) == 20
