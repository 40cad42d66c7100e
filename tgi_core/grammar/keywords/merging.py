"""The intersection of two schemas as one schema, where it is simple."""

from __future__ import annotations

from typing import Any

from tgi_core.grammar.keywords.values import ANNOTATIONS, Schema, properties_of, required_of, same

_LARGER = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_SMALLER = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_NARROWED = ("enum", "const", "type")


class NotSimple(Exception):
    """The intersection has no simple form."""


def merge(first: Schema, second: Schema) -> Schema:
    """Return a schema for the values that match both. Raises NotSimple. `False` if it is clear that there are none."""
    if first is False or second is False:
        return False
    if not isinstance(first, dict) or not isinstance(second, dict):
        return second if first is True else first
    if ("$ref" in first and _says_something(second)) or ("$ref" in second and _says_something(first)):
        if first.get("$ref") == second.get("$ref") and (_only_refers(first) or _only_refers(second)):
            return second if _only_refers(first) else first
        raise NotSimple
    merged = dict(first)
    for key, value in second.items():
        if key in ("properties", "additionalProperties", "required", *_NARROWED) or (key in ANNOTATIONS and key in first):
            continue
        merged[key] = _both(key, first[key], value) if key in first else value
    _merge_objects(merged, first, second)
    return _narrow(merged, first, second)


def _says_something(schema: dict[str, Any]) -> bool:
    return any(key not in ANNOTATIONS for key in schema)


def _only_refers(schema: dict[str, Any]) -> bool:
    return all(key == "$ref" or key in ANNOTATIONS for key in schema)


def _both(key: str, first: Any, second: Any) -> Any:
    if same(first) == same(second):
        return first
    numbers = isinstance(first, int | float) and isinstance(second, int | float)
    if key in _LARGER and numbers:
        return max(first, second)
    if key in _SMALLER and numbers:
        return min(first, second)
    if key in ("items", "contains") and not isinstance(first, list) and not isinstance(second, list):
        return merge(first, second) if key == "items" else _fail()
    if key in ("$defs", "definitions"):
        return {**second, **first}
    return _fail()


def _fail() -> Any:
    raise NotSimple


def _merge_objects(merged: dict[str, Any], first: dict[str, Any], second: dict[str, Any]) -> None:
    pairs = ((first, second), (second, first))
    names = {**properties_of(first), **properties_of(second)}
    if names:
        merged["properties"] = {name: merge(_property(first, name), _property(second, name)) for name in names}
    required = list(dict.fromkeys([*required_of(first), *required_of(second)]))
    if required:
        merged["required"] = required
    if any(one.get("patternProperties") and other.get("additionalProperties", True) not in (True, {}) for one, other in pairs):
        raise NotSimple
    others = [each["additionalProperties"] for each in (first, second) if "additionalProperties" in each]
    if others:
        merged["additionalProperties"] = merge(others[0], others[-1])


def _property(schema: dict[str, Any], name: str) -> Schema:
    """Return the schema of a property. Raises NotSimple if patterns may apply to it."""
    listed = properties_of(schema)
    if name in listed:
        return listed[name]
    if schema.get("patternProperties"):
        raise NotSimple
    return schema.get("additionalProperties", True)


def _narrow(merged: dict[str, Any], first: dict[str, Any], second: dict[str, Any]) -> Schema:
    """Intersect types and listed values."""
    types = [each["type"] for each in (first, second) if "type" in each]
    if types:
        merged["type"] = common = _common_types(types[0], types[-1])
        if not common:
            return False
    lists = [values for each in (first, second) if (values := _listed(each)) is not None]
    if len(lists) == 2:
        allowed = set(map(same, lists[1]))
        kept = [value for value in lists[0] if same(value) in allowed]
        merged.pop("const", None)
        if not kept:
            return False
        merged["enum"] = kept
    elif lists:
        merged.update({key: each[key] for each in (first, second) for key in ("enum", "const") if key in each})
    return merged


def _listed(schema: dict[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    return schema["enum"] if isinstance(schema.get("enum"), list) else None


def _common_types(first: Any, second: Any) -> Any:
    if first == second:
        return first
    ones, others = (each if isinstance(each, list) else [each] for each in (first, second))
    common = [each for each in ones if each in others or (each == "integer" and "number" in others)]
    common += [each for each in others if each == "integer" and "number" in ones and each not in common]
    return common[0] if len(common) == 1 else common
