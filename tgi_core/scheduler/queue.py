"""Requests that wait for their first step, or to be continued."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from tgi_core.scheduler.sequence import Sequence


class WaitingQueue:
    """First in, first out; a sequence that is sent back keeps its place by age."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[int, Sequence] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._waiting.values())

    def push(self, sequence: Sequence) -> None:
        """Add the youngest."""
        self._waiting[sequence.key] = sequence

    def push_back(self, sequence: Sequence) -> None:
        """Return one that was popped; keys grow with age, so older ones stay before it."""
        self._waiting[sequence.key] = sequence
        for key in [key for key in self._waiting if key > sequence.key]:
            self._waiting.move_to_end(key)

    def first(self) -> Sequence | None:
        """The oldest, or None."""
        return next(iter(self), None)

    def pop(self, key: int) -> Sequence | None:
        """Take one out by key, None if it does not wait."""
        return self._waiting.pop(key, None)
