"""Attention on a Gaudi: prompts by Intel's `FusedSDPA`, decode rows over one list of blocks in plain torch."""

from __future__ import annotations

import importlib
import math
from typing import Any

import torch
from torch import Tensor

from tgi_core.engine.attention.cache import LayerCache, LayerShape
from tgi_core.engine.attention.interface import AttentionParameters
from tgi_core.engine.static.attention import BlockStep, FlatAttention

BLOCK_SIZES = (128,)
"""Smaller blocks work, very slowly (vLLM's plugin for this device)."""


class HabanaCache(LayerCache):
    """The same blocks, with one tensor each for keys and values: a compiler must not have to find out that two of its inputs overlap."""

    __slots__ = ()

    def __init__(self, shape: LayerShape, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device) -> None:
        rows = (num_blocks + 1, block_size, shape.kv_heads)
        self.keys = torch.zeros(*rows, shape.key_width, dtype=dtype, device=device)
        self.values = torch.zeros(*rows, shape.value_width, dtype=dtype, device=device)

    def write(self, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Store key and value [kv_heads, tokens, width] at `slots` [tokens]; none is −1."""
        for cached, given in ((self.keys, key), (self.values, value)):
            cached.view(-1, *cached.shape[2:]).index_copy_(0, slots, given.transpose(0, 1).to(cached.dtype))

    def zero_blocks(self, blocks: Tensor) -> None:
        """See `LayerCache.zero_blocks`."""
        self.keys.index_fill_(0, blocks, 0)
        self.values.index_fill_(0, blocks, 0)


class HabanaAttention(FlatAttention):
    """The provider `flat`: plain torch."""

    def new_layer(
        self, shape: LayerShape, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> LayerCache:
        """One tensor each."""
        return HabanaCache(shape, num_blocks, block_size, dtype, device)


class FusedAttention(HabanaAttention):
    """The provider `fused-sdpa`: prompts attend to what is in their blocks under a mask, since a chunk may begin anywhere in its row."""

    name = "fused-sdpa"
    _fused: Any = None

    def probe(self) -> str:
        """Why the kernel cannot be used; empty if it is there."""
        try:
            self._fused = importlib.import_module("habana_frameworks.torch.hpex.kernels").FusedSDPA
        except (AttributeError, ImportError) as error:
            return f"no FusedSDPA: {error}"
        return ""

    def rows(self, query: Tensor, cache: LayerCache, step: BlockStep, parameters: AttentionParameters) -> Tensor:
        """query [tokens, heads, width] → the same shape."""
        if step.take == 1:
            return super().rows(query, cache, step, parameters)
        key, value = (
            each.index_select(0, step.blocks).flatten(0, 1).transpose(0, 1).unsqueeze(0) for each in (cache.keys, cache.values)
        )
        ahead = step.positions.unsqueeze(1) - torch.arange(key.shape[2], device=query.device)
        unseen = ahead < 0 if parameters.window is None else (ahead < 0) | (ahead >= parameters.window)
        mask = torch.zeros(1, 1, *ahead.shape, dtype=query.dtype, device=query.device).masked_fill(unseen, -math.inf)
        softmax = "fp32" if query.dtype is torch.float32 else "fast"
        wide = query.transpose(0, 1).unsqueeze(0)
        # By place, as the kernel has it: dropout, causal, scale, softmax, recompute, valid lengths and padding side, which need no mask.
        out = self._fused.apply(wide, key, value, mask, 0.0, False, parameters.scaling, softmax, True, None, "right")
        attended: Tensor = out.squeeze(0).transpose(0, 1)
        return attended
