"""Window groups: what a row sees, what it has left behind, and who has that block now."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tgi_conformance.mutants.base import Sound, mutant
from tgi_core.backend import NULL_BLOCK, Grant, Handle, InvalidRequest, Request, Step, hookimpl
from tgi_core.backend.batch_tracker import RowInput, RowState
from tgi_core.backend.reference_windows import WindowedReferenceSession

_WINDOW = 10


class Windowed(WindowedReferenceSession, Sound):
    """The reference backend with layers that see a window."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{"window": _WINDOW, **options})


@mutant("windowed")
class WindowedTwin(Windowed):
    """Two cache groups: half of the layers see a window."""


@mutant("all-windowed")
class AllWindowed(Windowed):
    """One cache group: all layers see a window."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, only=True, **options)


@mutant("window-masked-late", "windows.reuse", "windows.prompt")
class WindowMaskedLate(Windowed):
    """Attention reads the block before the window as well and masks it, but what is there changes the result if it is no longer the row's
    own (zero times NaN)."""

    def _write(self, row: RowState, position: int) -> int:
        state, table, behind = super()._write(row, position), row.tables[-1], position - self._window - self._block_size
        if behind >= 0 and table[behind // self._block_size] != NULL_BLOCK:
            state ^= self._window_slots[self._slot(table, behind)] ^ self._right(row, behind)
        return state


@mutant("window-clears-late", "windows.reuse", "windows.prompt")
class WindowClearsLate(Windowed):
    """The device clears a block when its row has left it behind, one step after another row may have got it."""

    def _run(self, row_input: RowInput) -> Any:
        made, table = super()._run(row_input), row_input.row.tables[-1]
        behind = (row_input.start - self._window + 1) // self._block_size - 1
        if behind >= 0:
            first = table[behind] * self._block_size
            self._window_slots[first : first + self._block_size] = [0] * self._block_size
        return made


@mutant("own-block-refused", "windows.itself")
class OwnBlockRefused(Windowed):
    """The check for a block that appears twice in a table knows nothing of windows."""

    @hookimpl
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """Compare with all blocks that the row ever had."""
        for grant in grants:
            row = self.row(grant.request_id)
            if row is not None and grant.blocks and set(grant.blocks[-1]) & set(row.tables[-1]):
                raise InvalidRequest(f"request {grant.request_id}: a block appears twice in its table")
        return super().decode(batches, grants)


@mutant("null-in-table-refused", "windows.null")
class NullInTableRefused(Windowed):
    """The null block is refused wherever it is."""

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Look at all ids."""
        if any(NULL_BLOCK in table for request in batch for table in request.blocks):
            raise InvalidRequest("block ids start at 1")
        return super().prefill(batch, cached, grants)


@mutant("null-where-seen", "windows.null")
class NullWhereSeen(Windowed):
    """The null block is accepted wherever it is."""

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Replace it."""

        def named(request: Request) -> Request:
            return replace(request, blocks=tuple(tuple(block or 90 for block in table) for table in request.blocks))

        return super().prefill(tuple(map(named, batch)), cached, grants)


@mutant("window-after-drafts", "windows.drafts")
class WindowAfterDrafts(Windowed):
    """Blocks are taken out of the table by the position after a step's drafts, whether these are kept or not."""

    def _run(self, row_input: RowInput) -> Any:
        made, row = super()._run(row_input), row_input.row
        group = self.tracker._capacity.groups[-1]
        gone = group.unseen(row_input.start + row_input.take)
        row.tables[-1][:gone] = [NULL_BLOCK] * gone
        return made
