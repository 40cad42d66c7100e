"""Schemas as people write them: few are refused, and what is accepted is held or checked."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from jsonschema import validators

from tests.grammar.corpus import configuration_like, tool_like
from tests.grammar.schemas import json_grammar
from tests.grammar.walks import BYTES, walk
from tgi_core.grammar.checking import violation
from tgi_core.grammar.validation_worker import check_grammar

WALKS = 2


def complaints(schema: dict[str, Any]) -> list[str]:
    """What jsonschema says of responses that pass the masks and the check: nothing, if all is well."""
    grammar = json_grammar(schema)
    checked = check_grammar(BYTES, grammar)[1].checked
    validator = validators.validator_for(schema)(schema)
    found = []
    for seed in range(WALKS):
        text = walk(grammar, seed).decode()
        if not checked or not violation(grammar.source, text):
            found += [
                f"{error.message[:200]} at {error.json_path} of {text[:200]}" for error in validator.iter_errors(json.loads(text))
            ]
    return found


@pytest.mark.parametrize(("schemas", "share"), [(tool_like(150), 0.05), (configuration_like(100), 0.15)])
def test_few_are_refused_and_no_response_is_wrong(schemas: list[dict[str, Any]], share: float) -> None:
    """At most 5 % of tool-like schemas and 15 % of those of configuration files are refused. No response violates its schema, and no
    walk is stuck."""
    refused: Counter[str] = Counter()
    for schema in schemas:
        fault, _ = check_grammar(BYTES, json_grammar(schema))
        if fault:
            refused[fault[:60]] += 1
        else:
            assert complaints(schema) == [], json.dumps(schema)
    assert refused.total() <= share * len(schemas), refused
