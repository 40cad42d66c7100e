"""Preprocessing of a client's schema before compilation.

As in TGI, objects are closed unless the schema states otherwise: answers have only the listed properties, because models that may
add properties tend to do so and rarely return to the schema. Closing only narrows what is valid. If a schema composes objects from
parts (`allOf`, or `properties` next to `anyOf` or `$ref`), they stay open, because closed parts would exclude each other.

A schema with `properties` but no `type` means an object. Strictly it would also allow `0`, but TGI's clients omit the type.

Keywords that do not affect validity but that llguidance rejects are removed: unknown formats, `uniqueItems: false`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tgi_core.grammar.keywords.strings import FORMATS

_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties")
_JOINS = ("anyOf", "oneOf", "$ref")
_OPENERS = ("additionalProperties", "unevaluatedProperties", "patternProperties", "minProperties")
_TELLING = ("type", "enum", "const", "allOf", *_JOINS)
_OPTIONS = "x-guidance"
"""Key from which llguidance reads options; removed, since clients must not set them."""


def prepare(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema to compile; does not modify its argument. Call `limits.check_document` first, since this recurses."""
    closing = not any(_joined(node) for node in _nodes(schema))
    prepared: dict[str, Any] = _prepare({key: value for key, value in schema.items() if key != _OPTIONS}, closing)
    return prepared


def _joined(node: dict[str, Any]) -> bool:
    return "allOf" in node or ("properties" in node and any(key in node for key in _JOINS))


def _nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield every subschema that is an object."""
    if isinstance(schema, dict):
        yield schema
        for child in _subschemas(schema):
            yield from _nodes(child)


def _subschemas(node: dict[str, Any]) -> Iterator[Any]:
    for key in _MAPS:
        if isinstance(node.get(key), dict):
            yield from node[key].values()
    for key in _LISTS:
        if isinstance(node.get(key), list):
            yield from node[key]
    for key in _SINGLE:
        yield node.get(key)


def _prepare(schema: Any, closing: bool) -> Any:
    if not isinstance(schema, dict):
        return schema
    node = {key: value for key, value in schema.items() if not _says_nothing(key, value)}
    for key, value in node.items():
        if key in _MAPS and isinstance(value, dict):
            node[key] = {name: _prepare(child, closing) for name, child in value.items()}
        elif key in _LISTS and isinstance(value, list):
            node[key] = [_prepare(child, closing) for child in value]
        elif key in _SINGLE:
            node[key] = _prepare(value, closing)
    if closing and isinstance(node.get("properties"), dict) and not any(key in node for key in _TELLING):
        node["type"] = "object"
    if closing and _lists_all_it_has(node):
        node["additionalProperties"] = False
    return node


def _says_nothing(key: str, value: object) -> bool:
    return (key == "format" and isinstance(value, str) and value not in FORMATS) or (key == "uniqueItems" and value is False)


def _lists_all_it_has(node: dict[str, Any]) -> bool:
    properties, required = node.get("properties"), node.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list) or any(key in node for key in _OPENERS):
        return False
    return all(isinstance(name, str) and name in properties for name in required)
