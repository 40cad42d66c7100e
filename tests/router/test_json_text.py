"""JSON as TGI prints it."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tgi_router.json_text import number, quote, shortest, single


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_floats_round_trip_in_their_shortest_form(value: float) -> None:
    """The printed text gives back the 32-bit float, and no text of fewer digits does."""
    text = number(value)
    assert single(float(text)) == value
    digits = len(f"{shortest(value):e}".split("e")[0].strip("-").replace(".", "").rstrip("0")) or 1
    assert digits <= 9
    if 1 < digits <= 9:
        assert single(float(f"{value:.{digits - 2}e}")) != value or digits <= 6


@pytest.mark.parametrize(
    ("value", "text"), [(-1.5351562, "-1.5351562"), (0.1, "0.1"), (0.0, "0.0"), (math.nan, "null"), (-math.inf, "null")]
)
def test_known_floats(value: float, text: str) -> None:
    """Examples from TGI's documentation, and what JSON cannot hold."""
    assert number(value) == text


@given(st.text())
def test_strings_stay_on_one_line(text: str) -> None:
    """A literal gives back its string and holds no line break of an event stream."""
    literal = quote(text)
    assert json.loads(literal) == text
    assert not {"\r", "\n"} & set(literal)
