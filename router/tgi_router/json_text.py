"""JSON in TGI's format: compact, unescaped UTF-8, 32-bit floats in shortest round-trip form, NaN and infinities as null."""

from __future__ import annotations

import json
from json.encoder import encode_basestring
from math import isfinite
from struct import Struct

_SINGLE = Struct("f")
_pack, _unpack = _SINGLE.pack, _SINGLE.unpack

quote = encode_basestring
"""Return a JSON string literal. CR and LF are escaped, so that no text can break a line of an event stream."""


def dumps(value: object) -> str:
    """Return compact JSON. Floats must have been passed through `shortest`."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def single(value: float) -> float:
    """Return the nearest 32-bit float. Raises OverflowError for values out of range."""
    nearest: float = _unpack(_pack(value))[0]
    return nearest


def shortest(value: float | None) -> float | None:
    """Return a double that prints as the shortest representation of a 32-bit float; None for NaN and infinities."""
    if value is None or not isfinite(value):
        return None
    [nearest] = _unpack(_pack(value))
    found = 0.0
    for form in ("%.8g", "%.7g", "%.6g"):  # most need 8 digits; %g drops trailing zeros, so 6 covers all shorter representations
        candidate = float(form % nearest)
        if _unpack(_pack(candidate))[0] != nearest:
            break
        found = candidate
    return found or float(f"{nearest:.9g}")  # 9 digits always suffice


def number(value: float | None) -> str:
    """Return the JSON text of a 32-bit float."""
    short = shortest(value)
    return "null" if short is None else repr(short)
