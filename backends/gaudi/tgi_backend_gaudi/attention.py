"""Attention on a Gaudi: prompts by Intel's `FusedSDPA`, decode rows over one list of blocks in plain torch."""

from __future__ import annotations

import importlib
import math
from typing import Any

import torch
from torch import Tensor

from tgi_core.engine.attention.blocks import BlockLayer, BlockStep, FlatAttention
from tgi_core.engine.attention.interface import AttentionParameters

BLOCK_SIZES = (128,)
"""Smaller blocks work, but very slowly (vLLM's plugin for this device)."""


class FusedAttention(FlatAttention):
    """The provider `fused-sdpa`: prompts, and rows with drafts, attend to what is in their blocks under a mask, since a chunk may begin
    anywhere in its row."""

    name = "fused-sdpa"
    _fused: Any = None

    def probe(self) -> str:
        """Why the kernel cannot be used; empty if it can."""
        try:
            self._fused = importlib.import_module("habana_frameworks.torch.hpex.kernels").FusedSDPA
        except (AttributeError, ImportError) as error:
            return f"no FusedSDPA: {error}"
        return ""

    def rows(self, query: Tensor, cache: BlockLayer, step: BlockStep, parameters: AttentionParameters) -> Tensor:
        """query [tokens, heads, width] → the same shape."""
        if step.take == 1:
            return super().rows(query, cache, step, parameters)
        key, value = (
            each.index_select(0, step.blocks).unflatten(0, (step.rows, -1)).flatten(1, 2).transpose(1, 2)
            for each in (cache.keys, cache.values)
        )
        ahead = step.positions.view(step.rows, 1, step.take, 1) - torch.arange(key.shape[2], device=query.device)
        unseen = ahead < 0 if parameters.window is None else (ahead < 0) | (ahead >= parameters.window)
        mask = torch.zeros(ahead.shape, dtype=query.dtype, device=query.device).masked_fill(unseen, -math.inf)
        softmax = "fp32" if query.dtype is torch.float32 else "fast"
        wide = query.unflatten(0, (step.rows, step.take)).transpose(1, 2)
        # Positional, as in the kernel: dropout, causal, scale, softmax, recompute, valid lengths and padding side, which need no mask.
        out = self._fused.apply(wide, key, value, mask, 0.0, False, parameters.scaling, softmax, True, None, "right")
        attended: Tensor = out.transpose(1, 2).flatten(0, 1)
        return attended
