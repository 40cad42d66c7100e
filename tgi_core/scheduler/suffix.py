"""Suffix speculation: after the same tokens, an answer may continue like an earlier one.

Agents and batch jobs often send similar requests. Only answers to requests with the same salt are compared, as in the prefix cache.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from tgi_core.scheduler.ngram import LONGEST, NO_MATCH, PLACES, SHORTEST, Match

SIZE = 1 << 18
"""Number of tokens of answers that are kept. With their index, they take 28 bytes each."""


class EarlierAnswers:
    """The latest `size` tokens of finished answers, in a ring. As in deflate's hash chains, each place links to the previous one after
    an equal pair of tokens, and new tokens overwrite the oldest.

    Places count all tokens so far. An entry without a salt follows each answer.
    """

    def __init__(self, size: int = SIZE) -> None:
        self._size = size
        self._end = 0
        self._tokens = array("I", bytes(4 * size))
        self._salts: list[str | None] = [None] * size
        """The salt of each token's request."""
        self._latest = array("Q", bytes(8 * size))
        """By hash, the place after the latest pair with that hash; 0 if there is none."""
        self._before = array("Q", bytes(8 * size))
        """For each place, the one after the previous pair with the same hash; 0 if there is none."""

    def add(self, salt: str, answer: Sequence[int]) -> None:
        """Add a finished answer. If it is longer than the ring, only its end is kept."""
        answer = answer[1 - self._size :]
        for index, token in enumerate(answer):
            self._append(token, salt)
            if index:
                self._link(self._bucket(salt, answer[index - 1], token))
        self._append(0, None)

    def find(self, salt: str, tokens: Sequence[int]) -> Match:
        """Return the place after the latest occurrence of the longest suffix of `tokens` in an answer with that salt."""
        if len(tokens) < SHORTEST or not (place := self._latest[hash((salt, tokens[-2], tokens[-1])) % self._size]):
            return NO_MATCH
        size, known, before = self._size, self._tokens, self._before
        longest, found, most, left = 0, 0, min(LONGEST, len(tokens)), PLACES
        oldest = max(0, self._end - size)
        first, last = oldest + SHORTEST, tokens[-1]
        while place >= first and left and longest < most:
            slot = place % size
            if known[slot - 1 - longest] == last and self._salts[slot] is not None:  # else no longer match ends here
                length = self._common(salt, slot, tokens, min(most, place - oldest))
                if length > longest:
                    longest, found = length, place
                    last = tokens[-1 - longest] if longest < most else -1
            place, left = before[slot], left - 1
        return Match(longest, found)

    def drafts(self, place: int, count: int) -> tuple[int, ...]:
        """Return up to `count` tokens from `place` to the end of its answer."""
        found: list[int] = []
        while len(found) < count and self._salts[place % self._size] is not None:
            found.append(self._tokens[place % self._size])
            place += 1
        return tuple(found)

    def _append(self, token: int, salt: str | None) -> None:
        slot = self._end % self._size
        self._tokens[slot], self._salts[slot] = token, salt
        self._end += 1

    def _link(self, bucket: int) -> None:
        self._before[self._end % self._size] = self._latest[bucket]
        self._latest[bucket] = self._end

    def _bucket(self, salt: str, first: int, second: int) -> int:
        return hash((salt, first, second)) % self._size

    def _common(self, salt: str, slot: int, tokens: Sequence[int], most: int) -> int:
        """Number of equal tokens before a slot and at the end of `tokens`, from `SHORTEST` to `most`; else 0. Negative slots are
        counted from the end of the ring."""
        salts, known, length = self._salts, self._tokens, 0
        while length < most and known[slot - 1 - length] == tokens[-1 - length] and salts[slot - 1 - length] == salt:
            length += 1
        return length if length >= SHORTEST else 0


class SuffixProposer:
    """Looks up the end of one row's tokens, a list that only grows, in earlier answers to requests with its salt."""

    __slots__ = ("_answers", "_salt", "_tokens")

    def __init__(self, answers: EarlierAnswers, salt: str, tokens: Sequence[int]) -> None:
        self._answers, self._salt, self._tokens = answers, salt, tokens

    def find(self) -> Match:
        """See `EarlierAnswers.find`."""
        return self._answers.find(self._salt, self._tokens)

    def drafts(self, place: int, count: int) -> tuple[int, ...]:
        """See `EarlierAnswers.drafts`."""
        return self._answers.drafts(place, count)
