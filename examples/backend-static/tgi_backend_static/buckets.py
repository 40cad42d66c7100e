"""From the rows of a step to calls of the programs that were compiled."""

from __future__ import annotations

from collections.abc import Sequence

from tgi_core.backend.ledger import Work

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


def calls(works: Sequence[Work], programs: Sequence[Shape]) -> list[tuple[Call, list[Work]]]:
    """Prompts one by one in the narrowest program that holds them, then all rows that run one token together."""
    prompts = [work for work in works if work.take > 1]
    single = [work for work in works if work.take == 1]
    found = [(_call([work], (1, _width(work.take, programs))), [work]) for work in prompts]
    return found + ([(_call(single, programs[-1]), single)] if single else [])


def _width(take: int, programs: Sequence[Shape]) -> int:
    return min(width for width in widths(programs) if width >= take)


def _call(works: Sequence[Work], shape: Shape) -> Call:
    rows, width = shape
    tokens = [work.row.tokens[work.start : work.start + work.take] for work in works]
    padded = [(*row, *(PADDING,) * (width - len(row))) for row in tokens] + [(PADDING,) * width] * (rows - len(works))
    empty = (0,) * (rows - len(works))
    slots = tuple(work.row.tables[0][0] for work in works)  # a block is a slot, so a table has one entry
    return Call(tuple(padded), (*slots, *empty), (*(work.start for work in works), *empty))
