"""From the rows of a step to calls of the programs that were compiled."""

from __future__ import annotations

from collections.abc import Sequence

from tgi_core.backend.batch_tracker import RowInput

from tgi_backend_static.device import PADDING, Call, Shape

SHORTEST = 16


def shapes(slots: int, length: int) -> tuple[Shape, ...]:
    """What warmup compiles: one prompt in widths that double up to the length, and one token for every slot."""
    widths = [SHORTEST]
    while widths[-1] < length:
        widths.append(2 * widths[-1])
    return *((1, min(width, length)) for width in widths), (slots, 1)


def widths(programs: Sequence[Shape]) -> tuple[int, ...]:
    """The lengths that a prompt is padded to, which the scheduler is told: it cuts prompts to them where it can."""
    return tuple(width for rows, width in programs if rows == 1)


def calls(row_inputs: Sequence[RowInput], programs: Sequence[Shape]) -> list[tuple[Call, list[RowInput]]]:
    """Prompts one by one in the narrowest program that holds them, then all rows that run one token together."""
    prompts = [row_input for row_input in row_inputs if row_input.take > 1]
    single = [row_input for row_input in row_inputs if row_input.take == 1]
    found = [(_call([row_input], (1, _width(row_input.take, programs))), [row_input]) for row_input in prompts]
    return found + ([(_call(single, programs[-1]), single)] if single else [])


def _width(take: int, programs: Sequence[Shape]) -> int:
    return min(width for width in widths(programs) if width >= take)


def _call(row_inputs: Sequence[RowInput], shape: Shape) -> Call:
    rows, width = shape
    tokens = [row_input.row.tokens[row_input.start : row_input.start + row_input.take] for row_input in row_inputs]
    padded = [(*row, *(PADDING,) * (width - len(row))) for row in tokens] + [(PADDING,) * width] * (rows - len(row_inputs))
    empty = (0,) * (rows - len(row_inputs))
    slots = tuple(row_input.row.tables[0][0] for row_input in row_inputs)  # a block is a slot, so a table has one entry
    return Call(tuple(padded), (*slots, *empty), (*(row_input.start for row_input in row_inputs), *empty))
