"""Splits a step of the contract into programs: no step is refused for its shape, and none needs a program that was not warmed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from tgi_core.engine.sizes import fitting
from tgi_core.engine.static.buckets import Buckets, Grid, Shape


@dataclass(frozen=True, slots=True)
class Part:
    """Positions `start`…`start + take - 1` of the row at index `row` of the step."""

    row: int
    start: int
    take: int


@dataclass(frozen=True, slots=True)
class Call:
    """One program and what runs in it: decode rows, rows with drafts, or one part of a prompt."""

    shape: Shape
    parts: tuple[Part, ...]

    def places(self) -> np.ndarray:
        """Where the tokens of the parts are among the program's, in order."""
        return np.concatenate([place * self.shape.take + np.arange(part.take) for place, part in enumerate(self.parts)])


def split(starts: Sequence[int], takes: Sequence[int], buckets: Buckets, drafting: Set[int] = frozenset()) -> list[Call]:
    """The programs of a step with rows of these first positions and numbers of tokens: the decode rows', then in order those of prompts,
    and of neighbouring rows with drafts, which are the rows `drafting`. So all ranks run the same programs."""
    rows = [Part(row, start, take) for row, (start, take) in enumerate(zip(starts, takes, strict=True))]
    calls = list(_grouped([part for part in rows if part.take == 1], buckets.decode, buckets.block_size))
    for drafts, parts in groupby((part for part in rows if part.take > 1), lambda part: part.row in drafting):
        if drafts:
            calls += _grouped(list(parts), buckets.drafts, buckets.block_size)
            continue
        for part in parts:
            calls += _prompt(part, buckets)
    return calls


def blocks_of(part: Part, block_size: int) -> int:
    """Blocks that a row has reached after a part of it."""
    return -(-(part.start + part.take) // block_size)


def _grouped(parts: list[Part], grid: Grid, block_size: int) -> Iterator[Call]:
    """Rows in groups, as many in each as fit in the largest program; rows with fewer tokens than the program are padded."""
    group: list[Part] = []
    blocks = 0
    for part in parts:
        own = blocks_of(part, block_size)
        together = blocks + own if grid.flat else max(blocks, own)
        if group and (len(group) == grid.max_rows or together > grid.most_blocks):
            yield Call(grid.shape(len(group), blocks), tuple(group))
            group, together = [], own
        group.append(part)
        blocks = together
    if group:
        yield Call(grid.shape(len(group), blocks), tuple(group))


def _prompt(part: Part, buckets: Buckets) -> Iterator[Call]:
    """Parts of the largest size as often as it fits, and the rest in the smallest size that holds it."""
    start, left = part.start, part.take
    while left:
        size = fitting(buckets.takes, left) or buckets.takes[-1]
        piece = Part(part.row, start, min(left, size))
        yield Call(buckets.prompts[size].shape(1, blocks_of(piece, buckets.block_size)), (piece,))
        start, left = start + piece.take, left - piece.take
