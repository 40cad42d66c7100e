"""The negation of a schema, as a list of schemas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tgi_core.grammar.keywords.merging import NotSimple, merge
from tgi_core.grammar.keywords.values import (
    ALL_TYPES,
    ANNOTATIONS,
    Schema,
    properties_of,
    required_of,
    same,
    type_of,
    types_of,
    values_of,
)

_MOST = 16


def negations(schema: Schema, place: Schema, root: dict[str, Any]) -> list[dict[str, Any]]:
    """Return schemas that together match the values of `place` that do not match `schema`. `place` is a schema for the values that can
    occur. Raises NotSimple."""
    if not isinstance(schema, dict):
        return [] if schema is True else [{}]
    says = {key: value for key, value in schema.items() if key not in ANNOTATIONS}
    found: list[dict[str, Any]] = []
    if types_of(place, root) == {"object"} and says.get("type") == "object":
        del says["type"]
    if "properties" in says or "required" in says:
        if types_of(place, root) != {"object"}:
            raise NotSimple
        found += _objects(says.pop("properties", {}), required_of(says), place, root)
        says.pop("required", None)
    for key, value in says.items():
        found += _keyword(key, value, place, root)
    return found


def _keyword(key: str, value: Any, place: Schema, root: dict[str, Any]) -> list[dict[str, Any]]:
    if key in ("const", "enum") and (key == "const" or isinstance(value, list)):
        return _other_values([value] if key == "const" else value, place, root)
    if key == "type":
        return _other_types(value if isinstance(value, list) else [value], place, root)
    if key == "not" and isinstance(value, dict):
        return [value]
    if key == "allOf" and isinstance(value, list):
        return [each for schema in value for each in negations(schema, place, root)]
    if key == "anyOf" and isinstance(value, list):
        return _none_of([negations(schema, place, root) for schema in value])
    raise NotSimple


def _none_of(choices: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the intersection of unions. Raises NotSimple if it is large."""
    combined: list[dict[str, Any]] = [{}]
    for alternatives in choices:
        combined = [both for one in combined for each in alternatives if isinstance(both := merge(one, each), dict)]
        if len(combined) > _MOST:
            raise NotSimple
    return combined


def _objects(given: Any, required: list[str], place: Schema, root: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield objects that lack a required property, or that have a property with another value."""
    if not isinstance(given, dict):
        raise NotSimple
    listed = properties_of(place) if isinstance(place, dict) else {}
    for name in required:
        yield {"type": "object", "properties": {name: False}}
    for name, schema in given.items():
        for other in negations(schema, listed.get(name, True), root):
            yield {"type": "object", "properties": {name: other}, "required": [name]}


def _other_values(values: list[Any], place: Schema, root: dict[str, Any]) -> list[dict[str, Any]]:
    known = values_of(place, root)
    excluded = set(map(same, values))
    if known is not None:
        rest = [value for value in known if same(value) not in excluded]
        return [{"enum": rest}] if rest else []
    if types_of(place, root) & frozenset(map(type_of, values)):
        raise NotSimple
    return [{}]


def _other_types(excluded: list[Any], place: Schema, root: dict[str, Any]) -> list[dict[str, Any]]:
    possible = types_of(place, root)
    if "integer" in excluded and "number" not in excluded and "number" in possible:
        raise NotSimple
    rest = sorted((possible & ALL_TYPES) - set(map(str, excluded)))
    return [{"type": rest}] if rest else []
