"""The common part of attention providers made of torch's operators, which run anywhere."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tgi_core.engine.attention.cache import BLOCK_SIZES, LayerCache, LayerShape, PagedLayer


class PlainAttention:
    """An `AttentionProvider` without `refusal` and `attend`."""

    block_sizes: tuple[int, ...] = BLOCK_SIZES
    kv_cache_dtypes: tuple[torch.dtype, ...] = ()
    invariant = False
    sees_ahead = False

    def probe(self) -> str:
        """Nothing is needed."""
        return ""

    def self_check(self, layers: Sequence[object], dtype: torch.dtype, device: torch.device) -> str:
        """Empty: the self-check of the whole model runs it."""
        return ""

    def new_layer(
        self, shape: LayerShape, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> PagedLayer:
        """Keys and values as two plain tensors."""
        return LayerCache(shape, num_blocks, block_size, dtype, device)
