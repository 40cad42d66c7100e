"""Guided decoding: vLLM's and SGLang's fields that constrain a response, as grammars in TGI's form."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tgi_router.bodies import GrammarShape
from tgi_router.errors import ValidationFailed
from tgi_router.openai_bodies import OpenAIBody

_TYPES = {"grammar": "ebnf"}
"""Names of fields that are not those of the type of grammar."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """A grammar and the field that asked for it."""

    field: str
    shape: GrammarShape


def constraint_of(body: OpenAIBody) -> Constraint | None:
    """Return the constraint that a request has beside `response_format`. Raises ValidationFailed for several."""
    found = list(_constraints(body))
    if len(found) > 1:
        raise ValidationFailed(f"give `{found[0].field}` or `{found[1].field}`, not both")
    return found[0] if found else None


def _constraints(body: OpenAIBody) -> Iterator[Constraint]:
    yield from _given("", guided_json=body.guided_json, guided_regex=body.guided_regex, guided_choice=body.guided_choice)
    yield from _given("", guided_grammar=body.guided_grammar, regex=body.regex, ebnf=body.ebnf)
    nested = body.structured_outputs
    if nested is None:
        return
    if nested.structural_tag is not None:
        raise ValidationFailed(
            "`structured_outputs.structural_tag` is not supported; use a JSON schema, a grammar or a regular expression"
        )
    parts = {"json": nested.json_value, "regex": nested.regex, "choice": nested.choice, "json_object": nested.json_object or None}
    yield from _given("structured_outputs.", **parts, grammar=nested.grammar)


def _given(prefix: str, **values: Any) -> Iterator[Constraint]:
    for name, value in values.items():
        if value is not None:
            yield Constraint(prefix + name, GrammarShape.model_validate(_shape(name.removeprefix("guided_"), value)))


def _shape(kind: str, value: Any) -> dict[str, Any]:
    if kind == "json_object":
        return {"type": "json_object"}
    if kind == "choice":
        if not value:
            raise ValidationFailed("a choice needs at least one text")
        return {"type": "regex", "value": "|".join(map(re.escape, value))}
    return {"type": _TYPES.get(kind, kind), "value": value}
