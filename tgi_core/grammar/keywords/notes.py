"""What a rewriting notes down: the root of the schema, and what its masks do not hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Notes:
    """`checked`: keywords that only a check of the complete response can hold. `formats`: unknown formats, which nothing holds.
    Both are in the order of their first appearance; the values mean nothing."""

    root: dict[str, Any]
    checked: dict[str, None] = field(default_factory=dict)
    formats: dict[str, None] = field(default_factory=dict)

    def check(self, keyword: str) -> None:
        """Note that a keyword must be checked."""
        self.checked[keyword] = None
