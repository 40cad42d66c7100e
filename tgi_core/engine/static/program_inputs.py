"""The words of one program's inputs: their places follow from its shape alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tgi_core.engine.ahead.buffer_layout import BufferLayout
from tgi_core.engine.ahead.row_slots import RowSlots
from tgi_core.engine.ahead.step_layout import StepLayout, fill_flat
from tgi_core.engine.static.buckets import HeadShape, Shape
from tgi_core.engine.static.splitting import Call


@dataclass(frozen=True, slots=True)
class HeadCall:
    """Logits of the tokens `kept` of the call before it, from place `at` on among the step's; the argmax goes to the row slots `sampled`.

    Heads overwrite the padding of those before them.
    """

    shape: HeadShape
    kept: np.ndarray
    sampled: np.ndarray
    at: int

    @property
    def end(self) -> int:
        """The place after its padding."""
        return self.at + self.shape.kept


def input_layout(shape: Shape | HeadShape) -> BufferLayout:
    """The inputs that a program of this shape reads."""
    if isinstance(shape, HeadShape):
        return BufferLayout.of(kept=shape.kept, sampled=shape.kept)
    tokens = {"ids": shape.tokens, "positions": shape.tokens, "slots": shape.tokens, "begun": shape.rows}
    if shape.flat:
        return BufferLayout.of(**tokens, blocks=shape.blocks, owners=shape.blocks, offsets=shape.blocks)
    return BufferLayout.of(**tokens, blocks=shape.rows * shape.blocks)


def fill_padding(shape: Shape | HeadShape, waste: int, into: Mapping[str, np.ndarray]) -> None:
    """Nothing but padding: it writes to no block, reads the null block, and its samples go to the row slot `waste`."""
    padding = {"slots": -1, "owners": shape.rows if isinstance(shape, Shape) else 0, "sampled": waste}
    for name, part in into.items():
        part[:] = padding.get(name, 0)


def fill_inputs(
    program: Call | HeadCall, step: StepLayout, row_slots: RowSlots, block_size: int, into: Mapping[str, np.ndarray]
) -> None:
    """The inputs of a program of a step."""
    fill_padding(program.shape, row_slots.waste, into)
    if isinstance(program, HeadCall):
        into["kept"][: len(program.kept)], into["sampled"][: len(program.sampled)] = program.kept, program.sampled
        return
    rows = [part.row for part in program.parts]
    taken = np.array([step.row_slots[row] for row in rows])
    starts = np.array([part.start for part in program.parts])
    takes = np.array([part.take for part in program.parts])
    fill_flat([step.order[row] for row in rows], taken, starts, takes, row_slots, block_size, into, program.places())
    _fill_blocks(program.shape, row_slots.tables[taken], starts, -(-(starts + takes) // block_size), block_size, into)


def _fill_blocks(
    shape: Shape, tables: np.ndarray, starts: np.ndarray, counts: np.ndarray, block_size: int, into: Mapping[str, np.ndarray]
) -> None:
    """The first `counts` blocks of each row, as far as it has reached: later ones may hold what another row left."""
    rows = np.repeat(np.arange(len(counts)), counts)
    places = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    blocks = tables[rows, places]
    if shape.flat:
        into["blocks"][: len(rows)] = blocks
        into["owners"][: len(rows)] = rows
        into["offsets"][: len(rows)] = starts[rows] - places * block_size
    else:
        into["blocks"].reshape(shape.rows, shape.blocks)[rows, places] = blocks
