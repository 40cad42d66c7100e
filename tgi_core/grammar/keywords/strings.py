"""`pattern` and `format`."""

from __future__ import annotations

import re
from typing import Any

from tgi_core.grammar.keywords.notes import Notes

FORMATS = frozenset(("date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"))
"""Formats that masks enforce."""
_BEYOND = re.compile(r"\(\?(?:[=!>]|<[=!])|(?<!\\)(?:\\\\)*\\[1-9bBkGzZ]")
"""Look-around, backreferences and word boundaries, which llguidance's finite automata lack."""


def compiles(pattern: object) -> bool:
    """Return whether a pattern uses only what llguidance may compile."""
    return isinstance(pattern, str) and _BEYOND.search(pattern) is None


def rewrite_strings(node: dict[str, Any], notes: Notes) -> dict[str, Any]:
    """Drop patterns that cannot be enforced, and unknown formats."""
    dropped = set()
    if isinstance(node.get("pattern"), str) and not compiles(node["pattern"]):
        notes.check("pattern")
        dropped.add("pattern")
    named = node.get("format")
    if isinstance(named, str) and named not in FORMATS:
        notes.formats[named] = None
        dropped.add("format")
    return {key: value for key, value in node.items() if key not in dropped} if dropped else node
