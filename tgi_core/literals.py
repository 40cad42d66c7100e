"""Special tokens that a user has written: text like any other, which must not end the turn that it stands in.

A prompt is one string, in which a template's own `<|end|>` cannot be told from a user's. So the user's are taken out before the template
sees the message, and put back where they then are, with a note of the place; the tokenizer reads those places as plain text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from secrets import randbelow

MAX_LITERALS = 1 << 14
"""Special tokens that the messages of one prompt may hold as text: each costs the tokenizer a text of its own."""

Span = tuple[int, int]
"""Where in a prompt, in characters: the first, and that after the last."""


class LiteralTokens:
    """The special tokens of one model, as they are written."""

    def __init__(self, texts: Iterable[str]) -> None:
        longest_first = sorted((text for text in texts if text), key=len, reverse=True)
        self._written = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def hide(self) -> Hidden:
        """For one prompt."""
        return Hidden(self._written)


class Hidden:
    """What was taken out of the messages of one prompt."""

    def __init__(self, written: re.Pattern[str] | None) -> None:
        self._written = written
        self._taken: list[str] = []
        self._nonce = randbelow(10**18)  # digits, which no filter of a template changes, and nobody can guess

    def take(self, text: str) -> str:
        """The text with a mark for each special token in it. Raises ValueError for too many."""
        return text if self._written is None else self._written.sub(self._mark, text)

    def _mark(self, found: re.Match[str]) -> str:
        if len(self._taken) == MAX_LITERALS:
            raise ValueError(f"the messages hold more than {MAX_LITERALS} special tokens as text")
        self._taken.append(found[0])
        return f"\ue000{self._nonce}.{len(self._taken) - 1}\ue001"

    def reveal(self, rendered: str) -> tuple[str, tuple[Span, ...]]:
        """The prompt as it is meant, and where the tokens are that are only text."""
        if not self._taken:
            return rendered, ()
        pieces: list[str] = []
        spans: list[Span] = []
        length = 0
        # every second piece is the number of a mark
        for place, piece in enumerate(re.split(f"\ue000{self._nonce}\\.(\\d+)\ue001", rendered)):
            shown = self._taken[int(piece)] if place % 2 else piece
            if place % 2:
                spans.append((length, length + len(shown)))
            pieces.append(shown)
            length += len(shown)
        return "".join(pieces), tuple(spans)
