"""Drafters: the sources of one row's drafts and their recent acceptance."""

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
    MODEL = "model"
    NGRAM = "ngram"
    SUFFIX = "suffix"


class Proposer(Protocol):
    """Proposes what may follow a row's tokens."""

    def find(self) -> Match:
        """Return the place in a text that fits the end of the tokens best; `NO_MATCH` if none does."""

    def drafts(self, place: int, count: int) -> tuple[int, ...]:
        """Return up to `count` tokens of that text from `place` on."""


CERTAIN = 1 << 30
"""A match longer than any other: only these tokens can follow, though the model may spell the same text with others."""
PROPOSED = 4
"""Tokens that a suffix must have in common with a text for that to count as a better guess than a speculator's."""


class ReportedTokens:
    """Tokens that follow a row's as the shard reports: those that its grammar forces, or those that a speculator guesses. They count as a
    match of `length` tokens."""

    __slots__ = ("_length", "_reported", "_size", "_tokens")

    def __init__(self, tokens: Sequence[int], length: int) -> None:
        self._tokens, self._length = tokens, length
        self._reported: tuple[int, ...] = ()
        self._size = 0

    def report(self, reported: tuple[int, ...]) -> None:
        """Note what follows the tokens read so far."""
        self._reported, self._size = reported, len(self._tokens)

    def find(self) -> Match:
        """Return a match while the tokens are those that the shard knew."""
        return Match(self._length, 0) if self._reported and self._size == len(self._tokens) else NO_MATCH

    def drafts(self, place: int, count: int) -> tuple[int, ...]:
        """Return up to `count` of them."""
        return self._reported[place : place + count]


_FIRST_ACCEPTANCE = {
    DraftSource.GRAMMAR: 0.9,
    DraftSource.PREDICTION: 0.8,
    DraftSource.MODEL: 0.6,
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
