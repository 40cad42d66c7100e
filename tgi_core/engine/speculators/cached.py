"""The base of speculators that keep keys and values of rows, in the blocks of the rows' tables, so that rows share prefixes in both caches.

They run each token that the model runs. Blocks that a row lacks for its newest token and the guesses come from a reserve; their positions
are computed again in the row's own blocks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tgi_core.backend import Capacity, Memory, OutputOptions, Request, Row, WarmupPlan
from tgi_core.backend.batch_tracker import RowInput, RowState
from tgi_core.engine.runner import StepLogits
from tgi_core.engine.speculators.base import Proposals, continued
from tgi_core.engine.speculators.files import MOST


@dataclass(slots=True)
class Guess:
    """A row as the speculator runs it. `row_input` is its first step; `known` of its tokens are the model's."""

    row: RowState
    row_input: RowInput
    known: int

    @property
    def id(self) -> int:
        """The request's id."""
        return self.row.request.id

    @classmethod
    def of(cls, row_input: RowInput, tokens: list[int], count: int, block_size: int, spare: Iterator[int]) -> Guess:
        """The row as of a step's `row_input`: with all `tokens` that it has now if `count` are guessed, else with those of the step."""
        known = len(tokens) if count else min(len(tokens), row_input.start + row_input.take - len(row_input.drafts))
        table = list(row_input.row.tables[0])
        table += [next(spare) for _ in range(len(table), -(-(known + count - 1) // block_size))]
        request = Request(row_input.row.request.id, (), 0, 0, (), 0, want=OutputOptions(logprobs=False))
        row = RowState(request, tokens[:known], known, (table,))
        return cls(row, RowInput(row, row_input.start, known - row_input.start, count > 0), known)

    def next(self) -> RowInput:
        """The step of the newest guess."""
        return RowInput(self.row, len(self.row.tokens) - 1, 1, True)


class CachedSpeculator(ABC):
    """See `Speculator` and `CacheBeside`."""

    most = MOST
    name: str

    def __init__(self, longest: int, num_bytes: int, behind: int = 0) -> None:
        """It runs rows of up to `longest` tokens, minus their first `behind`; `num_bytes` is the size of its weights."""
        self._longest, self._num_bytes, self._behind = longest, num_bytes, behind
        self._block_size, self._spare = 0, list[int]()

    @abstractmethod
    def block_bytes(self, block_size: int) -> int:
        """See `CacheBeside`."""

    def spare_bytes(self, rows: int, draft: int, step_tokens: int, block_size: int) -> int:
        """See `CacheBeside`: the reserve."""
        return rows * -(-draft // block_size) * self.block_bytes(block_size)

    @abstractmethod
    def use_cache(self, num_blocks: int, block_size: int) -> None:
        """Use a cache of this size until `release`."""

    @abstractmethod
    def release(self) -> None:
        """See `Speculator.release`."""

    @abstractmethod
    def begin(self, guesses: Sequence[Guess], logits: StepLogits) -> list[int]:
        """Run the `row_input` of guesses after a step of the model. Returns the likeliest tokens after those that yield."""

    @abstractmethod
    def go_on(self, guesses: Sequence[Guess]) -> list[int]:
        """Run the newest tokens of the guesses that yielded. Returns the likeliest tokens after them."""

    def reserve(self, plan: WarmupPlan, capacity: Capacity) -> Capacity:
        """See `Speculator.reserve`."""
        group = capacity.groups[0]
        spare = capacity.max_rows * -(-capacity.draft // group.block_size)
        self._block_size, self._spare = group.block_size, list(range(group.num_blocks + 1, group.num_blocks + 1 + spare))
        self.use_cache(group.num_blocks + spare, group.block_size)
        return replace(capacity, memory=(*capacity.memory, Memory("speculator", self._num_bytes)))

    def propose(self, row_inputs: Sequence[RowInput], rows: Sequence[Row], logits: StepLogits, count: int) -> Proposals:
        """See `Speculator.propose`."""
        longest = self._longest
        going = {row.request_id for row_input, row in continued(row_inputs, rows) if len(row_input.row.tokens) + count <= longest}
        spare = iter(self._spare)
        guesses = [
            Guess.of(
                row_input,
                row_input.row.tokens[self._behind :],
                count if row_input.row.request.id in going else 0,
                self._block_size,
                spare,
            )
            for row_input, row in zip(row_inputs, rows, strict=True)
            if row.fault is None and row_input.start + row_input.take <= longest
        ]
        if guesses:
            first = self.begin(guesses, logits)
            guesses = [guess for guess in guesses if guess.row_input.yields]
            _append(guesses, first)
        for _ in range(count - 1):
            if guesses:
                _append(guesses, self.go_on(guesses))
        return {guess.id: tuple(guess.row.tokens[guess.known :]) for guess in guesses}


def unshared_blocks(name: str, own: tuple[int, ...], model: tuple[int, ...]) -> str:
    """Why a speculator that supports block sizes `own` cannot share the block tables of a model that supports `model`; empty if it
    can."""
    return "" if set(model) <= set(own) else f"{name} runs with blocks of {own} tokens, the model with {model}"


def _append(guesses: Sequence[Guess], tokens: Sequence[int]) -> None:
    for guess, token in zip(guesses, tokens, strict=True):
        guess.row.tokens.append(token)
