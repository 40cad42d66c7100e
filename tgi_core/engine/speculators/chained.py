"""The base of speculators that guess the first token from hidden states of the model, and the others from their own.

At place p they take the hidden states at p and the token at p + 1, and guess the token at p + 2. So what the last place of a block holds
depends on the first token of the next one. A row that reuses the block but continues with another token finds the state for the first
row's token: that makes a guess less likely to be right, but changes no answer.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from tgi_core.backend.batch_tracker import RowInput
from tgi_core.engine.attention.metadata import StepMetadata, build
from tgi_core.engine.memory import CacheBeside
from tgi_core.engine.runner import LayerStates, StepLogits
from tgi_core.engine.speculators.cached import CachedSpeculator, Guess


@runtime_checkable
class KeepsTokens(Protocol):
    """A runner over a paged cache that can keep the hidden states of all tokens of its steps. `beside` is another model's cache with the
    same blocks as this one's."""

    block_sizes: tuple[int, ...]
    beside: CacheBeside | None

    @property
    def embedding(self) -> Tensor:
        """The embeddings of its tokens [vocabulary, hidden]."""

    def keep_tokens(self) -> str:
        """Return the output head's input with each step from now on, in `StepLogits.layers`. Returns why it cannot; empty if it does."""

    def logits(self, hidden: Tensor) -> Tensor:
        """See `KeepsHidden.logits`."""


class ChainedSpeculator(CachedSpeculator):
    """See `CachedSpeculator`; a row's tokens are those of the model without the first."""

    def __init__(self, longest: int, num_bytes: int, device: torch.device) -> None:
        """See `CachedSpeculator`."""
        super().__init__(longest, num_bytes, behind=1)
        self._device = device
        self._hidden = torch.empty(0)
        """The hidden states before the newest guesses [guesses, hidden]."""

    @abstractmethod
    def combined(self, states: Tensor) -> Tensor:
        """Hidden states [tokens, hidden] from those of the model's layers [tokens, layers · hidden]."""

    @abstractmethod
    def run_layers(self, hidden: Tensor, step: StepMetadata, keep: Tensor) -> tuple[Tensor, Tensor]:
        """From the hidden states [tokens, hidden] before the tokens of a step: the likeliest tokens after those at `keep`, int64 [kept],
        and the hidden states [kept, hidden] before these."""

    def begin(self, guesses: Sequence[Guess], logits: StepLogits) -> list[int]:
        """See `CachedSpeculator.begin`."""
        if logits.layers is None:
            raise RuntimeError("a step without hidden states")
        row_inputs = [guess.row_input for guess in guesses]
        step = build(row_inputs, self._block_size, self._device)
        with torch.inference_mode():
            hidden = self.combined(_taken(logits.layers, step))
        return self._run(hidden, row_inputs, step)

    def go_on(self, guesses: Sequence[Guess]) -> list[int]:
        """See `CachedSpeculator.go_on`."""
        row_inputs = [guess.next() for guess in guesses]
        return self._run(self._hidden, row_inputs, build(row_inputs, self._block_size, self._device))

    def _run(self, hidden: Tensor, row_inputs: Sequence[RowInput], step: StepMetadata) -> list[int]:
        last = dict(zip((row_input.row.request.id for row_input in step.order), (step.cu_seqlens[1:] - 1).tolist(), strict=True))
        keep = torch.tensor([last[row_input.row.request.id] for row_input in row_inputs if row_input.yields], dtype=torch.int64)
        with torch.inference_mode():
            tokens, self._hidden = self.run_layers(hidden, step, keep.to(self._device))
        found: list[int] = tokens.tolist()
        return found


def _taken(layers: LayerStates, step: StepMetadata) -> Tensor:
    """The hidden states of a step's tokens, which come first among the rows' tokens in the model's step."""
    firsts = [(layers.first[row_input.row.request.id], row_input.take) for row_input in step.order]
    places = torch.cat([torch.arange(first, first + take) for first, take in firsts])
    return layers.states[places.to(layers.states.device)]
