"""Drafts from a text that the client expects the answer to contain, as in OpenAI's predicted outputs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from tgi_core.scheduler.ngram import NO_MATCH, SHORTEST, Match, NgramIndex, common

_PLACES = 64
"""Maximum number of places that are compared once the answer has left the prediction."""


class Prediction:
    """A prediction, and the place in it that the answer has reached. Once the answer differs, its longest suffix is looked up in
    the prediction; of equally long matches, the next one ahead is preferred."""

    __slots__ = ("_answer", "_equal", "_index", "_place", "_read", "_tokens", "accepted", "rejected")

    def __init__(self, tokens: tuple[int, ...], answer: Sequence[int]) -> None:
        """`answer` is a list that only grows; so far, it is the prompt."""
        self._tokens = tokens
        self._answer = answer
        self._read = len(answer)
        self._place = 0
        self._equal: int | None = 0
        """Number of tokens before the place that match the answer; None once the answer has left the prediction."""
        self._index: NgramIndex | None = None
        """Created when the answer first differs."""
        self.accepted = 0
        """Number of its tokens that were drafted and accepted."""
        self.rejected = 0
        """Number of its tokens that were drafted and not accepted."""

    def find(self) -> Match:
        """Return the place in the prediction that the answer has reached."""
        for token in self._answer[self._read :]:
            self._follow(token)
        self._read = len(self._answer)
        if self._equal is None:
            self._find_again()
        if not self._equal or self._place >= len(self._tokens):
            return NO_MATCH
        return Match(self._equal, self._place)

    def drafts(self, place: int, count: int) -> tuple[int, ...]:
        """Return up to `count` tokens from `place` on."""
        return self._tokens[place : place + count]

    def _follow(self, token: int) -> None:
        if self._equal is None:
            return
        if self._place < len(self._tokens) and self._tokens[self._place] == token:
            self._place += 1
            self._equal += 1
        else:
            self._equal = None

    def _find_again(self) -> None:
        answer = self._answer
        if len(answer) < SHORTEST:
            return
        if self._index is None:
            self._index = NgramIndex(self._tokens)
        found = [
            (common(self._tokens, place, answer), place >= self._place, -place)
            for place in islice(self._index.places((answer[-2], answer[-1])), _PLACES)
        ]
        if found:
            self._equal, _, place = max(found)
            self._place = -place
