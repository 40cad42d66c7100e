"""Schemas and regular expressions as clients write them, for hypothesis; every answer under them is short."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from tgi_core.grammar import Grammar, GrammarKind, parse_grammar

Schema = dict[str, Any]

_names = st.sampled_from(["a", "name", "id", "größe", "x y", 'q"', "n_1"])
_integers = st.builds(
    lambda low, width: {"type": "integer", "minimum": low, "maximum": low + width}, st.integers(-50, 999), st.integers(0, 2000)
)
_strings = st.builds(
    lambda low, more: {"type": "string", "minLength": low, "maxLength": low + more}, st.integers(0, 3), st.integers(0, 5)
)
_patterns = st.sampled_from(["^[a-z]{1,4}$", "^(yes|no)$", "^\\d{2}-\\d{2}$", "^[A-Z][a-z]?$"]).map(
    lambda text: {"type": "string", "pattern": text}
)
_formats = st.sampled_from(["date", "time", "ipv4", "uuid", "date-time"]).map(lambda name: {"type": "string", "format": name})
_values: st.SearchStrategy[Any] = st.sampled_from(
    [1, -2.5, "v", "größe", None, True, {"a": [1]}, [], "long text, with: punctuation"]
)
_enums = st.lists(_values, min_size=1, max_size=4, unique_by=repr).map(lambda values: {"enum": values})
_plain = st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"const": "fixed"}, {"type": ["boolean", "null"]}])
_leaves: st.SearchStrategy[Schema] = st.one_of(_integers, _strings, _patterns, _formats, _enums, _plain)


def _objects(children: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    def build(properties: dict[str, Schema], kept: set[str], closed: bool) -> Schema:
        schema: Schema = {"type": "object", "properties": properties, "required": [name for name in properties if name in kept]}
        return schema | ({"additionalProperties": False} if closed else {})

    return st.builds(build, st.dictionaries(_names, children, min_size=1, max_size=3), st.sets(_names), st.booleans())


def _arrays(children: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    return st.builds(
        lambda items, low, more: {"type": "array", "items": items, "minItems": low, "maxItems": low + more},
        children,
        st.integers(0, 2),
        st.integers(0, 2),
    )


def _unions(children: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    return st.lists(children, min_size=1, max_size=3).map(lambda options: {"anyOf": options})


schemas: st.SearchStrategy[Schema] = st.recursive(
    _leaves, lambda children: _objects(children) | _arrays(children) | _unions(children), max_leaves=6
)

_atoms = st.sampled_from(["a", "b", "[a-c]", "\\d", "é", "[^x]", "yes", "\\.", "(?:no|on)", "\\w"])
regexes: st.SearchStrategy[str] = st.recursive(
    _atoms,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})"),
        st.builds(lambda part, count: f"(?:{part}){{0,{count}}}", inner, st.integers(1, 3)),
        inner.map(lambda part: f"(?:{part})?"),
    ),
    max_leaves=6,
)


def json_grammar(schema: Schema) -> Grammar:
    """The grammar of a schema."""
    grammar = parse_grammar({"type": "json", "value": schema})
    assert grammar is not None
    return grammar


def regex_grammar(regex: str) -> Grammar:
    """The grammar of a regular expression."""
    grammar = parse_grammar({"type": "regex", "value": regex})
    assert grammar is not None
    return grammar


grammars = st.one_of(schemas.map(json_grammar), regexes.map(regex_grammar))


def check_answer(grammar: Grammar, text: str) -> None:
    """Fails unless `text` is what the grammar asks for, by the report of `jsonschema` and `re`."""
    if grammar.kind is GrammarKind.REGEX:
        assert re.fullmatch(grammar.source, text), (grammar.source, text)
    else:
        schema = json.loads(grammar.source)
        Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER).validate(json.loads(text))
