"""The scheduler's record of the shard's state: its rows, its batches and the launched steps that have not been read."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable

from tgi_core.scheduler.sequence import Sequence
from tgi_core.wire.types import Filter


class ShardState:
    """The rows of the shard by their wire ids, in batches named after the step that produced them. Up to `depth` steps may be
    unread.

    This is the only record of membership in the scheduler. Two more exist on purpose: the shard's (`ModelServer`), since it is
    another process, and that of `ResultValidator`, which must not trust what it checks.
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._steps, self._wire_ids = itertools.count(1), itertools.count(1)
        self.rows: dict[int, Sequence] = {}
        """Running sequences by wire id."""
        self._batches: dict[int, set[int]] = {}
        """Wire ids in each batch."""
        self._before: dict[int, set[int]] = {}
        """Batches before the step launched last."""
        self.removed: set[int] = set()
        """Rows that no longer run but are still in a batch on the shard."""
        self._unread: deque[int] = deque()
        self._chunks: dict[int, list[tuple[int, Sequence, int]]] = {}
        """By unread step, the wire ids and sequences whose prompts it does not complete, and how many positions are then computed."""

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
        """Number of batches."""
        return len(self._batches)

    @property
    def oldest(self) -> int | None:
        """Number of the step to read next."""
        return self._unread[0] if self._unread else None

    def add(self, sequence: Sequence) -> None:
        """Give a sequence a row with a new wire id; the next launch sends it."""
        sequence.wire_id = next(self._wire_ids)
        self.rows[sequence.wire_id] = sequence

    def remove(self, wire_id: int) -> None:
        """Remove a row, which the next turn filters out first."""
        del self.rows[wire_id]
        self.removed.add(wire_id)

    def remove_evicted(self) -> None:
        """Remove the rows whose sequences have lost their wire ids."""
        for wire_id in [id for id, sequence in self.rows.items() if sequence.wire_id != id]:
            self.remove(wire_id)

    def filters(self) -> tuple[Filter, ...]:
        """Filter the removed rows out of their batches."""
        removed, self.removed = self.removed, set()
        return tuple(self._filtered(removed)) if removed else ()

    def _filtered(self, removed: set[int]) -> Iterable[Filter]:
        for batch, rows in list(self._batches.items()):
            if rows.isdisjoint(removed):
                continue
            keep = self._batches[batch] = rows - removed
            if not keep:
                del self._batches[batch]
            yield Filter(batch, tuple(sorted(keep)))  # in the order of the batch: TGI's shards adopt the order of `keep`

    def launch(self, new: Iterable[int], merged: bool) -> tuple[int, tuple[int, ...]]:
        """Launch a step of the rows `new` and, if `merged`, of all batches. Return its number and the batches that it takes."""
        step = next(self._steps)
        self._before = self._batches.copy()
        names = tuple(self._batches) if merged else ()
        rows = set(new).union(*(self._batches.pop(name) for name in names))
        self._batches[step] = rows
        self._unread.append(step)
        return step, names

    def note_chunks(self, sequences: Iterable[Sequence]) -> None:
        """Note for `read` the rows of the step launched last whose prompts it does not complete."""
        self._chunks[self._unread[-1]] = [(item.wire_id, item, item.computed) for item in sequences]

    def undo_launch(self) -> None:
        """Revert the step launched last, which was refused: the batches are unchanged."""
        self._chunks.pop(self._unread.pop(), None)
        self._batches = self._before

    def read(self) -> list[tuple[Sequence, int]]:
        """Record that the oldest step has been read. Return the rows noted for it that still run, and the positions they have
        written."""
        chunks = self._chunks.pop(self._unread.popleft(), ())
        return [(sequence, positions) for wire_id, sequence, positions in chunks if sequence.wire_id == wire_id]

    def lose(self) -> None:
        """Record in each row that its shard is lost."""
        for sequence in self.rows.values():
            sequence.losses = 1 if sequence.proven else sequence.losses + 1

    def forget(self) -> None:
        """Forget all batches and steps, which the shard has lost. All rows must have been removed."""
        self._unread.clear()
        self._chunks.clear()
        self._batches.clear()
        self.removed.clear()
