"""Requests that wait for their first step, or to be continued."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import islice

from tgi_core.scheduler.sequence import Sequence


class WaitingQueue:
    """Sequences by rank; one that is sent back finds its place again."""

    def __init__(self) -> None:
        self._order: list[tuple[float, int]] = []
        self._waiting: dict[int, Sequence] = {}
        self.tokens = 0
        """Tokens that the sequences bring along."""

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Sequence]:
        return (self._waiting[key] for _, key in self._order)

    def first(self, count: int) -> list[Sequence]:
        """The first `count`, or all."""
        return list(islice(self, count))

    def push(self, sequence: Sequence) -> None:
        """Put one in its place."""
        insort(self._order, sequence.rank)
        self._waiting[sequence.key] = sequence
        self.tokens += len(sequence.tokens)

    def pop(self, key: int) -> Sequence | None:
        """Take one out by key, None if it does not wait."""
        sequence = self._waiting.pop(key, None)
        if sequence is not None:
            del self._order[bisect_left(self._order, sequence.rank)]
            self.tokens -= len(sequence.tokens)
        return sequence
