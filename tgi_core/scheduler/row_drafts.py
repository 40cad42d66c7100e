"""What one row's drafts are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from tgi_core.scheduler.ngram import NO_MATCH, Match


class DraftSource(Enum):
    """Where drafts come from, the preferred ones first."""

    GRAMMAR = "grammar"
    PREDICTION = "prediction"
    NGRAM = "ngram"
    SUFFIX = "suffix"


class Proposer(Protocol):
    """Proposes what may follow a row's tokens."""

    def find(self) -> Match:
        """Return the place in a text that fits the end of the tokens best; `NO_MATCH` if none does."""

    def drafts(self, place: int, count: int) -> tuple[int, ...]:
        """Return up to `count` tokens of that text from `place` on."""


class ForcedTokens:
    """Tokens that a row's grammar forces, as reported by the shard. The model may spell the same text with other tokens."""

    __slots__ = ("_forced", "_size", "_tokens")

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tokens
        self._forced: tuple[int, ...] = ()
        self._size = 0

    def force(self, forced: tuple[int, ...]) -> None:
        """Note what must follow the tokens read so far."""
        self._forced, self._size = forced, len(self._tokens)

    def find(self) -> Match:
        """Return a match that is longer than any other while the tokens are those that the shard knew."""
        return Match(len(self._tokens) + 1, 0) if self._forced and self._size == len(self._tokens) else NO_MATCH

    def drafts(self, place: int, count: int) -> tuple[int, ...]:
        """Return up to `count` of them."""
        return self._forced[place : place + count]


_FIRST_ACCEPTANCE = {
    DraftSource.GRAMMAR: 0.9,
    DraftSource.PREDICTION: 0.8,
    DraftSource.NGRAM: 0.5,
    DraftSource.SUFFIX: 0.5,
}


@dataclass(slots=True)
class RowDrafts:
    """The proposers of a row, the preferred ones first, and the share of their drafts that was accepted lately."""

    proposers: dict[DraftSource, Proposer]
    source: DraftSource = DraftSource.NGRAM
    """Source of the drafts in a launched step."""
    acceptance: dict[DraftSource, float] = field(default_factory=_FIRST_ACCEPTANCE.copy)
    """Moving averages."""
