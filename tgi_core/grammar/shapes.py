"""Parsing of the request fields that specify a grammar: TGI's `grammar`, OpenAI's `response_format`.

TGI:    {"type": "json" | "json_object", "value": schema, as an object or as JSON text}
        {"type": "json_schema", "value": {"schema": …, "name": …}}
        {"type": "regex", "value": "…"}
OpenAI: {"type": "text"}, {"type": "json_object"}, {"type": "json_schema", "json_schema": {"schema": …, "name": …}}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tgi_core.grammar.documents import read_schema, write_schema
from tgi_core.grammar.limits import check_text
from tgi_core.grammar.value import Grammar, GrammarKind, InvalidGrammar, UnsupportedGrammar

ANY_OBJECT = {"type": "object"}
TYPES = ("json", "json_object", "json_schema", "regex", "text")


def parse_grammar(shape: Mapping[str, Any], *, strict_tgi: bool = False) -> Grammar | None:
    """Parse a grammar, or return None for plain text. Raises GrammarError with TGI's messages.

    Every route accepts all shapes. `strict_tgi` accepts only TGI's shapes and, like TGI, requires `properties` in a schema. Does
    not compile the grammar; a schema of 64 KiB takes a few milliseconds.
    """
    kind = shape.get("type")
    if not isinstance(kind, str) or kind not in TYPES:
        raise InvalidGrammar(f"unknown type; expected one of {', '.join(TYPES)}")
    if "value" not in shape:
        return _parse_openai(kind, shape, strict_tgi)
    value = shape["value"]
    if kind == "regex":
        return _regex(value)
    if kind == "json_schema":
        value = _member(value, "schema")
    return _schema(value, strict_tgi)


def _parse_openai(kind: str, shape: Mapping[str, Any], strict_tgi: bool) -> Grammar | None:
    if strict_tgi or kind in ("json", "regex"):
        raise InvalidGrammar("missing field `value`")
    if kind == "text":
        return None
    if kind == "json_object":
        return _schema(ANY_OBJECT, strict_tgi)
    given = shape.get("json_schema")
    # OpenAI's `schema` is optional; OpenAI's clients send null
    without = isinstance(given, Mapping) and given.get("schema") is None
    return _schema(ANY_OBJECT if without else _member(given, "schema"), strict_tgi)


def _member(value: object, name: str) -> object:
    if not isinstance(value, Mapping) or name not in value:
        raise InvalidGrammar(f"missing field `{name}`")
    return value[name]


def _regex(value: object) -> Grammar:
    if not isinstance(value, str):
        raise InvalidGrammar("a regex must be a string")
    check_text(value)
    return Grammar(GrammarKind.REGEX, value)


def _schema(value: object, strict_tgi: bool) -> Grammar:
    if isinstance(value, str):
        value = read_schema(value)
    if not isinstance(value, dict):
        raise UnsupportedGrammar
    text = write_schema(value)
    if strict_tgi and "properties" not in value:
        raise InvalidGrammar("Grammar must have a 'properties' field")
    return Grammar(GrammarKind.JSON, text)
