"""Defects that show only far into a row."""

from __future__ import annotations

from tgi_conformance.mutants.base import Sound, mutant
from tgi_core.backend.batch_tracker import LaunchedStep, RowInput, RowState
from tgi_core.backend.types import Row


class Beside(Sound):
    """Knows how many rows its step has."""

    def _compute(self, launch: LaunchedStep) -> None:
        self._rows_beside = len(launch.row_inputs)
        super()._compute(launch)


@mutant("table-of-64-blocks", "growth.long")
class TableOf64Blocks(Beside):
    """A step of several rows copies 64 blocks of each table; later ones are read from the last copied block."""

    def _slot(self, table: list[int], position: int) -> int:
        block = position // self._block_size
        far = self._rows_beside > 1 and block >= 64
        return (
            super()._slot(table[:64], 63 * self._block_size + position % self._block_size)
            if far
            else super()._slot(table, position)
        )


@mutant("wrong-part-merged", "growth.long")
class WrongPartMerged(Beside):
    """A step of several rows attends in parts of 128 positions, and merges a wrong part for rows that have a second one."""

    def _write(self, row: RowState, position: int) -> int:
        if self._rows_beside > 1 and position >= 128:
            self._slots[self._slot(row.tables[0], position // 2)] ^= 1
        return super()._write(row, position)


@mutant("chunk-from-8-bits", "chunks.long")
class ChunkFrom8Bits(Sound):
    """The start of a chunk is stored in a byte: past position 255 an earlier part of the cache is read."""

    def _run(self, row_input: RowInput) -> Row:
        if row_input.take > 1 and row_input.start > 255:
            table = row_input.row.tables[0]
            self._slots[self._slot(table, row_input.start - 1)] = self._slots[self._slot(table, (row_input.start - 1) & 0xFF)]
        return super()._run(row_input)


@mutant("prefix-of-64-blocks", "prefix.long")
class PrefixOf64Blocks(Sound):
    """A prefix is found through a table of 64 blocks; past them the cache counts as empty."""

    def _write(self, row: RowState, position: int) -> int:
        cached = row.request.cached
        if position != cached or position <= 64 * self._block_size:
            return super()._write(row, position)
        slot = self._slot(row.tables[0], position - 1)
        kept, self._slots[slot] = self._slots[slot], 0
        try:
            return super()._write(row, position)
        finally:
            self._slots[slot] = kept


@mutant("positions-end-at-100", "parity.ends")
class PositionsEndAt100(Sound):
    """A table of rotary angles for a hundred positions; all later positions use the last one."""

    def _write(self, row: RowState, position: int) -> int:
        state = super()._write(row, position)
        if position > 100:
            state ^= 1
            self._slots[self._slot(row.tables[0], position)] = state
        return state


@mutant("positions-wrap-at-512", "parity.ends")
class PositionsWrapAt512(Sound):
    """Keys past position 511 are read from the row's start (a ring buffer that is too short)."""

    def _slot(self, table: list[int], position: int) -> int:
        return super()._slot(table, position % 512)
