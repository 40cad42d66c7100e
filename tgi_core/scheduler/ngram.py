"""N-gram speculation: what followed the latest earlier place of a row's longest suffix is likely to follow again.

Texts that quote, edit or extract their prompt repeat it. A lookup costs a few microseconds; a wrong draft costs a row of the step that
verifies it. Known as prompt lookup decoding (Saxena 2023); TGI's looks for the first place of the newest token alone.
"""

from __future__ import annotations

from collections.abc import Sequence

SHORTEST, LONGEST = 2, 8
"""Tokens of a suffix that are compared."""
_PLACES = 16
"""Maximum number of earlier places that are compared, latest first."""


class NgramIndex:
    """Places of every pair of tokens in a growing sequence."""

    __slots__ = ("_before", "_latest", "_size")

    def __init__(self) -> None:
        self._latest: dict[tuple[int, int], int] = {}
        """For each pair, the place after its latest occurrence."""
        self._before: list[int] = [0, 0]
        """For each place, the one after the previous occurrence of the pair before it; 0 if there is none."""
        self._size = 1

    def propose(self, tokens: Sequence[int], most: int) -> tuple[int, ...]:
        """Return `most` drafts for what follows `tokens`, which only grow from call to call; none if no suffix of at least `SHORTEST`
        tokens occurred before."""
        size = len(tokens)
        if size < SHORTEST + 1 or most < 1:
            return ()
        self._read(tokens)
        place = self._before[size]
        best, longest = 0, 0
        for _ in range(_PLACES):
            if not place:
                break
            length = _common(tokens, place)
            if length > longest:
                best, longest = place, length
                if longest >= LONGEST:
                    break
            place = self._before[place]
        return _following(tokens, best, most) if best else ()

    def _read(self, tokens: Sequence[int]) -> None:
        latest, before = self._latest, self._before
        for place in range(self._size + 1, len(tokens) + 1):
            pair = (tokens[place - 2], tokens[place - 1])
            before.append(latest.get(pair, 0))
            latest[pair] = place
        self._size = max(self._size, len(tokens))


def _following(tokens: Sequence[int], place: int, count: int) -> tuple[int, ...]:
    """The `count` tokens from `place` on. Behind the last one, the text goes on as it did: it may repeat itself more than once."""
    found = list(tokens[place : place + count])
    while len(found) < count:
        found.append(found[place + len(found) - len(tokens)])
    return tuple(found)


def _common(tokens: Sequence[int], place: int) -> int:
    """Number of equal tokens before `place` and before the end, up to `LONGEST`."""
    length, last = SHORTEST, len(tokens) - 1
    while length < LONGEST and length < place and tokens[place - 1 - length] == tokens[last - length]:
        length += 1
    return length
