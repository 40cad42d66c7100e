"""JSON as TGI prints it: compact, UTF-8 left as it is, 32-bit floats in shortest round-trip form, NaN and infinities null."""

from __future__ import annotations

import json
from json.encoder import encode_basestring
from math import isfinite
from struct import Struct

_SINGLE = Struct("f")
_pack, _unpack = _SINGLE.pack, _SINGLE.unpack

quote = encode_basestring
"""A JSON string literal. It escapes CR and LF, so that no text can break a line of an event stream."""


def dumps(value: object) -> str:
    """Compact JSON. Floats must have gone through `shortest`."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def single(value: float) -> float:
    """The nearest 32-bit float. Raises OverflowError beyond their range."""
    nearest: float = _unpack(_pack(value))[0]
    return nearest


def shortest(value: float | None) -> float | None:
    """A double that prints as the shortest text of a 32-bit float; None for what JSON cannot hold."""
    if value is None or not isfinite(value):
        return None
    [nearest] = _unpack(_pack(value))
    found = 0.0
    for form in ("%.8g", "%.7g", "%.6g"):  # most need 8 digits; %g drops trailing zeros, so that 6 covers all shorter texts
        candidate = float(form % nearest)
        if _unpack(_pack(candidate))[0] != nearest:
            break
        found = candidate
    return found or float(f"{nearest:.9g}")  # 9 digits always suffice


def number(value: float | None) -> str:
    """The JSON text of a 32-bit float."""
    short = shortest(value)
    return "null" if short is None else repr(short)
