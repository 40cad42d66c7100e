"""Operators on the model's cache and states: what is written, where, and what is read back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tgi_conformance.generated.inner import Model
from tgi_conformance.generated.operators import operator
from tgi_core.backend.batch_tracker import LaunchedStep, RowInput, RowState

_WRONG = 0x5DEECE66D


@operator("wrong-number", "parity mates", weight=2)
class WrongNumber(Model):
    """One operation of the forward pass produces a wrong number, which is written to the cache."""

    def _write(self, row: RowState, position: int) -> int:
        state = super()._write(row, position)
        if self.fires(row, position):
            state ^= _WRONG
            self._slots[self._slot(row.tables[0], position)] = state
        return state


@operator("wrong-logits", "parity mates", weight=2)
class WrongLogits(Model):
    """The last operation produces wrong numbers; the cache stays correct."""

    def logits_state(self, row_input: RowInput, state: int) -> int:
        """Flip bits of the state."""
        return state ^ _WRONG if self.fires(row_input.row) else state


@operator("write-lost", "growth cover drop parity chunks", weight=2)
class WriteLost(Model):
    """A position is not written: the cache keeps what the block's previous owner left there."""

    def _write(self, row: RowState, position: int) -> int:
        slot = self._slot(row.tables[0], position)
        before = self._slots[slot]
        state = super()._write(row, position)
        if self.fires(row, position):
            self._slots[slot] = before
        return state


@operator("write-one-off", "growth cover parity", weight=2)
class WriteOneOff(Model):
    """A position is written one slot too far, which may belong to another row."""

    def _write(self, row: RowState, position: int) -> int:
        slot = self._slot(row.tables[0], position)
        before = self._slots[slot]
        state = super()._write(row, position)
        if self.fires(row, position):
            self._slots[slot] = before
            self._slots[(slot + 1) % len(self._slots)] = state
        return state


@operator("write-spills", "growth cover drop mates")
class WriteSpills(Model):
    """A position is written twice: into its slot, and past the end of its block."""

    def _write(self, row: RowState, position: int) -> int:
        state = super()._write(row, position)
        if self.fires(row, position):
            block = row.tables[0][position // self._block_size]
            self._slots[(block + 1) * self._block_size % len(self._slots)] = state
        return state


@operator("read-one-off", "growth parity prefix chunks", weight=2)
class ReadOneOff(Model):
    """The previous position is read from one slot too early or too late."""

    choices = (-2, 0, 1)

    def _write(self, row: RowState, position: int) -> int:
        if position < 1 or not self.fires(row, position):
            return super()._write(row, position)
        right = self._slot(row.tables[0], position - 1)
        kept = self._slots[right]
        wrong = (self._slot(row.tables[0], position) - 1 + self.choice) % len(self._slots)
        self._slots[right] = self._slots[wrong]
        state = super()._write(row, position)
        if right != self._slot(row.tables[0], position):
            self._slots[right] = kept
        return state


@operator("window-one-off", "parity growth")
class WindowOneOff(Model):
    """The distant position that attention reads is off by one, or cut to a window."""

    choices = (1, -1, -16, -64)

    def _write(self, row: RowState, position: int) -> int:
        far = position // 2
        wrong = max(far, position + self.choice) if self.choice < -1 else far + self.choice
        if not 0 <= wrong < position or wrong == far or not self.fires(row, position):
            return super()._write(row, position)
        right, slot = self._slot(row.tables[0], far), self._slot(row.tables[0], wrong)
        kept, self._slots[right] = self._slots[right], self._slots[slot]
        state = super()._write(row, position)
        self._slots[right] = kept
        return state


@operator("block-of-neighbour", "mates growth cover")
class BlockOfNeighbour(Model):
    """The block table of the next row of the batch is used for reading."""

    def _write(self, row: RowState, position: int) -> int:
        other = self.neighbour(row)
        index = (position - 1) // self._block_size
        if position < 1 or other is row or index >= len(other.tables[0]) or not self.fires(row, position):
            return super()._write(row, position)
        right, wrong = self._slot(row.tables[0], position - 1), self._slot(other.tables[0], position - 1)
        kept, self._slots[right] = self._slots[right], self._slots[wrong]
        state = super()._write(row, position)
        self._slots[right] = kept
        return state


@operator("block-id-wraps", "cover growth drop promise mates", weight=2)
class BlockIdWraps(Model):
    """Block ids are kept in too few bits, so two blocks share their slots."""

    choices = (32, 64, 128, 256, 512, 1024)

    def _slot(self, table: list[int], position: int) -> int:
        found = super()._slot(table, position)
        block, inside = divmod(found, self._block_size)
        row = next((row_input.row for row_input in self.row_inputs if row_input.row.tables[0] is table), None)
        bits: int = self.choice
        if block < bits or row is None or not self.fires(row, position):
            return found
        return (block % bits) * self._block_size + inside


class _Buffered(Model):
    """Keeps the final states of the last steps."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.of_row: dict[int, int] = {}
        self.of_place: dict[int, int] = {}
        self.in_step: dict[int, int] = {}
        """States by request id, by place in the previous step, and by place in this one."""

    def _compute(self, launch: LaunchedStep) -> None:
        self.of_place, self.in_step = self.in_step, {}
        super()._compute(launch)

    def wrong(self, row_input: RowInput, place: int) -> int | None:
        """Return the state of something else, or None."""
        raise NotImplementedError

    def logits_state(self, row_input: RowInput, state: int) -> int:
        """Replace the state with another one where the mutant fires and there is one."""
        place = self.at_place(row_input.row)
        other = self.wrong(row_input, place)
        self.of_row[row_input.row.request.id] = self.in_step[place] = state
        return state if other is None or not self.fires(row_input.row) else other


@operator("stale-step", "parity mates growth")
class StaleStep(_Buffered):
    """A row's logits are those of its previous step."""

    def wrong(self, row_input: RowInput, place: int) -> int | None:
        """Return the row's own last state."""
        return self.of_row.get(row_input.row.request.id)


@operator("stale-place", "mates drop isolation", weight=2)
class StalePlace(_Buffered):
    """A row's logits are those of the row that had its place in the previous step."""

    def wrong(self, row_input: RowInput, place: int) -> int | None:
        """Return the previous step's state at this place."""
        return self.of_place.get(place)


@operator("state-of-row-before", "mates order", weight=2)
class StateOfRowBefore(_Buffered):
    """A row gets the logits of the row before it in the batch."""

    def wrong(self, row_input: RowInput, place: int) -> int | None:
        """Return the state one place before."""
        return self.in_step.get(place - 1)


@operator("state-of-half-before", "mates order")
class StateOfHalfBefore(_Buffered):
    """The second half of a batch gets the logits of the first half."""

    def wrong(self, row_input: RowInput, place: int) -> int | None:
        """Return the state half a batch before."""
        return self.in_step.get(place - (len(self.row_inputs) + 1) // 2)


@operator("adapter-ignored", "lora", weight=1.5)
class AdapterIgnored(Model):
    """A row runs without its adapter, or with the adapter of the next or first row."""

    choices = ("none", "neighbour", "first")

    def _write(self, row: RowState, position: int) -> int:
        wrong = self._wrong(row)
        if position or wrong == row.request.adapter or not self.fires(row, position):
            return super()._write(row, position)
        kept, row.request = row.request, replace(row.request, adapter=wrong)
        state = super()._write(row, position)
        row.request = kept
        return state

    def _wrong(self, row: RowState) -> str | None:
        if self.choice == "none":
            return None
        other = self.neighbour(row) if self.choice == "neighbour" else self.row_inputs[0].row
        return other.request.adapter
