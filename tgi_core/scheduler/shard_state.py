"""What the shard holds: its batches, and the steps that were launched and not read."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable

from tgi_core.wire.types import Filter


class Flight:
    """Batches are named by the step that left them. Up to `depth` steps may be unread."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._steps = itertools.count(1)
        self._batches: dict[int, set[int]] = {}
        """Wire ids of the rows in each batch."""
        self._before: dict[int, set[int]] = {}
        self._gone: set[int] = set()
        """Rows that run no more, and that the shard has not been told of."""
        self._unread: deque[int] = deque()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to tell and nothing to hear."""
        return not (self._batches or self._unread)

    @property
    def full(self) -> bool:
        """Whether a step must be read before the next one is launched."""
        return len(self._unread) >= self._depth

    @property
    def batches(self) -> int:
        """How many batches there are."""
        return len(self._batches)

    @property
    def oldest(self) -> int | None:
        """The step to read next."""
        return self._unread[0] if self._unread else None

    def leave(self, row: int) -> None:
        """A row runs no more; the next turn says so first."""
        self._gone.add(row)

    def filters(self) -> tuple[Filter, ...]:
        """Drop the rows that have left from their batches."""
        gone, self._gone = self._gone, set()
        return tuple(self._filtered(gone)) if gone else ()

    def _filtered(self, gone: set[int]) -> Iterable[Filter]:
        for batch, rows in list(self._batches.items()):
            if rows.isdisjoint(gone):
                continue
            keep = self._batches[batch] = rows - gone
            if not keep:
                del self._batches[batch]
            yield Filter(batch, tuple(sorted(keep)))  # the order of the batch: shards of TGI take that of `keep`

    def launch(self, new: Iterable[int], merged: bool) -> tuple[int, tuple[int, ...]]:
        """A step of the rows `new`, and if `merged` of all batches; its number and the batches that go into it."""
        step = next(self._steps)
        self._before = self._batches.copy()
        names = tuple(self._batches) if merged else ()
        rows = set(new).union(*(self._batches.pop(name) for name in names))
        self._batches[step] = rows
        self._unread.append(step)
        return step, names

    def undo(self) -> None:
        """The step launched last was refused: the batches are what they were."""
        self._unread.pop()
        self._batches = self._before

    def read(self) -> None:
        """The oldest step has been read."""
        self._unread.popleft()

    def forget(self) -> None:
        """The shard holds nothing any more."""
        self._unread.clear()
        self._batches.clear()
        self._gone.clear()
