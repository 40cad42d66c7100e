"""Keywords of JSON schema that the masks hold by rewriting, and those that are left to the check of the response."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from jsonschema import validators

from tests.grammar.schemas import json_grammar
from tests.grammar.walks import BYTES, walk
from tgi_core.grammar.checking import violation
from tgi_core.grammar.keywords.rewriting import normal
from tgi_core.grammar.validation_worker import check_grammar

AB: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": "null"}}}
KIND = {"kind": {"enum": ["x", "y"]}, "b": {"type": "null"}}
X = {"properties": {"kind": {"const": "x"}}, "required": ["kind"]}
HELD: list[dict[str, Any]] = [
    {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "integer"}},
    {"type": "object", "propertyNames": {"$ref": "#/$defs/e"}, "$defs": {"e": {"enum": ["u", "v"]}}},
    {"type": "object", "propertyNames": {"pattern": "^[a-z]{1,3}$"}, "additionalProperties": {"type": "null"}},
    {"type": "object", "propertyNames": {"minLength": 2, "maxLength": 4}, "additionalProperties": {"type": "null"}},
    {"type": "object", "propertyNames": False},
    {"type": "array", "items": {"enum": ["r", "g", "b"]}, "uniqueItems": True},
    {
        "type": "array",
        "items": {"$ref": "#/$defs/e"},
        "uniqueItems": True,
        "minItems": 2,
        "$defs": {"e": {"enum": [1, 1.0, 2, True]}},
    },
    {"type": "array", "items": {"enum": list("abcdef")}, "uniqueItems": True, "maxItems": 3},
    {"type": "array", "items": {"type": "string"}, "uniqueItems": True, "maxItems": 1},
    {"type": "array", "items": {"type": "integer", "maximum": 9}, "contains": {"const": 5}, "minContains": 2},
    {"type": "array", "contains": {"type": "null"}, "minContains": 0},
    {"type": "string", "enum": ["a", "b"], "not": {"const": "a"}},
    {"type": ["string", "null"], "not": {"type": "null"}},
    {**AB, "not": {"required": ["a", "b"]}},
    {**AB, "not": {"properties": {"a": {"const": True}}, "required": ["a"]}},
    {**AB, "not": {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}},
    {"type": "object", "properties": KIND, "if": X, "then": {"required": ["b"]}, "else": {"properties": {"b": False}}},
    {"type": "object", "properties": KIND, "required": ["kind"], "allOf": [{"if": X, "then": {"required": ["b"]}}]},
    {"type": "object", "properties": KIND, "if": {"not": X}, "then": {"required": ["b"]}},
    {**AB, "if": {"required": ["a"]}, "then": {"required": ["b"]}},
    {**AB, "then": {"required": ["a"]}},
    {**AB, "dependentRequired": {"a": ["b"]}},
    {**AB, "dependencies": {"a": ["b"], "b": ["a"]}},
    {**AB, "dependentSchemas": {"a": {"properties": {"b": {"type": "null"}}, "required": ["b"]}}, "required": ["a"]},
    {**AB, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
    {"oneOf": [{"$ref": "#/$defs/ab"}, {"type": "null"}], "$defs": {"ab": AB}},
    {"oneOf": [{**AB, "properties": {"t": {"const": n}, **AB["properties"]}, "required": ["t"]} for n in (1, 2)]},
    {"oneOf": [{**AB, "required": ["a"]}, {"type": "object", "properties": {"c": {}}, "additionalProperties": False}]},
    {**AB, "patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False},
    {**AB, "unevaluatedProperties": False},
    {"type": "object", "properties": {"a": {"$ref": "#/properties/b"}, "b": {"type": "null"}}, "dependentRequired": {"a": ["b"]}},
    {
        "type": "object",
        "properties": {"a": {"$id": "https://x.example/y", "$ref": "#/$defs/n"}},
        "$defs": {"n": {"type": "null"}},
    },
]
CHECKED: list[tuple[dict[str, Any], str]] = [
    ({"type": "array", "items": {"enum": [1, 2]}, "prefixItems": [True], "uniqueItems": True, "maxItems": 3}, "uniqueItems"),
    ({"type": "array", "items": {"enum": list("abcdefgh")}, "uniqueItems": True}, "uniqueItems"),
    ({"type": "array", "items": {"enum": [1, 2]}, "contains": {"const": 1}, "maxContains": 1, "maxItems": 3}, "maxContains"),
    ({"type": "string", "maxLength": 1, "not": {"const": "a"}}, "not"),
    ({"type": "string", "pattern": "^(?!a)[ab]$"}, "pattern"),
    ({"oneOf": [{"type": "integer", "minimum": 0, "maximum": 9}, {"type": "integer", "minimum": 5, "maximum": 15}]}, "oneOf"),
    ({"properties": {"a": {"type": "string", "maxLength": 1}}, "if": {"properties": {"a": {"const": ""}}}, "then": False}, "if"),
    ({**AB, "patternProperties": {"^a": {"const": True}}}, "patternProperties"),
    ({"type": "object", "patternProperties": {"^b": {"type": "null"}, "c$": True}, "additionalProperties": False}, "patternProperties"),
    ({**AB, "maxProperties": 1}, "maxProperties"),
    ({"allOf": [AB], "unevaluatedProperties": False}, "unevaluatedProperties"),
]  # fmt: skip


def responses(schema: dict[str, Any]) -> list[Any]:
    """What the masks allow."""
    return [json.loads(walk(json_grammar(schema), seed)) for seed in range(12)]


@pytest.mark.parametrize("schema", HELD)
def test_held(schema: dict[str, Any]) -> None:
    """The masks alone hold the schema: there is nothing to check, and every response is valid."""
    fault, report = check_grammar(BYTES, json_grammar(schema))
    assert (fault, report.checked) == ("", ())
    meant = normal(schema) if "$id" in str(schema) else schema
    validator = validators.validator_for(meant)(meant)
    for response in responses(schema):
        validator.validate(response)


@pytest.mark.parametrize(("schema", "keyword"), CHECKED)
def test_checked(schema: dict[str, Any], keyword: str) -> None:
    """What the masks do not hold is said to be checked, and the check agrees with jsonschema."""
    fault, report = check_grammar(BYTES, json_grammar(schema))
    assert (fault, report.checked) == ("", (keyword,))
    validator = validators.validator_for(schema)(schema)
    for response in responses(schema):
        assert (violation(json.dumps(schema), json.dumps(response)) == "") == validator.is_valid(response)


def test_unknown_formats_are_told() -> None:
    """A format that nothing holds is told once, whatever it is called."""
    fields = {name: {"type": "string", "format": kind} for name, kind in (("a", "date"), ("b", "password"), ("c", "password"))}
    assert check_grammar(BYTES, json_grammar({"type": "object", "properties": fields}))[1].formats == ("password",)


def test_how_a_response_violates_its_schema() -> None:
    """The keyword and the place are named, and what is no JSON is told so."""
    schema = json.dumps({"properties": {"a": {"uniqueItems": True}}})
    assert violation(schema, '{"a": [1, 1.0]}') == "`uniqueItems` does not hold at /a"
    assert violation(schema, '{"a": [1, true]}') == ""
    assert "not JSON" in violation(schema, "{")


def test_what_cannot_be_checked_is_refused_first() -> None:
    """A schema that needs a check and cannot have one is refused before anything is generated; nothing is fetched for it."""
    unique = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    schema = {"properties": {"a": unique}, "$defs": {"b": {"not": {"$ref": "https://x.example/y"}}}}
    assert "https://x.example/y" in check_grammar(BYTES, json_grammar(schema))[0]


def test_alternatives_are_bounded() -> None:
    """Conditions on top of conditions do not multiply for ever: beyond a few alternatives they are checked."""
    names = [f"p{number}" for number in range(40)]
    schema: dict[str, Any] = {"type": "object", "properties": {key: {"type": "null"} for key in names}}
    schema["dependentRequired"] = {name: [names[0]] for name in names[1:]}
    for _ in range(4):
        schema = {"type": "object", "properties": {"a": schema, "b": schema}, "dependentRequired": {"a": ["b"]}}
    fault, report = check_grammar(BYTES, json_grammar(schema))
    assert fault == "" and report.checked == ("dependentRequired",)


def test_long_chains_of_references_are_refused() -> None:
    """References that lead from one place to the next, beyond any stack, are an error of the schema, and wide ones take no time."""
    chain = {f"p{number}": {"$ref": f"#/properties/p{number + 1}"} for number in range(900)}
    schema = json_grammar({"properties": {**chain, "p900": {"type": "null"}}})
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(800)
    try:
        assert check_grammar(BYTES, schema)[0] == "its references are nested too deeply"
    finally:
        sys.setrecursionlimit(limit)
    wide: dict[str, Any] = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 4} for n in range(12)}
    fault, found = check_grammar(
        BYTES, json_grammar({"oneOf": [{"$ref": "#/$defs/d0"}] * 2, "$defs": {**wide, "d12": {"type": "null"}}})
    )
    assert (fault, found.checked) == ("", ("oneOf",)) or fault == "it is too complex"
