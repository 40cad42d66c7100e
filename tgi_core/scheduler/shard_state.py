"""What the scheduler knows to be on the shard: its rows, its batches, and the steps that were launched and not read."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable

from tgi_core.scheduler.sequence import Sequence
from tgi_core.wire.types import Filter


class ShardState:
    """The rows of the shard by their wire ids, in batches that are named by the step that left them. Up to `depth` steps may be unread.

    This is the only record of membership in the scheduler. Two others are kept on purpose: the shard's own (`ModelServer`), since it is
    another process, and that of `AnswerCheck`, which must not trust what it checks.
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._steps, self._wire_ids = itertools.count(1), itertools.count(1)
        self.rows: dict[int, Sequence] = {}
        """The running sequences, by wire id."""
        self._batches: dict[int, set[int]] = {}
        """The wire ids in each batch."""
        self._before: dict[int, set[int]] = {}
        """The batches before the step launched last."""
        self._removed: set[int] = set()
        """Rows that run no more, but that the shard still has in a batch."""
        self._unread: deque[int] = deque()

    @property
    def empty(self) -> bool:
        """Whether the shard has no batch and no unread step."""
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

    def add(self, sequence: Sequence) -> None:
        """A sequence gets a row, with a new wire id; the next launch brings it."""
        sequence.wire_id = next(self._wire_ids)
        self.rows[sequence.wire_id] = sequence

    def remove(self, wire_id: int) -> None:
        """A row runs no more; the next turn filters it out first."""
        del self.rows[wire_id]
        self._removed.add(wire_id)

    def remove_evicted(self) -> None:
        """Remove the rows whose sequences have lost their wire ids."""
        for wire_id in [id for id, sequence in self.rows.items() if sequence.wire_id != id]:
            self.remove(wire_id)

    def filters(self) -> tuple[Filter, ...]:
        """Filter the removed rows out of their batches."""
        removed, self._removed = self._removed, set()
        return tuple(self._filtered(removed)) if removed else ()

    def _filtered(self, removed: set[int]) -> Iterable[Filter]:
        for batch, rows in list(self._batches.items()):
            if rows.isdisjoint(removed):
                continue
            keep = self._batches[batch] = rows - removed
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

    def undo_launch(self) -> None:
        """The step launched last was refused: the batches are what they were."""
        self._unread.pop()
        self._batches = self._before

    def read(self) -> None:
        """The oldest step has been read."""
        self._unread.popleft()

    def forget(self) -> None:
        """The shard holds no batch and no step any more. All rows must have been removed."""
        self._unread.clear()
        self._batches.clear()
        self._removed.clear()
