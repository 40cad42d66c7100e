"""The reference backend with layers that see a window: a variant for tests of `CacheKind.WINDOW`."""

from __future__ import annotations

from typing import Any
from zlib import crc32

from tgi_core.backend.batch_tracker import RowState
from tgi_core.backend.reference import ReferenceSession, mix
from tgi_core.backend.types import CacheGroup, CacheKind


class WindowedReferenceSession(ReferenceSession):
    """The toy model with a second state per position, which depends on the one before it and on the oldest that the window shows.

    Its cache group is the last one, of `window_blocks` blocks or as many as the other; with `only`, the model has no other layers. It proposes
    nothing.
    """

    def __init__(
        self, *arguments: Any, window: int = 8, window_blocks: int | None = None, only: bool = False, **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self._window, self._window_blocks, self._only = window, window_blocks, only
        self._window_slots: list[int] = []

    def _groups(self, num_blocks: int) -> tuple[CacheGroup, ...]:
        count = self._window_blocks or num_blocks
        self._window_slots = [0] * ((count + 1) * self._block_size)
        windowed = CacheGroup(CacheKind.WINDOW, self._block_size, count, self._window)
        return (windowed,) if self._only else (*super()._groups(num_blocks), windowed)

    def _write(self, row: RowState, position: int) -> int:
        """Both states; tokens depend on both."""
        state = crc32((row.request.adapter or "").encode()) if self._only else super()._write(row, position)
        table, slots = row.tables[-1], self._window_slots
        before, oldest = state, 0
        if position and self._window > 1:
            before = slots[self._slot(table, position - 1)]
            oldest = slots[self._slot(table, max(0, position - self._window + 1))]
        seen = slots[self._slot(table, position)] = mix(before ^ mix(oldest ^ row.tokens[position]))
        return mix(state ^ seen)
