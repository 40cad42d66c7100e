"""Protection against prompt injection by special tokens in user messages: they are tokenized as plain text and cannot end the
user's turn.

In a rendered prompt, the chat template's own `<|end|>` cannot be distinguished from one that a user wrote. So special tokens in
messages are replaced by placeholders before the template is rendered and restored afterwards. Their positions are recorded, and the
tokenizer encodes those spans as plain text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from secrets import randbelow

MAX_LITERALS = 1 << 14
"""Maximum number of special tokens as text per prompt; the tokenizer encodes each separately."""

Span = tuple[int, int]
"""Start and end, exclusive, in characters of a prompt."""


class LiteralTokens:
    """The special tokens of one model, as text."""

    def __init__(self, texts: Iterable[str]) -> None:
        longest_first = sorted((text for text in texts if text), key=len, reverse=True)
        self._written = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def hide(self) -> Hidden:
        """Start hiding special tokens for one prompt."""
        return Hidden(self._written)


class Hidden:
    """Special tokens removed from the messages of one prompt."""

    def __init__(self, written: re.Pattern[str] | None) -> None:
        self._written = written
        self._taken: list[str] = []
        self._nonce = randbelow(10**18)  # unguessable, and digits are unchanged by template filters

    def take(self, text: str) -> str:
        """Replace each special token in a text by a placeholder. Raises ValueError for too many."""
        return text if self._written is None else self._written.sub(self._mark, text)

    def _mark(self, found: re.Match[str]) -> str:
        if len(self._taken) == MAX_LITERALS:
            raise ValueError(f"the messages contain more than {MAX_LITERALS} special tokens as text")
        self._taken.append(found[0])
        return f"\ue000{self._nonce}.{len(self._taken) - 1}\ue001"

    def reveal(self, rendered: str) -> tuple[str, tuple[Span, ...]]:
        """Restore the special tokens in a rendered prompt. Returns the prompt and the spans to encode as plain text."""
        if not self._taken:
            return rendered, ()
        pieces: list[str] = []
        spans: list[Span] = []
        length = 0
        # every second piece is the number of a placeholder
        for place, piece in enumerate(re.split(f"\ue000{self._nonce}\\.(\\d+)\ue001", rendered)):
            shown = self._taken[int(piece)] if place % 2 else piece
            if place % 2:
                spans.append((length, length + len(shown)))
            pieces.append(shown)
            length += len(shown)
        return "".join(pieces), tuple(spans)
