"""A smaller model with the vocabulary of the model that it guesses for (Leviathan et al. 2023, arXiv 2211.17192), greedy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

from tgi_core.backend import InvalidModel
from tgi_core.engine.memory import CacheBeside
from tgi_core.engine.models.shape import ModelShape
from tgi_core.engine.runner import Runner, StepLogits
from tgi_core.engine.speculators.cached import CachedSpeculator, Guess
from tgi_core.engine.speculators.files import SpeculatorConfig

_MOST_PADDING = 128
"""Tokens by which the vocabularies may differ: models of one family pad theirs to different sizes."""


@runtime_checkable
class PagedModel(Runner, Protocol):
    """A runner over a paged cache whose blocks others assign. `beside` is another model's cache with the same blocks as this one's."""

    shape: ModelShape
    beside: CacheBeside | None

    def cache_block_bytes(self, block_size: int) -> int:
        """Bytes of a block."""

    def use_cache(self, num_blocks: int, block_size: int) -> None:
        """Use a cache of this size until `release`."""


class DraftModel(CachedSpeculator):
    """See `CachedSpeculator`."""

    def __init__(self, runner: PagedModel, shape: ModelShape, config: SpeculatorConfig) -> None:
        """`shape` is that of the model that it guesses for. Raises InvalidModel for another vocabulary."""
        own = runner.shape.vocab_size
        if abs(own - shape.vocab_size) > _MOST_PADDING:
            raise InvalidModel(
                f"speculator: {config.file}: has a vocabulary of {own} tokens, the model one of {shape.vocab_size}; "
                "a draft model needs the tokenizer of the model"
            )
        super().__init__(runner.shape.max_positions, runner.shape.weight_bytes)
        self.name = f"draft model ({str(config.values.get('model_type'))[:40]})"
        self._runner, self._vocab_size = runner, min(own, shape.vocab_size)

    def block_bytes(self, block_size: int) -> int:
        """See `CacheBeside`."""
        return self._runner.cache_block_bytes(block_size)

    def use_cache(self, num_blocks: int, block_size: int) -> None:
        """See `CachedSpeculator.use_cache`."""
        self._runner.use_cache(num_blocks, block_size)

    def begin(self, guesses: Sequence[Guess], logits: StepLogits) -> list[int]:
        """See `CachedSpeculator.begin`."""
        return self._likeliest(self._runner.run([guess.row_input for guess in guesses]).last)

    def go_on(self, guesses: Sequence[Guess]) -> list[int]:
        """See `CachedSpeculator.go_on`."""
        return self._likeliest(self._runner.run([guess.next() for guess in guesses]).last)

    def release(self) -> None:
        """See `Speculator.release`."""
        self._runner.release()

    def _likeliest(self, logits: Tensor) -> list[int]:
        tokens: list[int] = logits[:, : self._vocab_size].argmax(-1).tolist()
        return tokens
