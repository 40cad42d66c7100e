"""The sources of one row's drafts, and their expected acceptance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
        """Return the place in a text that best matches the end of the tokens; `NO_MATCH` if none does."""

    def drafts(self, place: int, count: int) -> tuple[int, ...]:
        """Return up to `count` tokens of that text from `place` on."""


CERTAIN = 1 << 30
"""A match longer than any other: only this text can follow, though the model may spell it with other tokens."""
PROPOSED = 4
"""Match length that a speculator's guess counts as. Only longer matches are preferred to it."""


class ReportedTokens:
    """Tokens that, as the shard reports, follow a row's: forced by its grammar, or guessed by a speculator. They count as a match
    of `length` tokens."""

    __slots__ = ("_length", "_reported", "_size", "_tokens")

    def __init__(self, tokens: Sequence[int], length: int) -> None:
        self._tokens, self._length = tokens, length
        self._reported: tuple[int, ...] = ()
        self._size = 0

    def report(self, reported: tuple[int, ...]) -> None:
        """Note what follows the tokens read so far."""
        self._reported, self._size = reported, len(self._tokens)

    def find(self) -> Match:
        """Return a match if no token has been added since the report."""
        return Match(self._length, 0) if self._reported and self._size == len(self._tokens) else NO_MATCH

    def drafts(self, place: int, count: int) -> tuple[int, ...]:
        """Return up to `count` of them."""
        return self._reported[place : place + count]


FIRST_PAUSE, LONGEST_PAUSE = 4, 256
"""Tokens that a row generates between drafts that are not expected to pay."""


_PRIOR = 4
"""Number of drafts that the initial acceptance counts for."""
_LEAST_WEIGHT = 0.05
"""Weight of a draft in the moving average of all rows after many drafts."""


@dataclass(slots=True)
class Record:
    """Average acceptance of a source's drafts, which is expected of new rows."""

    acceptance: float
    seen: int = 0
    """Number of drafts that counted."""

    def note(self, accepted: int, failed: bool) -> None:
        """Record a row's drafts: those that were accepted, and whether the next one failed."""
        tried = accepted + failed
        self.seen += tried
        weight = max(1 - (1 - _LEAST_WEIGHT) ** tried, tried / (_PRIOR + self.seen))
        self.acceptance += weight * (accepted / tried - self.acceptance)


@dataclass(slots=True)
class Outlook:
    """Expected acceptance of a source's drafts for a row."""

    acceptance: float
    """Moving average over drafts, of which those after the first that failed do not count: the chance that the next one is accepted."""
    common: Record
    proven: bool = False
    """Whether some were accepted lately. If not, no more is expected than of other rows."""
    again: int = 0
    """Number of the row's tokens from which on it may get drafts again."""
    pause: int = FIRST_PAUSE
    """Tokens to wait if the next drafts fail, too."""

    @property
    def expected(self) -> float:
        """The chance that a draft is accepted."""
        return self.acceptance if self.proven else min(self.acceptance, self.common.acceptance)

    def note(self, accepted: int, failed: bool, weight: float) -> None:
        """Record the drafts that were accepted, and whether the next one failed; each has this weight in the average."""
        tried = accepted + failed
        self.acceptance += (1 - (1 - weight) ** tried) * (accepted / tried - self.acceptance)
        self.common.note(accepted, failed)
        if accepted:
            self.again, self.pause, self.proven = 0, max(FIRST_PAUSE, self.pause // 4), True

    def fall_back(self, size: int) -> None:
        """Wait after drafts that failed, longer each time; the row has `size` tokens."""
        self.again, self.pause, self.proven = size + self.pause, min(LONGEST_PAUSE, 2 * self.pause), False


@dataclass(slots=True)
class Guesses:
    """A source of a row's drafts. Long matches are right far more often than short ones, so each has its own outlook."""

    source: DraftSource
    proposer: Proposer
    short: Outlook
    long: Outlook

    def outlook(self, match: Match) -> Outlook:
        """Return the outlook of a match."""
        return self.long if match.length >= PROPOSED else self.short


@dataclass(slots=True)
class RowDrafts:
    """The sources of a row's drafts, the preferred ones first."""

    sources: tuple[Guesses, ...]
    chosen: Guesses | None = None
    """Where the drafts of a launched step come from."""
    outlook: Outlook | None = None
    """What was expected of them."""
    probe: bool = False
    """Whether they were not expected to pay."""
    waited: bool = False
    """Whether the row sat out a step for a probe, or was asked to propose drafts for one."""
    again: int = 0
    """Number of the row's tokens from which on sources are asked again."""

    def find(self, source: DraftSource) -> Guesses | None:
        """Return that source; None if the row does not have it."""
        return next((each for each in self.sources if each.source is source), None)
