"""All shapes of a session's programs: a function of its limits alone, so that all ranks have the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tgi_core.backend import Capacity
from tgi_core.engine.sizes import doublings, fitting, ladder

PROMPT_HEAD = 128
"""Positions whose logits are computed at a time where those of a whole prompt are asked for."""
LEAST_HEAD, HEAD_STEP = 8, 4
"""Logits of decode rows are computed for at least so many rows, and for so many times more from size to size: reading the weights takes the
time, not the rows."""


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """A program that runs `take` tokens of each of `rows` rows, and returns `outputs` hidden states, padded behind.

    It reads `blocks` blocks: of all rows together if `flat`, else of each row.
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
class BucketRules:
    """How a device wants its shapes. `takes` are the sizes of prompts' chunks, ascending; `waste` the padding of blocks in decode steps
    that is accepted on average; `flat` whether decode rows share one list of blocks."""

    takes: tuple[int, ...] = (128, 256, 512, 1024)
    waste: float = 0.1
    flat: bool = True

    def row_sizes(self, max_rows: int) -> tuple[int, ...]:
        """Numbers of decode rows."""
        return doublings(1, max_rows)


@dataclass(frozen=True, slots=True)
class Buckets:
    """The sizes of a session; `decode` are sizes of blocks by number of rows, `contexts` blocks of a prompt's row.

    With `draft`, rows of up to so many drafts run in programs of their own, as many rows at a time as decode steps have.
    """

    block_size: int
    takes: tuple[int, ...]
    contexts: tuple[int, ...]
    decode: Mapping[int, tuple[int, ...]]
    flat: bool
    draft: int = 0

    @classmethod
    def of(cls, capacity: Capacity, rules: BucketRules) -> Buckets:
        """The buckets for these limits."""
        group = capacity.groups[0]
        per_row = -(-capacity.max_row_tokens // group.block_size)
        longest = max(2, min(capacity.max_step_tokens, capacity.max_row_tokens))
        takes = tuple(take for take in rules.takes if take < longest)
        takes = takes if takes and len(takes) == len(rules.takes) else (*takes, longest)
        contexts, decode = doublings(1, per_row), {}
        shared = max(per_row, 2 * group.num_blocks)  # rows that share prefixes count their blocks twice
        for rows in rules.row_sizes(capacity.max_rows):
            decode[rows] = ladder(rows, min(rows * per_row, max(rows, shared)), rules.waste) if rules.flat else contexts
        return cls(group.block_size, takes, contexts, decode, rules.flat, capacity.draft)

    def __str__(self) -> str:
        rows, takes, blocks = (" ".join(map(str, sizes)) for sizes in (self.decode, self.takes, self.contexts))
        decode, drafting = sum(map(len, self.decode.values())), len(self._drafting_shapes())
        drafts = f"{drafting} for the same with up to {self.draft} drafts each, " if drafting else ""
        chunks = len(self.bodies()) - decode - drafting
        return (
            f"{decode} for decode steps of {rows} rows, {drafts}{chunks} for chunks of {takes} tokens over {blocks} blocks "
            f"of {self.block_size}, {len(self.heads())} for logits"
        )

    @property
    def max_rows(self) -> int:
        """Decode rows of the largest program."""
        return max(self.decode)

    @property
    def most_blocks(self) -> int:
        """Blocks of the largest decode program."""
        return self.decode[self.max_rows][-1]

    def shapes(self) -> list[Shape | HeadShape]:
        """All programs, in the order in which they are compiled."""
        return [*self.bodies(), *self.heads()]

    def bodies(self) -> list[Shape]:
        """Those that run the model, the largest prompt and decode programs first: they allocate what the others share."""
        prompts = {self.prompt(take, blocks) for take in self.takes for blocks in (1, *self.contexts)}
        decode = {self._decode_shape(rows, blocks) for rows, sizes in self.decode.items() for blocks in sizes}
        first = [max(kind, key=_work) for kind in (prompts, decode)]
        return first + sorted((prompts | decode | self._drafting_shapes()) - set(first), key=_work, reverse=True)

    def heads(self) -> list[HeadShape]:
        """Those that compute logits, the largest first."""
        found = {self.head(shape, kept) for shape in self.bodies() for kept in (1, 2)}
        return sorted(found, key=lambda head: (head.kept, head.tokens), reverse=True)

    def head(self, shape: Shape, kept: int) -> HeadShape:
        """The program for `kept` logits of what a program returns: all decode rows' and their drafts', or those of a prompt's tokens, one
        or several at a time."""
        outputs = shape.outputs
        if shape.take == 1 or self._drafts(shape):
            return HeadShape(outputs, outputs)
        return HeadShape(outputs, 1 if kept == 1 else min(outputs, PROMPT_HEAD))

    def prompt(self, take: int, blocks: int) -> Shape:
        """The program for a chunk of at most `take` tokens, one of `takes`, of a row that has reached `blocks` blocks."""
        size = fitting(self.contexts, max(blocks, min(-(-take // self.block_size), self.contexts[-1])))
        if size is None:
            raise ValueError(f"no program over {blocks} blocks: a row has at most {self.contexts[-1]}")
        return Shape(1, take, size, self.takes[-1])

    def decoding(self, rows: int, blocks: int) -> Shape:
        """The smallest program for so many decode rows over so many blocks: of all rows if flat, else of the longest."""
        for size, sizes in self.decode.items():
            if size >= rows and (found := fitting(sizes, blocks)):
                return self._decode_shape(size, found)
        raise ValueError(f"no program for {rows} rows over {blocks} blocks")

    def drafting(self, rows: int, blocks: int) -> Shape:
        """The smallest program for so many rows with drafts, the longest of which has reached so many blocks."""
        size = next((size for size in self.decode if size >= rows), None)
        found = fitting(self.contexts, blocks)
        if size is None or found is None or not self.draft:
            raise ValueError(f"no program for {rows} rows with drafts over {blocks} blocks each")
        return self._drafting_shape(size, found)

    def _drafting_shapes(self) -> set[Shape]:
        sizes = self.decode if self.draft else ()
        return {self._drafting_shape(rows, blocks) for rows in sizes for blocks in self.contexts}

    def _drafting_shape(self, rows: int, blocks: int) -> Shape:
        return Shape(rows, 1 + self.draft, blocks, rows * (1 + self.draft))

    def _drafts(self, shape: Shape) -> bool:
        """Whether rows with drafts run in a program."""
        return shape in self._drafting_shapes()

    def _decode_shape(self, rows: int, blocks: int) -> Shape:
        outputs = min(LEAST_HEAD, self.max_rows)  # few sizes, so that there are few programs of logits
        while outputs < rows:
            outputs = min(HEAD_STEP * outputs, self.max_rows)
        return Shape(rows, 1, blocks, outputs, self.flat)


def _work(shape: Shape) -> tuple[int, Shape]:
    return shape.tokens * shape.blocks, shape
