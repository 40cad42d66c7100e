"""Splits a step of the contract into programs: no step is refused for its shape, and none needs a program that was not warmed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tgi_core.engine.static.grid import Grid, Shape
from tgi_core.engine.static.ladder import fitting


@dataclass(frozen=True, slots=True)
class Part:
    """Positions `start`…`start + take - 1` of the row at index `row` of the step."""

    row: int
    start: int
    take: int


@dataclass(frozen=True, slots=True)
class Call:
    """One program and what runs in it: decode rows, or one part of a prompt."""

    shape: Shape
    parts: tuple[Part, ...]


def split(starts: Sequence[int], takes: Sequence[int], grid: Grid) -> list[Call]:
    """The programs of a step with rows of these first positions and numbers of tokens: the decode rows', then those of each prompt in
    order. Depends on nothing else, so that all ranks run the same programs."""
    decoding = [Part(row, start, 1) for row, (start, take) in enumerate(zip(starts, takes, strict=True)) if take == 1]
    calls = [_decoding(parts, grid) for parts in _together(decoding, grid)]
    for row, (start, take) in enumerate(zip(starts, takes, strict=True)):
        if take > 1:
            calls += _prompt(row, start, take, grid)
    return calls


def blocks_of(part: Part, block_size: int) -> int:
    """Blocks that a row has reached after a part of it."""
    return -(-(part.start + part.take) // block_size)


def cost(parts: Sequence[Part], grid: Grid) -> int:
    """Blocks that decode rows need of their program."""
    counts = [blocks_of(part, grid.block_size) for part in parts]
    return sum(counts) if grid.flat else max(counts)


def _together(parts: list[Part], grid: Grid) -> Iterator[list[Part]]:
    """Decode rows in groups that fit in the largest program."""
    group: list[Part] = []
    for part in parts:
        if group and (len(group) == grid.max_rows or cost([*group, part], grid) > grid.most_blocks):
            yield group
            group = []
        group.append(part)
    if group:
        yield group


def _decoding(parts: list[Part], grid: Grid) -> Call:
    blocks = cost(parts, grid)
    shape = grid.decoding(len(parts), blocks)
    if shape is None:
        raise ValueError(f"no program for {len(parts)} rows over {blocks} blocks")
    return Call(shape, tuple(parts))


def _prompt(row: int, start: int, take: int, grid: Grid) -> Iterator[Call]:
    """A chunk in the largest size as often as it fits, and the rest in the smallest size that holds it."""
    while take:
        size = fitting(grid.takes, take) or grid.takes[-1]
        part = Part(row, start, min(take, size))
        yield Call(grid.prompt(size, blocks_of(part, grid.block_size)), (part,))
        start, take = start + part.take, take - part.take
