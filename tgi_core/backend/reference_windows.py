"""The reference backend with layers that see a window: a variant for tests of `CacheKind.WINDOW`."""

from __future__ import annotations

from typing import Any
from zlib import crc32

from tgi_core.backend.batch_tracker import RowState
from tgi_core.backend.reference import ReferenceSession, mix
from tgi_core.backend.spec import hookimpl
from tgi_core.backend.types import CacheGroup, CacheKind, Closed


class WindowedReferenceSession(ReferenceSession):
    """The toy model, which also keeps each position's state in a window group, and reads the one before it and the oldest that the window
    shows there. What it finds should be what it wrote, so it makes the toy model's tokens; if it is not, all later tokens are others.

    The group is the last one, of `window_blocks` blocks or as many as the other; with `only`, it is the only one, and there are no
    proposals.
    """

    def __init__(
        self, *arguments: Any, window: int = 8, window_blocks: int | None = None, only: bool = False, **options: Any
    ) -> None:
        super().__init__(*arguments, **(options | {"proposals": 0} if only else options))
        self._window, self._window_blocks, self._only = window, window_blocks, only
        self._window_slots: list[int] = []
        self._states: dict[int, list[int]] = {}
        """States of all positions by request id, if there is no group for them."""

    @hookimpl
    def close(self) -> Closed:
        """Discard all state."""
        self._window_slots, self._states = [], {}
        return super().close()

    def _groups(self, num_blocks: int) -> tuple[CacheGroup, ...]:
        count = self._window_blocks or num_blocks
        self._window_slots = [0] * ((count + 1) * self._block_size)
        windowed = CacheGroup(CacheKind.WINDOW, self._block_size, count, self._window)
        return (windowed,) if self._only else (*super()._groups(num_blocks), windowed)

    def _write(self, row: RowState, position: int) -> int:
        """The state, changed by whatever is wrong with the window."""
        state = self._computed(row, position) if self._only else super()._write(row, position)
        table, slots = row.tables[-1], self._window_slots
        for seen in {max(0, position - self._window + 1), position - 1} if position and self._window > 1 else ():
            state ^= slots[self._slot(table, seen)] ^ self._right(row, seen)
        slots[self._slot(table, position)] = state
        return state

    def _right(self, row: RowState, position: int) -> int:
        return self._states[row.request.id][position] if self._only else self._slots[self._slot(row.tables[0], position)]

    def _computed(self, row: RowState, position: int) -> int:
        """The state at a position, from the tokens."""
        states = self._states.setdefault(row.request.id, [])
        del states[position:]
        for at in range(len(states), position + 1):
            before, far = (states[at - 1], states[at // 2]) if at else (crc32((row.request.adapter or "").encode()), 0)
            states.append(mix(before ^ mix(far ^ row.tokens[at])))
        return states[position]
