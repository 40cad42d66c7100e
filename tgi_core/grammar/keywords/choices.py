"""`oneOf`, `not`, `if` and `dependent…`, which become alternatives of the subschema that has them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import Any

from tgi_core.grammar.finite import resolve
from tgi_core.grammar.keywords.merging import NotSimple, merge
from tgi_core.grammar.keywords.negation import negations
from tgi_core.grammar.keywords.notes import Notes
from tgi_core.grammar.keywords.values import ANNOTATIONS, Schema, properties_of, required_of, same, size_of, types_of, values_of

_MOST = 16
"""Maximum number of alternatives of a subschema."""
_LARGEST = 1500
"""Maximum number of objects and arrays in the alternatives of a subschema."""
_OUTSIDE = ("$schema", "$id", "id", "$defs", "definitions", "title", "description", "$comment")
CONDITIONAL = ("if", "then", "else")
_BEYOND = frozenset(
    (
        "not",
        "oneOf",
        "contains",
        "uniqueItems",
        "propertyNames",
        "patternProperties",
        "pattern",
        "format",
        "$ref",
        "minProperties",
    )
) | {*CONDITIONAL, "dependentRequired", "dependentSchemas", "dependencies", "maxProperties", "unevaluatedProperties"}
DEPENDENT = ("dependentRequired", "dependentSchemas", "dependencies")


def rewrite_choices(node: dict[str, Any], raw: dict[str, Any], notes: Notes) -> Schema:
    """Rewrite a subschema whose own subschemas have been rewritten; `raw` is what it was before."""
    kept = {key: value for key, value in node.items() if key not in (*CONDITIONAL, *DEPENDENT, "not")}
    kept, conditionals = _conditionals(kept, node, raw)
    alternatives: list[dict[str, Any]] = [kept]
    for keyword, choices in _steps(node, raw, conditionals, kept, notes):
        alternatives = _combined(alternatives, keyword, choices, notes)
    if "oneOf" in kept:
        alternatives = _one_of(alternatives, notes)
    if not alternatives:
        return False
    if len(alternatives) == 1:
        return alternatives[0]
    outside = {key: kept[key] for key in _OUTSIDE if key in kept}
    return {**outside, "anyOf": [{key: each[key] for key in each if key not in outside} for each in alternatives]}


_Choices = list[Schema] | None
"""Schemas of which a value must match one besides the subschema; None if they are not known."""


def _steps(
    node: dict[str, Any],
    raw: dict[str, Any],
    conditionals: list[tuple[dict[str, Any], dict[str, Any]]],
    place: dict[str, Any],
    notes: Notes,
) -> Iterator[tuple[str, _Choices]]:
    if "not" in raw:
        yield "not", _unless(raw["not"], place, notes)
    for rewritten, before in conditionals:
        yield "if", _conditional(rewritten, before, place, notes)
    for keyword in DEPENDENT:
        given = node.get(keyword)
        if isinstance(given, dict):
            for name, dependent in given.items():
                yield keyword, _dependent(name, dependent, place)


def only_conditional(schema: Schema) -> bool:
    """Return whether a part of an `allOf` is only a condition, which then belongs to the subschema that has the `allOf`."""
    return isinstance(schema, dict) and "if" in schema and not set(schema) - {*CONDITIONAL, *ANNOTATIONS}


def _conditionals(
    kept: dict[str, Any], node: dict[str, Any], raw: dict[str, Any]
) -> tuple[dict[str, Any], list[tuple[dict[str, Any], dict[str, Any]]]]:
    """Return the subschema without those parts of its `allOf` that are only conditions, and all its conditions."""
    found = [(node, raw)] if "if" in raw else []
    if not isinstance(raw.get("allOf"), list):
        return kept, found
    rest = []
    for rewritten, before in zip(node["allOf"], raw["allOf"], strict=True):
        if only_conditional(before):
            found.append((rewritten, before))
        else:
            rest.append(rewritten)
    kept = {key: value for key, value in kept.items() if key != "allOf"}
    return ({**kept, "allOf": rest} if rest else kept), found


def _unless(schema: Schema, place: dict[str, Any], notes: Notes) -> _Choices:
    try:
        return list(negations(_followed(schema, notes), place, notes.root))
    except NotSimple:
        return None


def _conditional(node: dict[str, Any], raw: dict[str, Any], place: dict[str, Any], notes: Notes) -> _Choices:
    """Return the cases of `if` and `then`, and of `else`. If the condition cannot be negated, the case of `else` allows more than it
    should."""
    if "then" not in raw and "else" not in raw:
        return [True]
    condition = _followed(raw["if"], notes)
    then, otherwise = (_followed(node.get(key, True), notes) for key in ("then", "else"))
    if isinstance(condition, dict) and set(condition) == {"not"}:
        condition, then, otherwise = condition["not"], otherwise, then
    against = _unless(condition, place, notes)
    if not _is_plain(condition):
        notes.check("if")
        condition = True
    if against is None:
        notes.check("if")
        against = [{}]
    try:
        return [merge(condition, then), *(merge(each, otherwise) for each in against)]
    except NotSimple:
        return None


def _is_plain(schema: Any) -> bool:
    """Return whether llguidance supports all keywords of a condition."""
    if isinstance(schema, list):
        return all(map(_is_plain, schema))
    return not isinstance(schema, dict) or (not _BEYOND & schema.keys() and all(map(_is_plain, schema.values())))


def _followed(schema: Schema, notes: Notes) -> Schema:
    """Return the target of a plain reference."""
    for _ in range(8):
        if not (isinstance(schema, dict) and isinstance(schema.get("$ref"), str) and len(schema) == 1):
            break
        schema = resolve(notes.root, schema["$ref"])
    return schema


def _dependent(name: str, dependent: Any, place: dict[str, Any]) -> _Choices:
    if "object" not in types_of(place, {}):
        return [True]
    if "type" not in place and "properties" not in place:
        return None
    more: Schema = {"required": dependent} if isinstance(dependent, list) else dependent
    if name in required_of(place):
        return [more]
    try:
        return [{"properties": {name: False}}, merge({"required": [name]}, more)]
    except NotSimple:
        return None


def _combined(alternatives: list[dict[str, Any]], keyword: str, choices: _Choices, notes: Notes) -> list[dict[str, Any]]:
    """Return each alternative combined with each choice; if that is not simple, or too much, the alternatives as they are, with a note."""
    if choices is not None:
        try:
            combined = list(_merged(alternatives, choices))
        except NotSimple:
            combined = alternatives * _MOST
        if len(combined) <= _MOST and (len(combined) <= 1 or size_of(combined, _LARGEST) <= _LARGEST):
            return combined
    notes.check(keyword)
    return alternatives


def _merged(alternatives: Iterable[dict[str, Any]], choices: list[Schema]) -> Iterator[dict[str, Any]]:
    for one in alternatives:
        for choice in choices:
            both = merge(one, choice)
            if not isinstance(both, dict) or _is_empty(both):
                continue
            if "properties" not in one and "properties" in both and "additionalProperties" not in both:
                both["additionalProperties"] = True  # otherwise, listing properties would close it
            yield both


def _is_empty(schema: dict[str, Any]) -> bool:
    """Return whether a required property is excluded."""
    return any(properties_of(schema).get(name, True) is False for name in required_of(schema))


def _one_of(alternatives: list[dict[str, Any]], notes: Notes) -> list[dict[str, Any]]:
    """Replace `oneOf`. Its schemas are moved into the alternatives, so that those are complete objects, where that is simple."""
    found: list[dict[str, Any]] = []
    for each in alternatives:
        rest = {key: value for key, value in each.items() if key != "oneOf"}
        options = each["oneOf"]
        if not isinstance(options, list):
            return alternatives
        exclusive = _exclusive(options)
        if exclusive is None:
            exclusive = options
            if not all(_disjoint(first, second, notes.root) for first, second in combinations(options, 2)):
                notes.check("oneOf")
        if not set(rest) - {*_OUTSIDE, *ANNOTATIONS}:
            found.append({**rest, "anyOf": exclusive})
            continue
        found += _moved_in(rest, exclusive)
    return found


def _moved_in(rest: dict[str, Any], options: list[Schema]) -> list[dict[str, Any]]:
    try:
        merged = list(_merged([rest], options))
    except NotSimple:
        return (
            [{**rest, "allOf": [*rest.get("allOf", []), {"anyOf": options}]}] if "anyOf" in rest else [{**rest, "anyOf": options}]
        )
    if size_of(merged, _LARGEST) > _LARGEST:
        return [{**rest, "anyOf": options}]
    return merged


def _exclusive(options: list[Schema]) -> list[Schema] | None:
    """Return the options with each other's properties excluded, if each only requires one property."""
    names = []
    for each in options:
        if not isinstance(each, dict) or set(each) - {"type", *ANNOTATIONS} != {"required"} or len(required_of(each)) != 1:
            return None
        names.append(required_of(each)[0])
    if len(set(names)) < len(names):
        return None
    return [{"properties": {other: False for other in names if other != name}, "required": [name]} for name in names]


