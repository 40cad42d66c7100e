"""The notes of a rewriting: the schema's root, and what masks do not enforce."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Notes:
    """`checked`: keywords that only a check of the complete response can enforce. `formats`: unknown formats, which nothing enforces.
    Both keep the order of first appearance; their values mean nothing."""

    root: dict[str, Any]
    checked: dict[str, None] = field(default_factory=dict)
    formats: dict[str, None] = field(default_factory=dict)

    def check(self, keyword: str) -> None:
        """Note that a keyword must be checked."""
        self.checked[keyword] = None
