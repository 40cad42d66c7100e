"""What is wrong with the types of a body, in words of JSON, and without the value, which is the client's data."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

_EXPECTED = {
    "string_type": "a string",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "bool_type": "a boolean",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}
"""Types of JSON by pydantic's types of errors."""
_BOUNDS = {
    "greater_than_equal": (">=", "ge"),
    "less_than_equal": ("<=", "le"),
    "greater_than": (">", "gt"),
    "less_than": ("<", "lt"),
}
_CONSIDERED = 20
"""Maximum number of errors that are looked at: a value that may have several types has errors for each."""


def reason(error: ValidationError, value: Any) -> str:
    """Describe the first error with its path in `value`. If a value may have several types, the one counts that fits best."""
    errors = error.errors(include_url=False, include_input=False)[:_CONSIDERED]
    start = errors[0]["loc"][:1]
    found = [(*_path(each, value), each) for each in errors if each["loc"][:1] == start]
    deepest = max(depth for _, depth, _ in found)
    best = [(path, each) for path, depth, each in found if depth == deepest]
    path = best[0][0]
    where = ".".join(map(str, path))
    text = _text([each for other, each in best if other == path])
    return f"{where}: {text}" if where else text


def _path(error: ErrorDetails, value: Any) -> tuple[tuple[int | str, ...], int]:
    """Return the path of an error in the value, without the names of types in it, and how far the value was right."""
    path, here = [], value
    for part in error["loc"]:
        inside = (isinstance(here, dict) and part in here) or (
            isinstance(here, list) and isinstance(part, int) and part < len(here)
        )
        if inside:
            path.append(part)
            here = here[part]
    if error["type"] == "literal_error" and path[-1:] == ["type"]:  # the value is meant to be of another type
        return tuple(path), 2 * len(path) - 2
    return tuple(path), 2 * len(path) + (error["type"] == "missing")


def _text(errors: list[ErrorDetails]) -> str:
    """Describe errors at one place."""
    first = errors[0]
    kind, context = first["type"], first.get("ctx", {})
    if kind == "missing":
        return f"missing field `{first['loc'][-1]}`"
    if kind in _EXPECTED:
        expected = dict.fromkeys(_EXPECTED[each["type"]] for each in errors if each["type"] in _EXPECTED)
        return f"invalid type, expected {' or '.join(expected)}"
    if kind in _BOUNDS:
        sign, bound = _BOUNDS[kind]
        return f"invalid value, expected a number {sign} {context[bound]}"
    if kind == "literal_error":
        return f"invalid value, expected {context['expected']}"
    return first["msg"].removeprefix("Value error, ")
