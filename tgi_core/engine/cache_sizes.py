"""How many blocks each cache group gets.

Rows need as many blocks of a window group as of the other one while they are shorter than the window, and then no more. Where not all
rows fit at their full length, how long they will be is unknown: the window group then gets what all rows can use, up to half of the memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tgi_core.backend import CacheGroup, CacheKind, WarmupPlan
from tgi_core.blocks import most_window_blocks
from tgi_core.engine.attention.cache import LayerShape, PagedCache
from tgi_core.engine.comparison import Agree


@dataclass(frozen=True, slots=True)
class WindowLayers:
    """The layers with a window: the largest window among them, and the bytes of a block of all of them."""

    window: int
    block_bytes: int


def window_layers(layers: Sequence[LayerShape], block_size: int, dtype: torch.dtype) -> WindowLayers | None:
    """Those of a model's layers with a window, in a cache of a dtype; None if there are none."""
    found = tuple(shape for shape in layers if shape.window is not None)
    windows = [shape.window for shape in found if shape.window is not None]
    return WindowLayers(max(windows), PagedCache.block_bytes(found, block_size, dtype)) if windows else None


class CacheSizes:
    """The cache groups of a model for `rows` rows of up to `row_tokens` tokens, and steps of up to `step_tokens`; `block_bytes` are those
    of all layers, `windows` those that may be in a group of their own."""

    def __init__(
        self,
        plan: WarmupPlan,
        rows: int,
        row_tokens: int,
        step_tokens: int,
        block_size: int,
        block_bytes: int,
        windows: WindowLayers | None,
    ) -> None:
        self._plan, self._block_size, self._block_bytes = plan, block_size, block_bytes
        windows = None if plan.window_blocks == 0 else windows
        row_blocks = -(-row_tokens // block_size)
        self.useful = rows * row_blocks
        """Blocks that all rows could use."""
        self._windows = None if windows is None else CacheGroup(CacheKind.WINDOW, block_size, 0, windows.window)
        self._window_bytes = 0 if windows is None else windows.block_bytes
        self._window_useful = self._least = 0
        if self._windows is not None:
            row_share = most_window_blocks(self._windows, 1 + plan.draft) + 1
            self._window_useful = min(self.useful, rows * row_share - (-step_tokens // block_size))
            self._least = most_window_blocks(self._windows, step_tokens)
            saves = row_share < row_blocks and self._window_useful < self.useful
            if not saves and plan.window_blocks is None:
                self._windows = None

    def groups(self, free: int, agree: Agree) -> tuple[CacheGroup, ...]:
        """The groups in `free` bytes: what the plan asks for, whether it fits or not, else what fits on every rank."""
        asked = self._plan.num_blocks
        if self._windows is None:
            return (self._full(asked or min(self.useful, agree(free // max(1, self._block_bytes)))),)
        if self._block_bytes == self._window_bytes:
            return (self._window(asked or min(self._window_useful, agree(free // max(1, self._window_bytes)))),)
        full, window = self._both(free, agree)
        return self._full(full), self._window(window)

    def num_bytes(self, groups: Sequence[CacheGroup]) -> int:
        """Bytes of the groups' blocks."""
        if self._windows is None:
            return groups[0].num_blocks * self._block_bytes
        full = self._block_bytes - self._window_bytes
        return sum(group.num_blocks * (full if group.kind is CacheKind.FULL else self._window_bytes) for group in groups)

    def needed(self, group: CacheGroup, tokens: int) -> int:
        """Blocks of a group that a row of so many tokens needs."""
        blocks = -(-tokens // self._block_size)
        return min(blocks, self._least) if group.kind is CacheKind.WINDOW else blocks

    def _both(self, free: int, agree: Agree) -> tuple[int, int]:
        full_bytes, window_bytes = max(1, self._block_bytes - self._window_bytes), max(1, self._window_bytes)
        asked, asked_window = self._plan.num_blocks, self._plan.window_blocks
        if asked is not None:
            fitting = agree(max(0, free - asked * full_bytes) // window_bytes)
            return asked, min(asked, asked_window or min(self._window_useful, fitting))
        equal = free // (full_bytes + window_bytes)
        window = min(self._window_useful, max(self._least, min(free // 2 // window_bytes, equal)))
        window = agree(asked_window or window)
        full = agree(min(self.useful, max(0, free - window * window_bytes) // full_bytes))
        if full < window:
            full = window = agree(min(self.useful, equal))
        elif asked_window is None:
            window = agree(min(full, self._window_useful, (free - full * full_bytes) // window_bytes))
        return full, window

    def _full(self, num_blocks: int) -> CacheGroup:
        return CacheGroup(CacheKind.FULL, self._block_size, num_blocks)

    def _window(self, num_blocks: int) -> CacheGroup:
        window = None if self._windows is None else self._windows.window
        return CacheGroup(CacheKind.WINDOW, self._block_size, num_blocks, window)
