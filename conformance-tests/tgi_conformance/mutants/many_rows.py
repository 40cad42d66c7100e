"""Defects that show only with many rows, high block ids, or after many removals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tgi_conformance.mutants.adapters import Rerouted
from tgi_conformance.mutants.base import Sound, mutant
from tgi_conformance.mutants.invariance import Shaken
from tgi_core.backend import Cleared, Handle, Rows, hookimpl
from tgi_core.backend.batch_tracker import LaunchedStep, RowInput, RowState


@mutant("rows-past-32", "mates.wide")
class RowsPast32(Sound):
    """One warp samples a step: lane 0 also answers for row 32."""

    def _compute(self, launch: LaunchedStep) -> None:
        super()._compute(launch)
        outcome = self._done[launch.step.id]
        if not isinstance(outcome, Rows):
            return
        rows = list(outcome.rows)
        for index in range(32, len(rows)):
            if rows[index].tokens and rows[index - 32].tokens:
                rows[index] = replace(rows[index], tokens=rows[index - 32].tokens)
        self._done[launch.step.id] = replace(outcome, rows=tuple(rows))


@mutant("sampling-table-of-64", "mates.wide")
class SamplingTableOf64(Sound):
    """Parameters of 64 rows are staged; the other rows use the first row's."""

    def _compute(self, launch: LaunchedStep) -> None:
        self._places = {row_input.row.request.id: place for place, row_input in enumerate(launch.row_inputs)}
        self._first = launch.row_inputs[0].row.request.sampling if launch.row_inputs else None
        super()._compute(launch)

    def _sample(self, row_input: RowInput, state: int) -> dict[str, Any]:
        row, kept = row_input.row, row_input.row.request
        if self._places[kept.id] >= 64 and self._first is not None:
            row.request = replace(kept, sampling=self._first)
        try:
            return super()._sample(row_input, state)
        finally:
            row.request = kept


@mutant("keep-in-a-word", "mates.wide")
class KeepInAWord(Sound):
    """The rows to keep are bits of one 32-bit word: each row beyond it stays if the one 32 places before does."""

    @hookimpl
    def filter(self, batch: Handle, keep: tuple[int, ...]) -> Handle:
        """Keep rows other than those named."""
        ids = [row.request.id for row in self.live_batches.get(batch, ())]
        bits = {index % 32 for index, id in enumerate(ids) if id in keep}
        return super().filter(batch, (*keep, *(id for index, id in enumerate(ids) if index >= 32 and index % 32 in bits)))


@mutant("bits-by-many-rows", "invariant.wide")
class BitsByManyRows(Shaken):
    """Steps of 33 rows or more use another matrix product."""

    def shakes(self, launch: LaunchedStep, place: int, row_input: RowInput) -> bool:
        """All rows of a large step."""
        return len(launch.row_inputs) > 32


@mutant("block-ids-of-16-bits", "cover.high-blocks")
class BlockIdsOf16Bits(Sound):
    """Block tables are int16 to save bandwidth."""

    def _slot(self, table: list[int], position: int) -> int:
        return super()._slot([block & 0xFFFF for block in table], position)


@mutant("slots-of-16-bits", "cover.high-blocks")
class SlotsOf16Bits(Sound):
    """Block id times block size is computed in the table's type."""

    def _slot(self, table: list[int], position: int) -> int:
        return super()._slot(table, position) & 0xFFFF


class Counting(Sound):
    """Counts the rows that were removed."""

    removed = 0

    @hookimpl
    def filter(self, batch: Handle, keep: tuple[int, ...]) -> Handle:
        """Filter, and count the removed rows."""
        before = len(self.live_batches.get(batch, ()))
        kept = super().filter(batch, keep)
        self.left(before - len(self.live_batches.get(kept, ())))
        return kept

    @hookimpl
    def clear(self, batch: Handle | None) -> Cleared:
        """Clear, and count the removed rows."""
        found = super().clear(batch)
        self.left(found.count)
        return found

    def left(self, count: int) -> None:
        """Count the rows that have left."""
        self.removed += count


@mutant("place-lost-in-a-thousand", "capacity.thousand")
class PlaceLostInAThousand(Counting):
    """A free list is compacted every thousand removals, and is one entry short afterwards."""

    def left(self, count: int) -> None:
        """Remove one place for each thousand."""
        before = self.removed // 1000
        super().left(count)
        promised = self.tracker._capacity
        self.tracker._capacity = replace(promised, max_rows=promised.max_rows - self.removed // 1000 + before)


@mutant("slot-not-wiped-again", "capacity.thousand")
class SeatNotWipedAgain(Counting):
    """Freed slots wait in a ring of a thousand to be wiped; once it is full, they are no longer wiped."""

    def _write(self, row: RowState, position: int) -> int:
        state = super()._write(row, position)
        if position == 0 and self.removed >= 1000:
            state ^= 1
            self._slots[self._slot(row.tables[0], 0)] = state
        return state


@mutant("adapters-by-twos", "lora.mates")
class AdaptersByTwos(Rerouted):
    """A step stages two adapters; rows of a third run under the one staged last."""

    def _compute(self, launch: LaunchedStep) -> None:
        names = (row_input.row.request.adapter for row_input in launch.row_inputs)
        self._staged = list(dict.fromkeys(name for name in names if name))[:2]
        super()._compute(launch)

    def adapter(self, row: RowState, position: int) -> str | None:
        """Return the row's own adapter if it is staged."""
        name = row.request.adapter
        return name if name is None or name in self._staged else self._staged[-1]
