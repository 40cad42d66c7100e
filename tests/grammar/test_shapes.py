"""What clients write as a grammar, and TGI's texts for what is wrong with it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tgi_core.grammar import Grammar, GrammarError, GrammarKind, InvalidGrammar, UnsupportedGrammar, parse_grammar
from tgi_core.grammar.limits import MAX_BYTES, MAX_DEPTH, MAX_ENTRIES, MAX_NODES

SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "null"}}}
JSON = Grammar(GrammarKind.JSON, json.dumps(SCHEMA, separators=(",", ":")))
ANY = Grammar(GrammarKind.JSON, '{"type":"object"}')


@pytest.mark.parametrize(
    ("shape", "grammar"),
    [
        ({"type": "json", "value": SCHEMA}, JSON),
        ({"type": "json_object", "value": SCHEMA}, JSON),
        ({"type": "json", "value": json.dumps(SCHEMA, indent=2)}, JSON),
        ({"type": "json_schema", "value": {"schema": SCHEMA, "name": "x", "strict": True}}, JSON),
        ({"type": "json_schema", "value": {"schema": json.dumps(SCHEMA)}}, JSON),
        ({"type": "regex", "value": "a+"}, Grammar(GrammarKind.REGEX, "a+")),
        ({"type": "text"}, None),
        ({"type": "json_object"}, ANY),
        ({"type": "json_schema", "json_schema": {"schema": SCHEMA, "name": "x", "strict": True}}, JSON),
        ({"type": "json_object", "value": None, "json_schema": None, "schema": None}, ANY),
        ({"type": "json_object", "schema": SCHEMA}, JSON),
        ({"type": "json_schema", "value": None, "json_schema": {"schema": SCHEMA}}, JSON),
    ],
)
def test_shapes(shape: dict[str, Any], grammar: Grammar | None) -> None:
    """TGI's shapes and OpenAI's become one value; a schema keeps the order of its keys."""
    assert parse_grammar(shape) == grammar


@pytest.mark.parametrize(
    ("shape", "detail"),
    [
        ({}, "unknown type"),
        ({"type": "xml", "value": "a"}, "unknown type"),
        ({"type": "regex"}, "missing field `value`"),
        ({"type": "json"}, "missing field `value`"),
        ({"type": "regex", "value": 5}, "a regex must be a string"),
        ({"type": "json_schema", "value": {}}, "missing field `schema`"),
        ({"type": "json_schema", "json_schema": "x"}, "missing field `schema`"),
        ({"type": "json_schema"}, "missing field `schema` in `json_schema`"),
        ({"type": "json_schema", "json_schema": {"name": "x"}}, "missing field `schema` in `json_schema`"),
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": None}}, "missing field `schema` in `json_schema`"),
        ({"type": "json_schema", "json_schema": {"name": "x", "strict": True, "value": SCHEMA}}, "missing field `schema` in"),
        ({"type": "json_schema", "json_schema": SCHEMA}, "missing field `schema` in `json_schema`"),
        ({"type": "json_schema", "schema": SCHEMA}, "type `json_schema` has no field `schema`"),
        ({"type": "json_object", "json_schema": {"schema": SCHEMA}}, "type `json_object` has no field `json_schema`"),
        ({"type": "json", "json_schema": {"schema": SCHEMA}}, "type `json` has no field `json_schema`"),
        ({"type": "text", "json_schema": {"schema": SCHEMA}}, "type `text` has no field `json_schema`"),
        ({"type": "json_object", "value": SCHEMA, "schema": SCHEMA}, "`value` or `schema`, not both"),
        ({"type": "json", "value": "{"}, "Expecting property name"),
        ({"type": "json", "value": "[1]"}, "a schema must be a JSON object"),
        ({"type": "json", "value": '{"minimum": NaN}'}, "NaN is not JSON"),
        ({"type": "json", "value": {"minimum": float("nan")}}, "not JSON compliant"),
        ({"type": "regex", "value": "\ud800"}, "not Unicode"),
    ],
)
def test_what_is_wrong(shape: dict[str, Any], detail: str) -> None:
    """`grammar is not valid: …` says what."""
    with pytest.raises(InvalidGrammar, match=f"^grammar is not valid: .*{detail}"):
        parse_grammar(shape)


@pytest.mark.parametrize("value", [None, 5, True, [SCHEMA]])
def test_what_no_schema_is(value: object) -> None:
    """A value that is neither object nor text is TGI's `grammar is not supported`."""
    with pytest.raises(UnsupportedGrammar, match=r"^grammar is not supported$"):
        parse_grammar({"type": "json", "value": value})


@pytest.mark.parametrize(
    "shape", [{"type": "text"}, {"type": "json_object"}, {"type": "json_schema", "json_schema": {"schema": SCHEMA}}]
)
def test_strictly_tgi(shape: dict[str, Any]) -> None:
    """On demand OpenAI's shapes are refused, and schemas without properties, as TGI does."""
    assert parse_grammar({"type": "json", "value": SCHEMA}, strict_tgi=True) == JSON
    with pytest.raises(InvalidGrammar, match="Grammar must have a 'properties' field"):
        parse_grammar({"type": "json", "value": {"type": "array"}}, strict_tgi=True)
    with pytest.raises(GrammarError):
        parse_grammar(shape, strict_tgi=True)


def nested(depth: int) -> dict[str, Any]:
    """Containers in each other, `depth` of them."""
    schema: dict[str, Any] = {}
    for _ in range(depth - 1):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("within", "beyond", "detail"),
    [
        (nested(MAX_DEPTH), nested(MAX_DEPTH + 1), "nested deeper"),
        ({"enum": [0] * MAX_ENTRIES}, {"enum": [0] * (MAX_ENTRIES + 1)}, "entries, more than"),
        ({"enum": [[]] * (MAX_NODES - 2)}, {"enum": [[]] * (MAX_NODES - 1)}, "objects and arrays"),
        ({"title": "x" * (MAX_BYTES - 12)}, {"title": "x" * (MAX_BYTES - 11)}, "bytes, more than"),
    ],
)
def test_limits(within: dict[str, Any], beyond: dict[str, Any], detail: str) -> None:
    """At a limit a schema passes, one beyond it does not, as an object and as text."""
    assert parse_grammar({"type": "json", "value": within}) is not None
    for value in (beyond, json.dumps(beyond, separators=(",", ":"))):
        with pytest.raises(InvalidGrammar, match=detail):
            parse_grammar({"type": "json", "value": value})


def test_a_grammar_does_not_show_in_logs() -> None:
    """The source is the client's business: it is not in the repr. Its digest tells grammars and kinds apart."""
    assert "a+" not in repr(Grammar(GrammarKind.REGEX, "a+"))
    digests = {Grammar(kind, source).digest for kind in GrammarKind for source in ("a", "b")}
    assert len(digests) == 2 * len(GrammarKind) and all(len(digest) == 32 for digest in digests)
