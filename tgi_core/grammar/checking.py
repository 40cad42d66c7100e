"""The check of a complete response against its schema, for keywords that masks do not enforce."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import jsonschema_rs

from tgi_core.grammar.keywords.rewriting import normal
from tgi_core.grammar.value import InvalidGrammar

_LONGEST = 200


def violation(source: str, text: str) -> str:
    """Return how a response violates its schema, given as JSON text; "" if it is valid. May take long: run it in a worker. Formats are
    not checked here: masks enforce the known ones.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        return f"it is not JSON: {error}"
    try:
        found = next(iter(_validator(source).iter_errors(value)), None)
    except (ValueError, jsonschema_rs.ValidationError) as error:
        return str(error)[:_LONGEST]
    if found is None:
        return ""
    place = "/".join(map(str, found.instance_path))
    return f"`{_keyword(found.schema_path)}` does not hold at /{place}"[:_LONGEST]


def check_schema(source: str) -> None:
    """Check that responses can be checked against a schema. Raises InvalidGrammar."""
    try:
        _validator(source)
    except (ValueError, jsonschema_rs.ValidationError) as error:
        raise InvalidGrammar(str(error).partition("\n")[0][:_LONGEST]) from None


def _validator(source: str) -> Any:
    return jsonschema_rs.validator_for(normal(json.loads(source)), validate_formats=False, retriever=_refuse)


def _keyword(path: list[Any]) -> str:
    """Return the keyword at the end of a path in a schema."""
    return next((str(part) for part in reversed(path) if isinstance(part, str)), "schema")


def _refuse(address: str) -> NoReturn:
    raise ValueError(f"{address} is not fetched")
