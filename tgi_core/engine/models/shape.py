"""The sizes of a model that memory and limits depend on."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tgi_core.backend import Memory
from tgi_core.engine.prompt_scores import CHUNK

_SORTING_BYTES = 112
"""Bytes per logit, measured, for rows with penalties whose filters sort the whole vocabulary in double precision."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes in elements; `weight_bytes` counts tied weights once, and no adapters. With `whole_head`, the output head cannot run
    separately, so that all logits of a scored prompt's chunk exist at once.
    """

    dtype: torch.dtype
    vocab_size: int
    max_positions: int
    hidden_size: int
    intermediate_size: int
    weight_bytes: int
    adapter_bytes: int = 0
    image_bytes: int = 0
    """Bytes of what is kept of images."""
    whole_head: bool = False
    token_bytes: int | None = None
    """Bytes of a token's intermediate activations in a step, if the runner knows them; its logits are then float32. None: estimated."""

    @property
    def weights(self) -> tuple[Memory, ...]:
        """The memory of the weights, labelled with their dtype, of the adapters, and of images."""
        others = (Memory("adapters", self.adapter_bytes), Memory("images", self.image_bytes))
        kept = tuple(each for each in others if each.num_bytes)
        return Memory(f"weights ({str(self.dtype).removeprefix('torch.')})", self.weight_bytes), *kept

    def activation_bytes(self, rows: int, step_tokens: int) -> int:
        """A step's memory besides weights and cache: hidden states, a layer's intermediate activations, and what sampling and prompt
        logprobs need in turn."""
        if self.token_bytes is not None:
            sorting = rows * self.vocab_size * _SORTING_BYTES
            return step_tokens * self.token_bytes + max(sorting, self.scoring_bytes(step_tokens))
        per_token = (8 * self.hidden_size + 4 * self.intermediate_size) * max(self.dtype.itemsize, 4)
        return step_tokens * per_token + self.sampling_bytes(rows) + self.scoring_bytes(step_tokens)

    def sampling_bytes(self, rows: int) -> int:
        """Memory for sampling `rows` rows: logits, and a few tensors of their size, in double precision."""
        return rows * self.vocab_size * 8 * 4

    def scoring_bytes(self, step_tokens: int) -> int:
        """Memory for logprobs of prompt tokens: float32 scores of the positions that are scored at a time, and their logprobs; a soft cap
        of the logits, which takes a copy of them, comes before. If all logits of a step exist at once, they and either."""
        chunk = min(CHUNK, step_tokens) * self.vocab_size * (4 + 4)
        if not self.whole_head:
            return chunk
        logits = step_tokens * self.vocab_size * (4 if self.token_bytes is not None else self.dtype.itemsize)
        return logits + max(logits, chunk)
