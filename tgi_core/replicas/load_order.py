"""Replicas in the order of their work."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

_NUMBER_BITS = 16
_NUMBER = (1 << _NUMBER_BITS) - 1
_PARTS = 16
"""Work is told apart by this fraction of a token."""
_LEAST_BUSY = 32


class LoadOrder:
    """At most 65,536 replicas sorted by work, the least busy first, and equally busy ones by number."""

    def __init__(self) -> None:
        self.least_busy = 0
        """The 32 least busy replicas, as bits."""
        self._keys: list[int] = []
        """Sorted: the work of each replica in its high bits, its number in the low ones."""
        self._key_of: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[int]:
        for key in self._keys:
            yield key & _NUMBER

    @property
    def first(self) -> int:
        """The replica with the least work. Raises IndexError if there is none."""
        return self._keys[0] & _NUMBER

    @property
    def last(self) -> int:
        """The replica with the most work. Raises IndexError if there is none."""
        return self._keys[-1] & _NUMBER

    def put(self, replica: int, work: float) -> None:
        """Add a replica, or move it to where its work, in tokens, belongs."""
        keys, key = self._keys, int(work * _PARTS) << _NUMBER_BITS | replica
        known = self._key_of.get(replica)
        if key == known:
            return
        if known is not None:
            self.remove(replica)
        self._key_of[replica] = key
        place = bisect_left(keys, key)
        keys.insert(place, key)
        if place < _LEAST_BUSY:
            self.least_busy |= 1 << replica
            if len(keys) > _LEAST_BUSY:
                self.least_busy ^= 1 << (keys[_LEAST_BUSY] & _NUMBER)

    def remove(self, replica: int) -> None:
        """Remove a replica. Raises KeyError if it is not there."""
        keys = self._keys
        place = bisect_left(keys, self._key_of.pop(replica))
        del keys[place]
        if place < _LEAST_BUSY:
            self.least_busy ^= 1 << replica
            if len(keys) >= _LEAST_BUSY:
                self.least_busy |= 1 << (keys[_LEAST_BUSY - 1] & _NUMBER)
