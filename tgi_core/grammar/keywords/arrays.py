"""`uniqueItems`, `contains` and `unevaluatedItems`."""

from __future__ import annotations

from itertools import combinations, permutations
from typing import Any

from tgi_core.grammar.keywords.merging import NotSimple, merge
from tgi_core.grammar.keywords.notes import Notes
from tgi_core.grammar.keywords.unevaluated import rewrite_unevaluated
from tgi_core.grammar.keywords.values import exact_values, types_of

_PERMUTED = 4
"""Maximum number of values whose permutations are listed: 4 values have 65."""
_COMBINED = 7
"""Maximum number of values whose subsets are listed, in the order of the schema: 7 values have 128."""
_MOST_CONTAINED = 8


def rewrite_arrays(node: dict[str, Any], notes: Notes) -> dict[str, Any]:
    """Rewrite the keywords of arrays."""
    if "unevaluatedItems" in node:
        node = rewrite_unevaluated(node, notes, "unevaluatedItems", "items", ("contains",))
    if any(key in node for key in ("contains", "minContains", "maxContains")):
        node = _contain(node, notes)
    if node.get("uniqueItems") is True:
        node = _unique({key: value for key, value in node.items() if key != "uniqueItems"}, notes)
    return node


def _contain(node: dict[str, Any], notes: Notes) -> dict[str, Any]:
    """Require the items that the array must contain to come first."""
    kept = {key: value for key, value in node.items() if key not in ("contains", "minContains", "maxContains")}
    if "contains" not in node:
        return kept
    least, most = node.get("minContains", 1), node.get("maxContains")
    if most is not None:
        notes.check("maxContains")
    if not isinstance(least, int) or least > _MOST_CONTAINED or "prefixItems" in node or isinstance(node.get("items"), list):
        notes.check("contains")
        return kept
    if least == 0:
        return kept
    try:
        first = merge(node["contains"], node.get("items", True))
    except NotSimple:
        notes.check("contains")
        return kept
    return {**kept, "prefixItems": [first] * least, "minItems": max(least, node.get("minItems", 0))}


def _unique(node: dict[str, Any], notes: Notes) -> dict[str, Any]:
    """List all arrays of unique items if there are few values. With fewer than two items, there is nothing to do."""
    most = node.get("maxItems")
    if isinstance(most, int) and most < 2:
        return node
    values = None if "prefixItems" in node else exact_values(node.get("items", True), notes.root)
    if values is None or types_of(node, notes.root) != {"array"}:
        notes.check("uniqueItems")
        return node
    if len(values) > _COMBINED:
        notes.check("uniqueItems")
        return node | {"maxItems": min(len(values), most) if isinstance(most, int) else len(values)}
    least = node.get("minItems", 0)
    arrays = _arrays(values, least if isinstance(least, int) else 0, most if isinstance(most, int) else len(values))
    return {key: value for key, value in node.items() if key not in ("items", "minItems", "maxItems", "type")} | {"enum": arrays}


def _arrays(values: list[Any], least: int, most: int) -> list[list[Any]]:
    arrange = permutations if len(values) <= _PERMUTED else combinations
    lengths = range(least, min(most, len(values)) + 1)
    return [list(array) for length in lengths for array in arrange(values, length)]
