"""A smaller model with the vocabulary of the model that it guesses for (Leviathan et al. 2023, arXiv 2211.17192), greedy.

It has a cache of its own in the blocks of the rows' tables, so that rows share prefixes in both. It runs each token that the model runs;
blocks that a row lacks for its newest token and the guesses come from a reserve, and are computed again in blocks of the row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from torch import Tensor

from tgi_core.backend import Capacity, InvalidModel, Memory, OutputOptions, Request, Row, WarmupPlan
from tgi_core.backend.batch_tracker import RowInput, RowState
from tgi_core.engine.memory import CacheBeside
from tgi_core.engine.models.shape import ModelShape
from tgi_core.engine.runner import Runner, StepLogits
from tgi_core.engine.speculators.base import Proposals, continued
from tgi_core.engine.speculators.files import MOST, SpeculatorConfig

_MOST_PADDING = 128
"""Tokens by which the vocabularies may differ: models of one family pad theirs to different sizes."""


@runtime_checkable
class PagedModel(Runner, Protocol):
    """A runner over a paged cache whose blocks others assign. `beside` is a cache of another model with the blocks of this one's."""

    shape: ModelShape
    beside: CacheBeside | None

    def cache_block_bytes(self, block_size: int) -> int:
        """Bytes of a block."""

    def use_cache(self, num_blocks: int, block_size: int) -> None:
        """Use a cache of that size until `release`."""


class DraftModel:
    """See `Speculator` and `CacheBeside`."""

    most = MOST

    def __init__(self, runner: PagedModel, shape: ModelShape, config: SpeculatorConfig) -> None:
        """`shape` is that of the model that it guesses for. Raises InvalidModel for another vocabulary."""
        own = runner.shape.vocab_size
        if abs(own - shape.vocab_size) > _MOST_PADDING:
            raise InvalidModel(
                f"speculator: {config.file}: has a vocabulary of {own} tokens, the model one of {shape.vocab_size}; "
                "a draft model needs the tokenizer of the model"
            )
        self.name = f"draft model ({str(config.values.get('model_type'))[:40]})"
        self._runner, self._vocab_size = runner, min(own, shape.vocab_size)
        self._block_size, self._spare = 0, list[int]()

    def block_bytes(self, block_size: int) -> int:
        """See `CacheBeside`."""
        return self._runner.cache_block_bytes(block_size)

    def spare_bytes(self, rows: int, draft: int, block_size: int) -> int:
        """See `CacheBeside`: the reserve."""
        return rows * -(-draft // block_size) * self.block_bytes(block_size)

    def reserve(self, plan: WarmupPlan, capacity: Capacity) -> Capacity:
        """See `Speculator.reserve`."""
        group = capacity.groups[0]
        spare = capacity.max_rows * -(-capacity.draft // group.block_size)
        self._block_size, self._spare = group.block_size, list(range(group.num_blocks + 1, group.num_blocks + 1 + spare))
        self._runner.use_cache(group.num_blocks + spare, group.block_size)
        return replace(capacity, memory=(*capacity.memory, Memory("speculator", self._runner.shape.weight_bytes)))

    def propose(self, row_inputs: Sequence[RowInput], rows: Sequence[Row], logits: StepLogits, count: int) -> Proposals:
        """See `Speculator.propose`."""
        longest = self._runner.shape.max_positions
        going = {row.request_id for row_input, row in continued(row_inputs, rows) if len(row_input.row.tokens) + count <= longest}
        spare = iter(self._spare)
        guessing = [
            _Guess.of(row_input, count if row_input.row.request.id in going else 0, self._block_size, spare)
            for row_input, row in zip(row_inputs, rows, strict=True)
            if row.fault is None and row_input.start + row_input.take <= longest
        ]
        if guessing:
            first = self._runner.run([guess.row_input for guess in guessing]).last
            guessing = [guess for guess in guessing if guess.row_input.yields]
            self._append(guessing, first)
        for _ in range(count - 1):
            if guessing:
                self._append(guessing, self._runner.run([guess.next() for guess in guessing]).last)
        return {guess.id: tuple(guess.row.tokens[guess.known :]) for guess in guessing}

    def release(self) -> None:
        """See `Speculator.release`."""
        self._runner.release()

    def _append(self, guessing: Sequence[_Guess], logits: Tensor) -> None:
        likeliest = logits[:, : self._vocab_size].argmax(-1).tolist()
        for guess, token in zip(guessing, likeliest, strict=True):
            guess.row.tokens.append(token)


@dataclass(slots=True)
class _Guess:
    """A row as the draft model runs it. `row_input` is its first step; `known` of its tokens are the model's."""

    row: RowState
    row_input: RowInput
    known: int

    @property
    def id(self) -> int:
        """The request's id."""
        return self.row.request.id

    @classmethod
    def of(cls, row_input: RowInput, count: int, block_size: int, spare: Iterator[int]) -> _Guess:
        """What follows a step's `row_input`: all tokens that the row has now if `count` are guessed, else those of the step."""
        known = len(row_input.row.tokens) if count else row_input.start + row_input.take - len(row_input.drafts)
        table = list(row_input.row.tables[0])
        table += [next(spare) for _ in range(len(table), -(-(known + count - 1) // block_size))]
        request = Request(row_input.row.request.id, (), 0, 0, (), 0, want=OutputOptions(logprobs=False))
        row = RowState(request, row_input.row.tokens[:known], known, (table,))
        return cls(row, RowInput(row, row_input.start, known - row_input.start, count > 0), known)

    def next(self) -> RowInput:
        """The step of the newest guess."""
        return RowInput(self.row, len(self.row.tokens) - 1, 1, True)
