"""The few numbers of a model that sizes and limits depend on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tgi_core.backend import Memory

if TYPE_CHECKING:
    from transformers import PreTrainedModel

UNLIMITED_POSITIONS = 32768
"""What to promise for models whose config names no limit, such as state-space models."""


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

    @classmethod
    def of(cls, model: PreTrainedModel, dtype: torch.dtype) -> ModelShape:
        """Read a model's shape off its config and parameters."""
        from tgi_core.engine.models.build import max_positions, text_config

        config = text_config(model.config)
        hidden = int(getattr(config, "hidden_size", 0) or getattr(config, "n_embd", 0) or getattr(config, "d_model", 0))
        inner = getattr(config, "intermediate_size", None)
        return cls(
            dtype=dtype,
            vocab_size=int(config.vocab_size),
            max_positions=max_positions(model.config) or UNLIMITED_POSITIONS,
            hidden_size=hidden,
            intermediate_size=inner if isinstance(inner, int) else 4 * hidden,
            weight_bytes=sum({p.data_ptr(): p.numel() * p.itemsize for p in model.parameters()}.values()),
        )

    @property
    def weights(self) -> tuple[Memory, ...]:
        """The shares of memory that the weights, named with their dtype, and the adapters take."""
        adapters = (Memory("adapters", self.adapter_bytes),) if self.adapter_bytes else ()
        return Memory(f"weights ({str(self.dtype).removeprefix('torch.')})", self.weight_bytes), *adapters

    def activation_bytes(self, rows: int, step_tokens: int) -> int:
        """What one step needs beside weights and cache: hidden states, a layer's inner states, and logits in double precision."""
        per_token = (8 * self.hidden_size + 4 * self.intermediate_size) * max(self.dtype.itemsize, 4)
        return step_tokens * per_token + self.sampling_bytes(rows)

    def sampling_bytes(self, rows: int) -> int:
        """What choosing the tokens of so many rows needs: logits, and a few of their size, in double precision."""
        return rows * self.vocab_size * 8 * 4