def _disjoint(first: Schema, second: Schema, root: dict[str, Any]) -> bool:
    """Return whether it is clear that no value matches both."""
    types = types_of(first, root) & types_of(second, root)
    if not types:
        return True
    ones, others = values_of(first, root), values_of(second, root)
    if ones is not None and others is not None:
        return not set(map(same, ones)) & set(map(same, others))
    if types != {"object"}:
        return False
    one, other = (_object(each, root) for each in (first, second))
    return any(_tells_apart(name, one, other, root) for name in {*required_of(one), *required_of(other)})


def _object(schema: Schema, root: dict[str, Any]) -> dict[str, Any]:
    for _ in range(8):
        if isinstance(schema, dict) and isinstance(schema.get("$ref"), str):
            schema = resolve(root, schema["$ref"])
    return schema if isinstance(schema, dict) else {}


def _tells_apart(name: str, first: dict[str, Any], second: dict[str, Any], root: dict[str, Any]) -> bool:
    one, other = (_property(each, name) for each in (first, second))
    if one is False or other is False:
        return True
    ones, others = values_of(one, root), values_of(other, root)
    if ones is not None and others is not None:
        return not set(map(same, ones)) & set(map(same, others))
    return not types_of(one, root) & types_of(other, root)


def _property(schema: dict[str, Any], name: str) -> Schema:
    listed = properties_of(schema)
    if name in listed:
        return listed[name]
    return True if schema.get("patternProperties") else schema.get("additionalProperties", True)
