"""Schemas that refer to themselves: what could never end is refused or left out before anything is generated."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.grammar.schemas import json_grammar
from tgi_core.grammar import InvalidGrammar, matching
from tgi_core.grammar.finite import without_endless
from tgi_core.grammar.validation_worker import check_grammar

BYTES = matching.bytes_vocabulary()
ITSELF = {"a": {"$ref": "#/$defs/a"}}
EACH_OTHER = {"a": {"$ref": "#/$defs/b"}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}}
A = {"$ref": "#/$defs/a"}


def needing(name: str, schema: Any) -> dict[str, Any]:
    """An object that must have a property."""
    return {"type": "object", "properties": {name: schema}, "required": [name]}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"anyOf": [{"$ref": "#"}]},
        {**A, "$defs": EACH_OTHER},
        {**needing("x", A), "$defs": ITSELF},
        {**needing("x", A), "$defs": {"a": needing("y", A)}},
        needing("next", {"$ref": "#"}),
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
        {"type": "array", "prefixItems": [{"type": "null"}, A], "minItems": 2, "$defs": ITSELF},
        {**needing("x", A), "$defs": {"a": {"anyOf": [A, {"$ref": "#/$defs/b"}]}, "b": needing("y", A)}},
    ],
)
def test_what_cannot_end_is_refused(schema: dict[str, Any]) -> None:
    """A schema whose references lead only back to themselves is invalid before anything is generated."""
    with pytest.raises(InvalidGrammar, match="no finite value can match it"):
        without_endless(schema)
    fault, _ = check_grammar(BYTES, json_grammar(schema))
    assert fault.startswith("no finite value can match it")


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
        needing("next", {"anyOf": [{"$ref": "#"}, {"type": "null"}]}),
        {"type": "object", "properties": {"next": {"$ref": "#"}}},
        {"type": "array", "items": {"$ref": "#"}},
        {
            "$ref": "#/$defs/a0",
            "$defs": {f"a{n}": {"$ref": f"#/$defs/a{n + 1}"} for n in range(800)} | {"a800": {"type": "null"}},
        },
    ],
)
def test_what_can_end_stays(schema: dict[str, Any]) -> None:
    """Recursion with a way out is left alone."""
    assert without_endless(schema) == schema
    assert check_grammar(BYTES, json_grammar(schema))[0] == ""


@pytest.mark.parametrize("reference", [5, None, [], {}, ["a", 5]])
def test_references_that_are_no_text(reference: Any) -> None:
    """They are a fault of the schema, whatever their type."""
    assert check_grammar(BYTES, json_grammar({"properties": {"a": {"$ref": reference}, "b": A}, "$defs": ITSELF}))[0]


@pytest.mark.parametrize(
    ("schema", "left"),
    [
        ({"type": "object", "properties": {"x": A, "y": {"type": "null"}}}, {"properties": {"x": False, "y": {"type": "null"}}}),
        ({"type": "array", "items": A}, {"items": False}),
        ({"anyOf": [A, {"type": "null"}]}, {"anyOf": [False, {"type": "null"}]}),
    ],
)
def test_what_can_be_avoided_is_left_out(schema: dict[str, Any], left: dict[str, Any]) -> None:
    """An answer cannot enter a part that it could not leave."""
    assert without_endless({**schema, "$defs": ITSELF}) == {**schema, **left, "$defs": {"a": False}}


_references = st.sampled_from(["#", "#/$defs/a", "#/$defs/b", "#/$defs/c"]).map(lambda target: {"$ref": target})
_nodes: st.SearchStrategy[Any] = st.recursive(
    _references | st.just({"type": "null"}),
    lambda children: st.one_of(
        st.lists(children, min_size=1, max_size=2).map(lambda options: {"anyOf": options}),
        st.builds(lambda child, must: {**needing("x", child), "required": ["x"] * must}, children, st.booleans()),
        st.builds(lambda child, least: {"type": "array", "items": child, "minItems": least}, children, st.integers(0, 1)),
    ),
    max_leaves=4,
)


@given(root=_nodes, definitions=st.fixed_dictionaries({"a": _nodes, "b": _nodes, "c": _nodes}), turns=st.randoms())
@settings(deadline=None, max_examples=100)
def test_no_walk_is_stuck(root: dict[str, Any], definitions: dict[str, Any], turns: Any) -> None:
    """What is accepted never leads to a place where nothing is allowed, whatever bytes are chosen."""
    grammar = json_grammar({**root, "$defs": definitions})
    fault, _ = check_grammar(BYTES, grammar)
    if fault:
        assert fault.startswith(("no finite value can match it", "circular references", "it is too complex")), fault
        return
    matcher = matching.start(BYTES, matching.translate(grammar).text)
    ending = set(BYTES.eos_tokens)
    for _ in range(60):
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        allowed = [token for token in range(BYTES.vocab_size) if mask >> token & 1]
        assert allowed and not matcher.is_error(), json.loads(grammar.source)
        chosen = turns.choice(allowed)
        if chosen in ending:
            return
        matcher.consume_token(chosen)
