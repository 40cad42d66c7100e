"""N-gram speculation: what followed the latest earlier occurrence of a row's longest suffix is likely to follow again.

Texts that quote, edit or extract their prompt repeat it. A lookup costs a few microseconds; a wrong draft costs a row of the step
that verifies it. Known as prompt lookup decoding (Saxena 2023); TGI's version looks up the first occurrence of the newest token
alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

SHORTEST, LONGEST = 2, 8
"""Shortest and longest suffix that is compared, in tokens."""
PLACES = 16
"""Maximum number of earlier places that are compared, latest first."""
READ_AT_ONCE = 4096
"""Maximum number of tokens that a lookup adds to the index, so that a long prompt does not hold up a step (it takes 1 µs per token)."""


class Match(NamedTuple):
    """A place in a text, right after `length` tokens that equal a row's newest."""

    length: int
    place: int


NO_MATCH = Match(0, 0)


class NgramIndex:
    """Places of every pair of tokens in a list that only grows."""

    __slots__ = ("_before", "_latest", "_size", "_tokens")

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tokens
        self._latest: dict[tuple[int, int], int] = {}
        """For each pair, the place after its latest occurrence."""
        self._before: list[int] = [0, 0]
        """For each place, the one after the previous occurrence of the pair before it; 0 if there is none."""
        self._size = 1

    def find(self) -> Match:
        """Return the place after the latest earlier occurrence of the longest suffix of the tokens."""
        tokens, size = self._tokens, len(self._tokens)
        if size < SHORTEST + 1:
            return NO_MATCH
        if self._size == size - 1:  # as in most steps: one token is new
            pair = tokens[-2], tokens[-1]
            place = self._latest.get(pair, 0)
            self._before.append(place)
            self._latest[pair] = self._size = size
        else:
            if self._size < size:
                self._read()
            place = self._before[size] if self._size == size else self._latest.get((tokens[-2], tokens[-1]), 0)
        if not place:
            return NO_MATCH
        longest, found, left = 0, 0, PLACES
        while place and left and longest < LONGEST:
            if place > longest and tokens[place - 1 - longest] == tokens[size - 1 - longest]:  # else no longer match ends here
                length = common(tokens, place, tokens)
                if length > longest:
                    longest, found = length, place
            place, left = self._before[place], left - 1
        return Match(longest, found)

    def drafts(self, place: int, count: int) -> tuple[int, ...]:
        """Return `count` tokens from `place` on. Past the end, they continue with the drafts themselves: the text may repeat
        itself more than once."""
        tokens = self._tokens
        found = list(tokens[place : place + count])
        while len(found) < count:
            found.append(found[place + len(found) - len(tokens)])
        return tuple(found)

    def places(self, pair: tuple[int, int]) -> Iterator[int]:
        """Yield the places after a pair, latest first, among the tokens indexed so far."""
        self._read()
        place = self._latest.get(pair, 0)
        while place:
            yield place
            place = self._before[place]

    def _read(self) -> None:
        """Index the pairs of new tokens, at most `READ_AT_ONCE`."""
        tokens, latest, before = self._tokens, self._latest, self._before
        place, end = self._size, min(len(tokens), self._size + READ_AT_ONCE)
        while place < end:
            pair = (tokens[place - 1], tokens[place])
            place += 1
            before.append(latest.get(pair, 0))
            latest[pair] = place
        self._size = place


def common(text: Sequence[int], place: int, tokens: Sequence[int]) -> int:
    """Number of equal tokens before `place` in a text and at the end of `tokens`, up to `LONGEST`. The last two are known to be equal."""
    length, last = SHORTEST, len(tokens) - 1
    most = min(LONGEST, place, len(tokens))
    while length < most and text[place - 1 - length] == tokens[last - length]:
        length += 1
    return length
