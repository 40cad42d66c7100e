"""JSON values as schemas compare them, and the values and types that a subschema can have."""

from __future__ import annotations

from typing import Any

from tgi_core.grammar.finite import resolve

Schema = Any
"""A subschema: an object or a boolean."""
Types = frozenset[str]

ALL_TYPES: Types = frozenset(("null", "boolean", "object", "array", "number", "string"))
"""All types; integers count as numbers."""
ANNOTATIONS = frozenset(
    ("title", "description", "default", "examples", "$comment", "deprecated", "readOnly", "writeOnly", "$schema", "$id", "id")
)
"""Keywords that do not affect validity."""
_DEPTH = 5
"""Maximum number of references and alternatives that are followed: the work may grow with each by the number of alternatives."""


def same(value: Any) -> Any:
    """Return a hashable form of a value, equal for values that JSON schema considers equal: 1 and 1.0, but not 1 and true."""
    if isinstance(value, dict):
        return ("object", frozenset((key, same(each)) for key, each in value.items()))
    if isinstance(value, list):
        return ("array", tuple(map(same, value)))
    return (type_of(value), value)


def type_of(value: Any) -> str:
    """Return the type of a value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object" if isinstance(value, dict) else "number"


def values_of(schema: Schema, root: dict[str, Any], depth: int = 0) -> list[Any] | None:
    """Return all values that can match, if the schema lists them; else None. There may be some that do not match."""
    if schema is False:
        return []
    if not isinstance(schema, dict) or depth > _DEPTH:
        return None
    if "const" in schema:
        return [schema["const"]]
    if isinstance(schema.get("enum"), list):
        return list(schema["enum"])
    if schema.get("type") == "boolean":
        return [False, True]
    if schema.get("type") == "null":
        return [None]
    if isinstance(schema.get("$ref"), str):
        return values_of(resolve(root, schema["$ref"]), root, depth + 1)
    return _values_of_any(schema, root, depth)


def exact_values(schema: Schema, root: dict[str, Any]) -> list[Any] | None:
    """Return exactly the values that match, each once, if the schema only lists them; else None."""
    for _ in range(_DEPTH):
        if not (isinstance(schema, dict) and isinstance(schema.get("$ref"), str) and set(schema) <= {"$ref", *ANNOTATIONS}):
            break
        schema = resolve(root, schema["$ref"])
    if not isinstance(schema, dict) or set(schema) - {"enum", "const", "type", *ANNOTATIONS} or {"enum", "const"} <= set(schema):
        return None
    listed = values_of(schema, root)
    if listed is None:
        return None
    types, whole = types_of(schema, root), "integer" in str(schema.get("type")) and "number" not in str(schema.get("type"))
    kept = [each for each in listed if type_of(each) in types and not (whole and isinstance(each, float))]
    return list({same(each): each for each in kept}.values())


def _values_of_any(schema: dict[str, Any], root: dict[str, Any], depth: int) -> list[Any] | None:
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            found = [values_of(each, root, depth + 1) for each in schema[key]]
            if all(each is not None for each in found):
                return [value for each in found if each is not None for value in each]
    return None


def types_of(schema: Schema, root: dict[str, Any], depth: int = 0) -> Types:
    """Return the types that can match. As in `preparing`, `properties` without a type mean an object."""
    if schema is False:
        return frozenset()
    if not isinstance(schema, dict) or depth > _DEPTH:
        return ALL_TYPES
    found = ALL_TYPES
    if "type" in schema:
        given = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        found = frozenset("number" if each == "integer" else str(each) for each in given)
    listed = values_of({key: schema[key] for key in ("const", "enum") if key in schema}, root)
    if listed is not None:
        found &= frozenset(map(type_of, listed))
    if isinstance(schema.get("$ref"), str):
        found &= types_of(resolve(root, schema["$ref"]), root, depth + 1)
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            found &= frozenset().union(*(types_of(each, root, depth + 1) for each in schema[key]))
    if found == ALL_TYPES and isinstance(schema.get("properties"), dict):
        return frozenset(("object",))
    return found


def required_of(schema: dict[str, Any]) -> list[str]:
    """Return the names that a schema requires."""
    given = schema.get("required")
    return [name for name in given if isinstance(name, str)] if isinstance(given, list) else []


def properties_of(schema: dict[str, Any]) -> dict[str, Schema]:
    """Return the properties that a schema lists."""
    given = schema.get("properties")
    return given if isinstance(given, dict) else {}


def size_of(schema: Any, limit: int) -> int:
    """Return the number of objects and arrays, counted up to `limit`."""
    count, pending = 0, [schema]
    while pending and count <= limit:
        value = pending.pop()
        if isinstance(value, dict | list):
            count += 1
            pending += value.values() if isinstance(value, dict) else value
    return count
