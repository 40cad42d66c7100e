"""The sizes of a model that memory and limits depend on."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tgi_core.backend import Memory


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes in elements; `weight_bytes` counts tied weights once, and no adapters."""

    dtype: torch.dtype
    vocab_size: int
    max_positions: int
    hidden_size: int
    intermediate_size: int
    weight_bytes: int
    adapter_bytes: int = 0

    @property
    def weights(self) -> tuple[Memory, ...]:
        """The memory of the weights, labelled with their dtype, and of the adapters."""
        adapters = (Memory("adapters", self.adapter_bytes),) if self.adapter_bytes else ()
        return Memory(f"weights ({str(self.dtype).removeprefix('torch.')})", self.weight_bytes), *adapters

    def activation_bytes(self, rows: int, step_tokens: int) -> int:
        """A step's estimated memory beside weights and cache: hidden states, a layer's inner states, and logits in double precision."""
        per_token = (8 * self.hidden_size + 4 * self.intermediate_size) * max(self.dtype.itemsize, 4)
        return step_tokens * per_token + self.sampling_bytes(rows)

    def sampling_bytes(self, rows: int) -> int:
        """Memory for sampling `rows` rows: logits, and a few tensors of their size, in double precision."""
        return rows * self.vocab_size * 8 * 4
