"""All shapes of a session's programs: a function of its limits alone, so that all ranks have the same."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

from tgi_core.backend import Capacity
from tgi_core.engine.sizes import doublings, fitting, ladder

PROMPT_HEAD = 128
"""Positions whose logits are computed at a time if those of a whole prompt are requested."""
LEAST_HEAD, HEAD_STEP = 8, 4
"""Smallest number of rows for which logits of decode rows are computed, and the factor between sizes: reading the weights takes the time,
not the rows."""


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """A program that runs `take` tokens of each of `rows` rows, and returns `outputs` hidden states, padded at the end. It reads `blocks`
    blocks: of all rows together if `flat`, else of each row.
    """

    rows: int
    take: int
    blocks: int
    outputs: int
    flat: bool = False

    @property
    def tokens(self) -> int:
        """Flat tokens, with padding."""
        return self.rows * self.take

    def __str__(self) -> str:
        blocks = f"{self.blocks} blocks" if self.flat else f"{self.blocks} blocks each"
        return f"{self.rows} x {self.take} tokens over {blocks}, {self.outputs} hidden states"


@dataclass(frozen=True, slots=True, order=True)
class HeadShape:
    """A program that computes the logits of `kept` of `tokens` hidden states."""

    tokens: int
    kept: int

    def __str__(self) -> str:
        return f"logits of {self.kept} of {self.tokens} hidden states"


@dataclass(frozen=True, slots=True)
class Grid:
    """The programs for rows of up to `take` tokens. `blocks` are their sizes of blocks by number of rows, `outputs` their numbers of hidden
    states; all ascend."""

    take: int
    blocks: Mapping[int, tuple[int, ...]]
    outputs: tuple[int, ...]
    flat: bool = False

    @property
    def max_rows(self) -> int:
        """Rows of the largest program."""
        return max(self.blocks)

    @property
    def most_blocks(self) -> int:
        """Blocks of the largest program."""
        return self.blocks[self.max_rows][-1]

    def shape(self, rows: int, blocks: int) -> Shape:
        """The smallest program for this many rows that have reached this many blocks: in all if flat, else in the longest row."""
        for size, sizes in self.blocks.items():
            if size >= rows and (found := fitting(sizes, blocks)):
                return Shape(size, self.take, found, fitting(self.outputs, size * self.take) or self.outputs[-1], self.flat)
        raise ValueError(f"no program for {rows} rows of {self.take} tokens over {blocks} blocks")

    def shapes(self) -> set[Shape]:
        """All of them."""
        return {self.shape(rows, blocks) for rows, sizes in self.blocks.items() for blocks in sizes}


@dataclass(frozen=True, slots=True)
class BucketRules:
    """A device's requirements for shapes. `takes` are the sizes of prompts' chunks, ascending; `waste` the padding of blocks in decode
    steps that is accepted on average; `flat` whether decode rows share one list of blocks."""

    takes: tuple[int, ...] = (128, 256, 512, 1024)
    waste: float = 0.1
    flat: bool = True

    def row_sizes(self, max_rows: int) -> tuple[int, ...]:
        """Numbers of decode rows."""
        return doublings(1, max_rows)


@dataclass(frozen=True, slots=True)
class Buckets:
    """The programs of a session: for decode rows, for single rows of prompts by chunk size, and for rows with drafts, as many at a time
    as decode rows."""

    block_size: int
    decode: Grid
    prompts: Mapping[int, Grid]
    drafts: Grid = Grid(1, {}, ())

    @classmethod
    def of(cls, capacity: Capacity, rules: BucketRules) -> Buckets:
        """The buckets for these limits."""
        group, max_rows = capacity.groups[0], capacity.max_rows
        per_row = -(-capacity.max_row_tokens // group.block_size)
        contexts, decode = doublings(1, per_row), {}
        shared = max(per_row, 2 * group.num_blocks)  # rows that share prefixes count their blocks twice
        for rows in rules.row_sizes(max_rows):
            decode[rows] = ladder(rows, min(rows * per_row, max(rows, shared)), rules.waste) if rules.flat else contexts
        outputs = [min(LEAST_HEAD, max_rows)]  # few sizes, so that there are few programs of logits
        while outputs[-1] < max_rows:
            outputs.append(min(HEAD_STEP * outputs[-1], max_rows))
        longest = max(2, min(capacity.max_step_tokens, capacity.max_row_tokens))
        takes = tuple(take for take in rules.takes if take < longest)
        takes = takes if takes and len(takes) == len(rules.takes) else (*takes, longest)
        prompts = {}
        for take in takes:
            least = min(-(-take // group.block_size), per_row)
            prompts[take] = Grid(take, {1: contexts[bisect_left(contexts, least) :]}, takes[-1:])
        drafting, each = (decode if capacity.draft else ()), 1 + capacity.draft
        drafts = Grid(each, dict.fromkeys(drafting, contexts), tuple(rows * each for rows in drafting))
        return cls(group.block_size, Grid(1, decode, tuple(outputs), rules.flat), prompts, drafts)

    def __str__(self) -> str:
        contexts = sorted({size for grid in self.prompts.values() for size in grid.blocks[1]})
        rows, takes, blocks = (" ".join(map(str, sizes)) for sizes in (self.decode.blocks, self.prompts, contexts))
        decode, drafting = len(self.decode.shapes()), len(self.drafts.shapes())
        drafts = f"{drafting} for the same with up to {self.draft} drafts each, " if drafting else ""
        chunks = len(self.bodies()) - decode - drafting
        return (
            f"{decode} for decode steps of {rows} rows, {drafts}{chunks} for chunks of {takes} tokens over {blocks} blocks "
            f"of {self.block_size}, {len(self.heads())} for logits"
        )

    @property
    def takes(self) -> tuple[int, ...]:
        """The sizes of prompts' chunks."""
        return tuple(self.prompts)

    @property
    def draft(self) -> int:
        """Maximum number of drafts of a row."""
        return self.drafts.take - 1

    def shapes(self) -> list[Shape | HeadShape]:
        """All programs, in the order in which they are compiled."""
        return [*self.bodies(), *self.heads()]

    def bodies(self) -> list[Shape]:
        """Those that run the model, the largest prompt and decode programs first: they allocate what the others share."""
        prompts, decode = set[Shape]().union(*(grid.shapes() for grid in self.prompts.values())), self.decode.shapes()
        first = [max(kind, key=_work) for kind in (prompts, decode)]
        return first + sorted((prompts | decode | self.drafts.shapes()) - set(first), key=_work, reverse=True)

    def heads(self) -> list[HeadShape]:
        """Those that compute logits, the largest first."""
        found = {self.head(shape, kept) for shape in self.bodies() for kept in (1, 2)}
        return sorted(found, key=lambda head: (head.kept, head.tokens), reverse=True)

    def head(self, shape: Shape, kept: int) -> HeadShape:
        """The program for `kept` logits of what a program returns: all decode rows' and their drafts', or those of a prompt's tokens, one
        or several at a time."""
        if shape.take not in self.prompts:
            return HeadShape(shape.outputs, shape.outputs)
        return HeadShape(shape.outputs, 1 if kept == 1 else min(shape.outputs, PROMPT_HEAD))


def _work(shape: Shape) -> tuple[int, Shape]:
    return shape.tokens * shape.blocks, shape
