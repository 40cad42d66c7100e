"""Parsing and serialization of schemas, with limits."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from tgi_core.grammar.limits import check_document, check_text
from tgi_core.grammar.value import InvalidGrammar


def read_schema(text: str) -> dict[str, Any]:
    """Parse a schema from JSON text. Raises InvalidGrammar."""
    check_text(text)
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise InvalidGrammar("it is nested too deeply") from None
    except ValueError as error:
        raise InvalidGrammar(str(error)) from None
    if not isinstance(value, dict):
        raise InvalidGrammar("a schema must be a JSON object")
    check_document(value)
    return value


def write_schema(schema: dict[str, Any]) -> str:
    """Serialize a schema to JSON in its own key order, which generated objects follow. Raises InvalidGrammar."""
    check_document(schema)
    try:
        text = json.dumps(schema, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidGrammar(str(error)) from None
    check_text(text)
    return text


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
