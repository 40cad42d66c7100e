"""`unevaluatedItems` and `unevaluatedProperties`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tgi_core.grammar.keywords.notes import Notes

_SPREADING = ("allOf", "anyOf", "oneOf", "if", "$ref")
"""Keywords whose subschemas may evaluate items and properties elsewhere."""


def rewrite_unevaluated(node: dict[str, Any], notes: Notes, keyword: str, plain: str, beside: Collection[str]) -> dict[str, Any]:
    """Replace a keyword by its plain form, which means the same if no other keyword of the node evaluates anything; otherwise note a
    check. `beside` lists such other keywords for this type."""
    kept = dict(node)
    given = kept.pop(keyword)
    if given is True or given == {}:
        return kept
    if any(key in node for key in (*_SPREADING, *beside)):
        notes.check(keyword)
        return kept
    return {plain: given, **kept}
