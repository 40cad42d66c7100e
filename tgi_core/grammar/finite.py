"""Removal of the parts of a schema that no finite value can match.

`{"$defs": {"a": {"$ref": "#/$defs/a"}}}` refers only to itself: an answer that enters `a` could never leave it. llguidance compiles
such a schema, and the request would fail in the middle of its answer, or run until its token limit. Parts that can be avoided become
`false`; if the whole schema is one, it is invalid.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from tgi_core.grammar.value import InvalidGrammar

Schema = Any
"""A subschema: an object or a boolean; anything else is left to llguidance."""

_NO_VALUE = "no finite value can match it: its references lead only back to themselves"
_LONGEST_REFERENCE = 1000


def without_endless(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema without the parts that no finite value can match; does not modify its argument. Raises InvalidGrammar if nothing
    is left."""
    finite = _finite_targets(schema)
    if all(finite.values()):
        return schema
    if not _is_finite(schema, finite):
        raise InvalidGrammar(_NO_VALUE)
    pruned: dict[str, Any] = _pruned(schema, finite)
    return pruned


def resolve(root: dict[str, Any], reference: str) -> Schema:
    """Return the subschema to which a JSON pointer such as `#/$defs/a` refers; True if there is none, or for other references."""
    if reference != "#" and not reference.startswith("#/"):
        return True
    found: Any = root
    for part in unquote(reference).split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and key in found:
            found = found[key]
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            return True
    return found


def _finite_targets(root: dict[str, Any]) -> dict[str, bool]:
    """Return for each reference whether a finite value matches its target: the least fixpoint, so a cycle alone does not count."""
    order = _callees_first(root)
    finite = dict.fromkeys(order, False)
    changed = True
    while changed:
        changed = False
        for reference in order:
            if not finite[reference] and _is_finite(resolve(root, reference), finite):
                finite[reference] = changed = True
    return finite


def _callees_first(root: dict[str, Any]) -> list[str]:
    """Return the references that can be reached from the root, each after those in its target where there is no cycle."""
    order: list[str] = []
    seen: set[str] = set()
    stack: list[tuple[str, Iterator[str]]] = [("", _references(root))]
    while stack:
        reference, rest = stack[-1]
        following = next((each for each in rest if each not in seen), None)
        if following is None:
            stack.pop()
            order.append(reference)
        else:
            seen.add(following)
            stack.append((following, _references(resolve(root, following))))
    return order[:-1]


def _references(node: Schema) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str) and len(node["$ref"]) <= _LONGEST_REFERENCE:
            yield node["$ref"]
        for child in _children(node):
            yield from _references(child)


def _children(node: dict[str, Any]) -> Iterator[Schema]:
    """Yield the subschemas that decide whether a finite value matches, or that `_pruned` replaces."""
    for key in ("properties", "patternProperties"):
        if isinstance(node.get(key), dict):
            yield from node[key].values()
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        if isinstance(node.get(key), list):
            yield from node[key]
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), list):
            yield from node[key]
        else:
            yield node.get(key)


def _is_finite(node: Schema, finite: dict[str, bool]) -> bool:
    """Return whether a finite value may match, given the same for references. True if in doubt."""
    if not isinstance(node, dict):
        return node is not False
    reference = node.get("$ref")
    if isinstance(reference, str) and not finite.get(reference, True):
        return False
    if isinstance(node.get("allOf"), list) and not all(_is_finite(each, finite) for each in node["allOf"]):
        return False
    for key in ("anyOf", "oneOf"):
        if isinstance(node.get(key), list) and not any(_is_finite(each, finite) for each in node[key]):
            return False
    return not (
        (node.get("type") == "object" and _needs_endless_property(node, finite))
        or (node.get("type") == "array" and _needs_endless_item(node, finite))
    )


def _needs_endless_property(node: dict[str, Any], finite: dict[str, bool]) -> bool:
    properties, required = node.get("properties"), node.get("required")
    if not isinstance(properties, dict) or not isinstance(required, list):
        return False
    return any(isinstance(name, str) and not _is_finite(properties.get(name, True), finite) for name in required)


def _needs_endless_item(node: dict[str, Any], finite: dict[str, bool]) -> bool:
    least, first = node.get("minItems", 0), node.get("prefixItems", [])
    if not isinstance(least, int) or not isinstance(first, list) or least < 1:
        return False
    if not all(_is_finite(each, finite) for each in first[:least]):
        return True
    return least > len(first) and not _is_finite(node.get("items", True), finite)


def _pruned(node: Schema, finite: dict[str, bool]) -> Schema:
    """Return a subschema with `false` for what no finite value matches."""
    if not _is_finite(node, finite):
        return False
    if not isinstance(node, dict):
        return node
    kept = dict(node)
    for key, value in node.items():
        if key in ("properties", "patternProperties", "$defs", "definitions") and isinstance(value, dict):
            kept[key] = {name: _pruned(child, finite) for name, child in value.items()}
        elif key in ("anyOf", "oneOf", "allOf", "prefixItems") and isinstance(value, list):
            kept[key] = [_pruned(child, finite) for child in value]
        elif key in ("items", "additionalProperties"):
            kept[key] = _pruned(value, finite)
    return kept
