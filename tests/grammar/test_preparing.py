"""What becomes of a schema before it is compiled; `test_answers` shows that what is left is no laxer."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given

from tests.grammar.schemas import schemas
from tgi_core.grammar.preparing import prepare

INT = {"type": "integer"}
OPEN = {"type": "object", "properties": {"a": INT}}
CLOSED = {**OPEN, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "prepared"),
    [
        (OPEN, CLOSED),
        ({"properties": {"a": OPEN}}, {"type": "object", "properties": {"a": CLOSED}, "additionalProperties": False}),
        (
            {"properties": {"a": INT}, "const": {"a": 1}},
            {"properties": {"a": INT}, "const": {"a": 1}, "additionalProperties": False},
        ),
        ({"$defs": {"x": OPEN}, "items": {"$ref": "#/$defs/x"}}, {"$defs": {"x": CLOSED}, "items": {"$ref": "#/$defs/x"}}),
        ({"anyOf": [OPEN, INT]}, {"anyOf": [CLOSED, INT]}),
        ({"items": OPEN, "uniqueItems": False}, {"items": CLOSED}),
        ({"type": "string", "format": "password"}, {"type": "string"}),
        ({"x-guidance": {"lenient": True}, **INT}, INT),
    ],
)
def test_prepared(schema: dict[str, Any], prepared: dict[str, Any]) -> None:
    """Objects are closed wherever schemas are; what says nothing is left out; the client has no say in the engine's options."""
    assert prepare(schema) == prepared


@pytest.mark.parametrize(
    "schema",
    [
        {**OPEN, "additionalProperties": True},
        {**OPEN, "required": ["b"]},
        {**OPEN, "minProperties": 2},
        {**OPEN, "patternProperties": {"^x": INT}},
        {"allOf": [OPEN, {"properties": {"b": INT}}]},
        {**OPEN, "anyOf": [{"properties": {"b": INT}}]},
        {"const": OPEN},
        {"enum": [OPEN]},
        {"type": "object"},
        {"type": "string", "format": "date"},
        {"uniqueItems": True},
        {"properties": 5},
    ],
)
def test_left_alone(schema: dict[str, Any]) -> None:
    """Where closing would change what is meant, where a value only looks like a schema, and where nothing is to be done."""
    assert prepare(schema) == schema


@given(schemas)
def test_the_schema_itself_is_not_touched(schema: dict[str, Any]) -> None:
    """Preparing makes a copy, and preparing that changes nothing more."""
    before = copy.deepcopy(schema)
    prepared = prepare(schema)
    assert schema == before and prepare(prepared) == prepared
