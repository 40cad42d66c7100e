"""Parsing of the request fields that specify a grammar: TGI's `grammar`, OpenAI's `response_format`.

TGI:    {"type": "json" | "json_object", "value": schema, as an object or as JSON text}
        {"type": "json_schema", "value": {"schema": …, "name": …}}
        {"type": "regex", "value": "…"}
vLLM, SGLang: {"type": "ebnf", "value": "root ::= …", or Lark}
OpenAI: {"type": "text"}, {"type": "json_object"}, {"type": "json_schema", "json_schema": {"schema": …, "name": …}}
LangChain: {"type": "json_object", "schema": …}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tgi_core.grammar.documents import read_schema, write_schema
from tgi_core.grammar.limits import MAX_BYTES, check_text
from tgi_core.grammar.value import Grammar, GrammarKind, InvalidGrammar, UnsupportedGrammar

ANY_OBJECT = {"type": "object"}
TYPES = ("json", "json_object", "json_schema", "regex", "ebnf", "text")
FIELDS = ("value", "json_schema", "schema")
"""Fields besides `type`. A schema in a wrong one is refused: ignoring it would leave the answer unconstrained."""

_FIELDS_OF: dict[str, tuple[str, ...]] = {
    "json": ("value",),
    "json_object": ("value", "schema"),
    "json_schema": ("value", "json_schema"),
    "regex": ("value",),
    "ebnf": ("value",),
    "text": (),
}
_PLACES = {
    "json": "the schema is the field `value`",
    "json_object": "a schema is the field `value` or `schema`, or `json_schema.schema` with the type `json_schema`",
    "json_schema": 'the schema is the field `json_schema.schema`, as in {"json_schema": {"name": …, "schema": …}}',
    "regex": "the regular expression is the field `value`",
    "ebnf": "the grammar is the field `value`",
    "text": "the answer is not constrained",
}

_NAMES = {GrammarKind.REGEX: "a regex", GrammarKind.EBNF: "a grammar in EBNF"}


def parse_grammar(shape: Mapping[str, Any], *, strict_tgi: bool = False, max_bytes: int = MAX_BYTES) -> Grammar | None:
    """Parse a grammar, or return None for plain text. Raises GrammarError with TGI's messages.

    Every route accepts all shapes. `strict_tgi` accepts only TGI's shapes and, like TGI, requires `properties` in a schema. Does
    not compile the grammar; a schema of 64 KiB, the default of `max_bytes`, takes a few milliseconds.
    """
    kind = shape.get("type")
    types = TYPES if not strict_tgi else tuple(name for name in TYPES if name != "ebnf")
    if not isinstance(kind, str) or kind not in types:
        raise InvalidGrammar(f"unknown type; expected one of {', '.join(types)}")
    if strict_tgi:
        return _parse_tgi(kind, shape, strict_tgi, max_bytes)
    given = [name for name in FIELDS if shape.get(name) is not None]
    for name in given:
        if name not in _FIELDS_OF[kind]:
            raise InvalidGrammar(f"the type `{kind}` has no field `{name}`; {_PLACES[kind]}")
    if len(given) > 1:
        raise InvalidGrammar(f"give `{given[0]}` or `{given[1]}`, not both")
    if kind == "text":
        return None
    if kind == "json_object":
        return _schema(shape[given[0]] if given else ANY_OBJECT, strict_tgi, max_bytes)
    if kind == "json_schema" and given != ["value"]:
        return _schema(_member(shape.get("json_schema"), "json_schema"), strict_tgi, max_bytes)
    return _parse_tgi(kind, shape, strict_tgi, max_bytes)


def _parse_tgi(kind: str, shape: Mapping[str, Any], strict_tgi: bool, max_bytes: int) -> Grammar:
    if "value" not in shape:
        raise InvalidGrammar("missing field `value`")
    value = shape["value"]
    if kind in ("regex", "ebnf"):
        return _text(GrammarKind(kind), value, max_bytes)
    return _schema(_member(value, "value") if kind == "json_schema" else value, strict_tgi, max_bytes)


def _member(value: object, holder: str) -> object:
    """Return the schema in the field `holder` of the type `json_schema`."""
    if not isinstance(value, Mapping) or value.get("schema") is None:
        raise InvalidGrammar(f"missing field `schema` in `{holder}`; {_PLACES['json_schema']}")
    found: object = value["schema"]
    return found


def _text(kind: GrammarKind, value: object, max_bytes: int) -> Grammar:
    if not isinstance(value, str):
        raise InvalidGrammar(f"{_NAMES[kind]} must be a string")
    check_text(value, max_bytes)
    return Grammar(kind, value)


def _schema(value: object, strict_tgi: bool, max_bytes: int) -> Grammar:
    if isinstance(value, str):
        value = read_schema(value, max_bytes)
    if not isinstance(value, dict):
        raise UnsupportedGrammar
    text = write_schema(value, max_bytes)
    if strict_tgi and "properties" not in value:
        raise InvalidGrammar("Grammar must have a 'properties' field")
    return Grammar(GrammarKind.JSON, text)
