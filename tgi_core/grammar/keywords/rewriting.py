"""Rewrites a schema so that llguidance can enforce most of it, and lists what remains.

A response that matches the rewritten schema and passes the check of the keywords in `checked` is valid under the schema itself. The
rewritten schema may be narrower in ways that do not matter to clients: sets of few values come in the order of their schema, and what
an array must contain comes first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tgi_core.grammar.finite import resolve
from tgi_core.grammar.keywords.arrays import rewrite_arrays
from tgi_core.grammar.keywords.choices import CONDITIONAL, DEPENDENT, only_conditional, rewrite_choices
from tgi_core.grammar.keywords.notes import Notes
from tgi_core.grammar.keywords.objects import Compiles, rewrite_objects
from tgi_core.grammar.keywords.strings import rewrite_strings
from tgi_core.grammar.keywords.values import Schema

_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_SINGLE = (
    "items",
    "additionalProperties",
    "additionalItems",
    "unevaluatedProperties",
    "unevaluatedItems",
    "contains",
    "then",
    "else",
)
_CHOICES = frozenset(("oneOf", "not", "allOf", *CONDITIONAL, *DEPENDENT))
_DRAFTS = ("http://json-schema.org/draft-", "https://json-schema.org/draft/")


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A schema that llguidance may enforce, the keywords that a response must be checked for, and formats that nothing enforces."""

    schema: Schema
    checked: tuple[str, ...]
    formats: tuple[str, ...]


def rewrite(schema: dict[str, Any], holds: Compiles) -> Rewritten:
    """Rewrite a schema; does not modify its argument. `holds` tells whether llguidance can enforce a schema. Call `limits.check_document`
    first, since this recurses."""
    root = normal(schema)
    notes = Notes(root)
    rewritten = _node(root, notes, holds)
    return Rewritten(rewritten, tuple(notes.checked), tuple(notes.formats))


def normal(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without what its meaning does not need: unknown dialects, and an `$id` next to a `$ref` that resolves without it.
    References to places that a rewriting may move become references to definitions."""
    root = dict(schema)
    if not str(root.get("$schema", _DRAFTS[0])).startswith(_DRAFTS):
        del root["$schema"]
    lifted: dict[str, Any] = {}
    normalised: dict[str, Any] = _normal(root, root, lifted)
    if lifted:
        named = {_name(reference, lifted): schema for reference, schema in lifted.items()}
        normalised["$defs"] = {**normalised.get("$defs", {}), **named}
    return normalised


def _name(reference: str, lifted: dict[str, Any]) -> str:
    return f"target-{list(lifted).index(reference)}"


def _normal(node: Any, root: dict[str, Any], lifted: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_normal(each, root, lifted) for each in node]
    if not isinstance(node, dict):
        return node
    reference = node.get("$ref")
    kept = node
    if isinstance(reference, str) and reference.startswith("#/") and (node is root or "$id" in node or "id" in node):
        found = resolve(root, reference) is not True
        kept = {key: value for key, value in node.items() if not (found and node is not root and key in ("$id", "id"))}
    made = {
        key: value if key in ("const", "enum") else _normal(value, root, lifted)
        for key, value in kept.items()
        if not (key == "examples" and isinstance(value, str | int | float))  # common, and no dialect allows it
    }
    if isinstance(reference, str) and _moves(reference) and resolve(root, reference) is not True:
        if reference not in lifted:
            lifted[reference] = True
            lifted[reference] = _normal(resolve(root, reference), root, lifted)
        made["$ref"] = f"#/$defs/{_name(reference, lifted)}"
    return made


def _moves(reference: str) -> bool:
    """Return whether a rewriting may move the target of a reference."""
    if not reference.startswith("#/"):
        return False
    parts = reference[2:].split("/")
    return not (len(parts) == 2 and parts[0] in ("$defs", "definitions"))


def _node(schema: Schema, notes: Notes, holds: Compiles) -> Schema:
    if not isinstance(schema, dict):
        return schema
    node = dict(schema)
    for key, value in schema.items():
        if key in _MAPS and isinstance(value, dict):
            node[key] = {name: _node(child, notes, holds) for name, child in value.items()}
        elif key in _LISTS and isinstance(value, list):
            node[key] = [_part(child, notes, holds) if key == "allOf" else _node(child, notes, holds) for child in value]
        elif key in _SINGLE:
            node[key] = _node(value, notes, holds)
    node = rewrite_strings(node, notes)
    node = rewrite_arrays(node, notes)
    node = rewrite_objects(node, notes, holds)
    return rewrite_choices(node, schema, notes) if _CHOICES & node.keys() else node


def _part(schema: Schema, notes: Notes, holds: Compiles) -> Schema:
    """Rewrite a part of an `allOf`; if it is a condition, only `then` and `else`."""
    if not only_conditional(schema):
        return _node(schema, notes, holds)
    return {key: value if key == "if" else _node(value, notes, holds) for key, value in schema.items()}
