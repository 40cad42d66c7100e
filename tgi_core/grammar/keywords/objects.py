"""`propertyNames`, overlapping `patternProperties`, the number of properties, and `unevaluatedProperties`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from tgi_core.grammar.finite import resolve
from tgi_core.grammar.keywords.notes import Notes
from tgi_core.grammar.keywords.strings import compiles
from tgi_core.grammar.keywords.unevaluated import rewrite_unevaluated
from tgi_core.grammar.keywords.values import ANNOTATIONS, Schema, exact_values, properties_of, required_of, types_of

Compiles = Callable[[dict[str, Any]], bool]
"""Returns whether llguidance can enforce a schema."""


def rewrite_objects(node: dict[str, Any], notes: Notes, holds: Compiles) -> dict[str, Any]:
    """Rewrite the keywords of objects."""
    if "unevaluatedProperties" in node:
        node = rewrite_unevaluated(node, notes, "unevaluatedProperties", "additionalProperties", ("dependentSchemas",))
    if "propertyNames" in node:
        node = _named(node, notes)
    if isinstance(node.get("patternProperties"), dict):
        node = _patterned(node, notes, holds)
    if "minProperties" in node or "maxProperties" in node:
        node = _counted(node, notes, holds)
    return node


def _named(node: dict[str, Any], notes: Notes) -> dict[str, Any]:
    """Turn `propertyNames` into listed properties, or into a pattern."""
    kept = dict(node)
    names = _resolved(kept.pop("propertyNames"), notes)
    if names is False:
        return {**kept, "properties": {}, "additionalProperties": False}
    if not isinstance(names, dict) or not _conditions(names):
        return kept
    others = kept.get("additionalProperties", True)
    allowed = exact_values(names, notes.root)
    if allowed is not None and not kept.get("patternProperties"):
        return _only(kept, [name for name in allowed if isinstance(name, str)], others)
    pattern = _pattern(names)
    if pattern is not None and compiles(pattern) and not kept.get("patternProperties"):
        if properties_of(kept):
            notes.check("propertyNames")
        return {**kept, "patternProperties": {pattern: others}, "additionalProperties": False}
    notes.check("propertyNames")
    return kept


def _resolved(names: Schema, notes: Notes) -> Schema:
    for _ in range(8):
        if not (isinstance(names, dict) and isinstance(names.get("$ref"), str)):
            break
        names = resolve(notes.root, names["$ref"])
    return names


def _conditions(names: dict[str, Any]) -> set[str]:
    """Return the keywords that may exclude a name: names are strings in any case."""
    found = set(names) - ANNOTATIONS
    return found - {"type"} if types_of({"type": names.get("type", "string")}, {}) == {"string"} else found


def _only(node: dict[str, Any], allowed: list[str], others: Schema) -> dict[str, Any]:
    listed = properties_of(node)
    properties = {name: schema for name, schema in listed.items() if name in allowed}
    properties |= {name: others for name in allowed if name not in listed and others is not False}
    return {**node, "properties": properties, "additionalProperties": False}


def _pattern(names: dict[str, Any]) -> str | None:
    conditions = _conditions(names)
    if conditions == {"pattern"} and isinstance(names["pattern"], str):
        return names["pattern"]
    if conditions <= {"minLength", "maxLength"}:
        return f"^[\\s\\S]{{{names.get('minLength', 0)},{names.get('maxLength', '')}}}$"
    return None


def _patterned(node: dict[str, Any], notes: Notes, holds: Compiles) -> dict[str, Any]:
    """Keep the patterns that exclude each other; for a name that matches several, llguidance would use only one schema."""
    patterns: dict[str, Schema] = {}
    for pattern, schema in node["patternProperties"].items():
        more = {**patterns, pattern: schema}
        if compiles(pattern) and (not patterns or holds({"type": "object", "patternProperties": dict.fromkeys(more, True)})):
            patterns = more
    if any(_may_match(patterns, name) for name in properties_of(node)) or len(patterns) < len(node["patternProperties"]):
        notes.check("patternProperties")
    return {**node, "patternProperties": patterns}


def _may_match(patterns: Iterable[str], name: str) -> bool:
    try:
        return any(re.search(pattern, name) for pattern in patterns)
    except re.error:  # from another dialect
        return True


def _counted(node: dict[str, Any], notes: Notes, holds: Compiles) -> dict[str, Any]:
    """Drop limits on the number of properties if llguidance cannot enforce them next to optional ones."""
    shell: dict[str, Any] = {
        "type": "object",
        "properties": dict.fromkeys(properties_of(node), True),
        "required": required_of(node),
    }
    shell |= {key: node[key] for key in ("minProperties", "maxProperties") if key in node}
    if node.get("additionalProperties") is False:
        shell["additionalProperties"] = False
    if node.get("patternProperties"):
        shell["patternProperties"] = dict.fromkeys(node["patternProperties"], True)
    if holds(shell):
        return node
    for key in ("minProperties", "maxProperties"):
        if key in node:
            notes.check(key)
    kept = {key: value for key, value in node.items() if key not in ("minProperties", "maxProperties")}
    least = node.get("minProperties", 0)
    opens = isinstance(least, int) and least > len(properties_of(node)) and "additionalProperties" not in node
    return {**kept, "additionalProperties": True} if opens else kept
