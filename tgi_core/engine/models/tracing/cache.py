"""The cache that a model with attention of its own gets in a ragged step: its keys and values are traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from transformers import DynamicCache

from tgi_core.engine.models.tracing.tensors import LayerCall, Scored, keys_and_values


class TracedCache(DynamicCache):
    """Looks like a cache with `past` positions. `attend` computes a layer's attention, given the number of the layer in call order."""

    def __init__(self, attend: Callable[[int, LayerCall, Scored], Tensor], past: int = 0) -> None:
        super().__init__()
        self._attend, self._past, self._calls = attend, past, 0

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Keys and values of all positions for those of new tokens, [1, kv_heads, tokens, width]."""
        layer = self._calls
        self._calls += 1
        positions = self._past + key_states.shape[2]
        return keys_and_values(key_states, value_states, positions, lambda call, scored: self._attend(layer, call, scored))

    def get_seq_length(self, *args: Any, **kwargs: Any) -> int:
        """Positions before the new tokens."""
        return self._past

    def get_query_offset(self, *args: Any, **kwargs: Any) -> int:
        """The position of the first new token."""
        return self._past

    def get_mask_sizes(self, query_length: Any, *args: Any, **kwargs: Any) -> tuple[int, int]:
        """Positions that a mask covers, and the first of them. transformers 4 passes positions in place of their number."""
        return self._past + (query_length.shape[0] if isinstance(query_length, Tensor) else query_length), 0
