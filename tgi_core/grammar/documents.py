"""Parsing and serialization of schemas, with limits."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from tgi_core.grammar.limits import MAX_BYTES, check_document, check_text
from tgi_core.grammar.value import InvalidGrammar


def read_schema(text: str, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """Parse a schema from JSON text. Raises InvalidGrammar."""
    check_text(text, max_bytes)
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise InvalidGrammar("it is nested too deeply") from None
    except ValueError as error:
        raise InvalidGrammar(str(error)) from None
    if not isinstance(value, dict):
        raise InvalidGrammar("a schema must be a JSON object")
    check_document(value, max_bytes)
    return value


def write_schema(schema: dict[str, Any], max_bytes: int = MAX_BYTES) -> str:
    """Serialize a schema to JSON in its own key order, which generated objects follow. Raises InvalidGrammar."""
    check_document(schema, max_bytes)
    try:
        text = json.dumps(schema, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidGrammar(str(error)) from None
    check_text(text, max_bytes)
    return text


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
