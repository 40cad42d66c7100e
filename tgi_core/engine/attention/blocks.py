"""Attention over the cache's blocks in fixed shapes: rows' tables for prompts, and for decode rows either those or one list of blocks.

Plain torch, for any compiler: no operator reads a value on the host, and no shape depends on one. Vendors replace `TableAttention` or
`FlatAttention` with their own kernels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tgi_core.engine.attention.cache import LayerShape, PagedLayer
from tgi_core.engine.attention.interface import AttentionParameters
from tgi_core.engine.attention.metadata import FlatTokens
from tgi_core.engine.attention.plain import PlainAttention


@dataclass(frozen=True, slots=True)
class BlockStep:
    """The flat tokens of one program: `take` of each of `rows` rows, all int64.

    `begun` [rows] are the blocks that rows begin but do not fill, or the null block. With `owners` None, `blocks` [rows · blocks] are the
    rows' tables; else `blocks` [blocks] belong to the rows `owners` [blocks], `rows` for padding, and `offsets` [blocks] are the rows'
    newest positions, counted from the beginning of the block.
    """

    rows: int
    take: int
    input_ids: Tensor
    positions: Tensor
    slots: Tensor
    begun: Tensor | None
    blocks: Tensor
    owners: Tensor | None = None
    offsets: Tensor | None = None


class BlockLayer:
    """Keys and values of one layer in their blocks and the null block, [num_blocks + 1, block_size, kv_heads, width] each, never as
    views: a compiler should not have to detect that two of its inputs overlap."""

    __slots__ = ("keys", "values")

    def __init__(self, shape: LayerShape, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device) -> None:
        rows = (num_blocks + 1, block_size, shape.kv_heads)
        self.keys = torch.zeros(*rows, shape.key_width, dtype=dtype, device=device)
        self.values = torch.zeros(*rows, shape.value_width, dtype=dtype, device=device)

    def write(self, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Store key and value [kv_heads, tokens, width] at `slots` [tokens]; none is −1."""
        for cached, given in ((self.keys, key), (self.values, value)):
            cached.view(-1, *cached.shape[2:]).index_copy_(0, slots, given.transpose(0, 1).to(cached.dtype))

    def zero_blocks(self, blocks: Tensor) -> None:
        """Zero whole blocks; see `LayerCache.zero_blocks`."""
        self.keys.index_fill_(0, blocks, 0)
        self.values.index_fill_(0, blocks, 0)


class TableAttention(PlainAttention):
    """The provider of static devices: decode rows and prompts gather the blocks of their tables."""

    name = "tables"

    def __init__(self, block_sizes: tuple[int, ...] = (128, 64, 32)) -> None:
        self.block_sizes = block_sizes

    def refusal(self, layers: Sequence[LayerShape], asked: Sequence[AttentionParameters], dtype: torch.dtype) -> str:
        """Why these layers are not supported; decoder tables have nothing that is refused."""
        odd = [
            each for each in asked if any(x is not None for x in (each.softcap, each.chunk, each.sinks, each.bias, each.selected))
        ]
        return "no soft caps, chunks, sinks, biases or indexes" if odd else ""

    def new_layer(
        self, shape: LayerShape, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> BlockLayer:
        """One tensor each."""
        return BlockLayer(shape, num_blocks, block_size, dtype, device)

    def attend(self, query: Tensor, cache: PagedLayer, step: FlatTokens, parameters: AttentionParameters) -> Tensor:
        """query [heads, tokens, width] over what lies in the cache → [tokens, heads, width]."""
        if not isinstance(cache, BlockLayer) or not isinstance(step, BlockStep):
            raise TypeError("static attention runs in static programs only")
        return self.rows(query.transpose(0, 1), cache, step, parameters)

    def rows(self, query: Tensor, cache: BlockLayer, step: BlockStep, parameters: AttentionParameters) -> Tensor:
        """query [tokens, heads, width] → the same shape, by tables."""
        key, value = (
            each.index_select(0, step.blocks).unflatten(0, (step.rows, -1)).flatten(1, 2) for each in (cache.keys, cache.values)
        )
        grouped = query.unflatten(0, (step.rows, step.take)).unflatten(2, (key.shape[2], -1)).float() * parameters.scaling
        scores = torch.einsum("rtkgd,rskd->rkgts", grouped, key.float())
        ahead = step.positions.view(step.rows, step.take, 1) - torch.arange(key.shape[1], device=query.device)
        hidden = _hidden(ahead, parameters).view(step.rows, 1, 1, step.take, -1)
        weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
        out = torch.einsum("rkgts,rskd->rtkgd", weights, value.float())
        return out.flatten(2, 3).flatten(0, 1).to(query.dtype)


class FlatAttention(TableAttention):
    """The same, but decode rows share one list of blocks, so that short rows do not gather as many as the longest one."""

    name = "flat"

    def rows(self, query: Tensor, cache: BlockLayer, step: BlockStep, parameters: AttentionParameters) -> Tensor:
        """query [tokens, heads, width] → the same shape."""
        if step.owners is None or step.offsets is None:
            return super().rows(query, cache, step, parameters)
        key, value = (each.index_select(0, step.blocks) for each in (cache.keys, cache.values))
        owners = step.owners
        padded = torch.cat((query, query[:1]))  # padding blocks belong to an extra row
        grouped = padded.index_select(0, owners).unflatten(1, (key.shape[2], -1)).float() * parameters.scaling
        scores = torch.einsum("nkgd,nskd->nkgs", grouped, key.float())
        ahead = step.offsets.view(-1, 1) - torch.arange(key.shape[1], device=query.device)
        scores = scores.masked_fill(_hidden(ahead, parameters).view(len(key), 1, 1, -1), -math.inf)
        weights = (scores - _row_maxima(scores.amax(-1), owners, step.rows).unsqueeze(-1)).exp()
        # Sum by index, not with a matrix of zeros and ones: a NaN in one row would spread to the others.
        sums, outs = (weights.new_zeros(step.rows + 1, *query.shape[1:-1], size) for size in (1, value.shape[-1]))
        sums = sums.index_add(0, owners, weights.sum(-1, keepdim=True).flatten(1, 2))
        outs = outs.index_add(0, owners, torch.einsum("nkgs,nskd->nkgd", weights, value.float()).flatten(1, 2))
        return (outs / sums.clamp_min(1e-30))[: step.rows].to(query.dtype)


def _hidden(ahead: Tensor, parameters: AttentionParameters) -> Tensor:
    """Whether a query does not see a position that far behind it."""
    hidden = ahead < 0
    return hidden if parameters.window is None else hidden | (ahead >= parameters.window)


def _row_maxima(maxima: Tensor, owners: Tensor, rows: int) -> Tensor:
    """maxima [blocks, …] of single blocks → maxima of the rows that own them, in the same shape."""
    others = owners.view(-1, 1) != torch.arange(rows + 1, device=owners.device)
    spread = maxima.unsqueeze(1).masked_fill(others.view(len(maxima), rows + 1, 1, 1), -1e30)
    return spread.amax(0).index_select(0, owners)
