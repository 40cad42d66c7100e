"""A client's schema as it is compiled.

Objects are closed where the schema says nothing else, as TGI does: the answer has the listed properties and no others, since a model
that may invent properties does, and rarely finds back. Closing only ever narrows what is valid. A schema whose objects are put
together from parts (`allOf`, or properties beside `anyOf` or `$ref`) keeps them open: closed parts would exclude each other.

A schema that lists properties and no type means an object: read by the letter it would allow `0`, and TGI's clients leave the type out.

What says nothing about validity is left out where llguidance would refuse it: formats it does not know, `uniqueItems: false`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties")
_JOINS = ("anyOf", "oneOf", "$ref")
_OPENERS = ("additionalProperties", "unevaluatedProperties", "patternProperties", "minProperties")
_FORMATS = frozenset(("date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"))
_TELLING = ("type", "enum", "const", "allOf", *_JOINS)
_OPTIONS = "x-guidance"
"""llguidance takes options from this key; clients have no say in them."""


def prepare(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema to compile; the argument is left as it was. `limits.check_document` comes first: this recurses."""
    closing = not any(_joined(node) for node in _nodes(schema))
    prepared: dict[str, Any] = _prepare({key: value for key, value in schema.items() if key != _OPTIONS}, closing)
    return prepared


def _joined(node: dict[str, Any]) -> bool:
    return "allOf" in node or ("properties" in node and any(key in node for key in _JOINS))


def _nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """Every subschema that is an object."""
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
    return (key == "format" and isinstance(value, str) and value not in _FORMATS) or (key == "uniqueItems" and value is False)


def _lists_all_it_has(node: dict[str, Any]) -> bool:
    properties, required = node.get("properties"), node.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list) or any(key in node for key in _OPENERS):
        return False
    return all(isinstance(name, str) and name in properties for name in required)
