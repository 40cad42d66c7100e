"""Incremental detokenization: token ids to text, in complete characters."""

from __future__ import annotations

from collections.abc import Sequence

from tgi_core.tokenizer import Tokenizer

_REPLACEMENT = "�"
_CONTEXT = 4
"""Number of prompt tokens decoded together with the first new one, since some decoders treat the start of a text specially."""


class Detokenizer:
    """The text that each token adds. The pieces, with `flush` at the end, add up to the text of all tokens.

    A piece is held back while it ends in an incomplete character. Only tokens since the piece before the last are decoded.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        context = list(prompt[-_CONTEXT:])
        if tokenizer.decode(context).endswith(_REPLACEMENT):
            context = []
        self._ids = context
        self._read = len(context)
        """Number of tokens in `_ids` whose text has been returned."""

    def push(self, token: int) -> str:
        """Return the text that `token` completes; "" while a character is incomplete. Between complete characters, this is a table
        lookup."""
        if self._read and self._read == len(self._ids):
            piece = self._tokenizer.piece(token)
            if piece is not None:
                self._ids, self._read = [token], 1
                return piece
        self._ids.append(token)
        text = self._unread_text()
        if text.endswith(_REPLACEMENT):
            return ""
        self._ids = self._ids[self._read :] if text else self._ids
        self._read = len(self._ids)
        return text

    def flush(self) -> str:
        """Return the text held back, with incomplete characters as U+FFFD."""
        text = self._unread_text()
        self._read = len(self._ids)
        return text

    def _unread_text(self) -> str:
        before = self._tokenizer.decode(self._ids[: self._read])
        return self._tokenizer.decode(self._ids)[len(before) :]
