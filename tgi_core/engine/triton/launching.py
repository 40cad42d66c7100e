"""Launching the attention kernels: grids, strides and buffers, from what the host knows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from tgi_core.engine.attention.metadata import StepArrays
from tgi_core.engine.triton.cache_write import WRITE_TOKENS, write_kernel
from tgi_core.engine.triton.decode import decode_kernel, join_kernel
from tgi_core.engine.triton.shape import AttentionShape
from tgi_core.engine.triton.tiles import Tile, split_count
from tgi_core.engine.triton.varlen import varlen_kernel


@dataclass(frozen=True, slots=True)
class Operands:
    """What both attention kernels read and write.

    `out` [tokens, heads, value_width] is contiguous, `query` [heads, tokens, key_width] in its last dimension; `keys` and `values` are
    [blocks, page, kv_heads, width]. `scale` multiplies products of query and key as they are stored, `value_scale` stored values.
    `sinks` and `slopes` [heads], where the shape has them.
    """

    shape: AttentionShape
    out: Tensor
    query: Tensor
    keys: Tensor
    values: Tensor
    scale: float
    value_scale: float = 1.0
    sinks: Tensor | None = None
    slopes: Tensor | None = None


def launch_varlen(operands: Operands, step: StepArrays, tile: Tile) -> None:
    """Attention for the rows behind the decode rows, in tiles of at least `shape.group` queries."""
    shape, first = operands.shape, step.decode_rows
    rows = step.lengths.shape[0] - first
    tokens = operands.query.shape[1] - first
    programs = tokens // (tile.queries // shape.group) + rows
    varlen_kernel[(shape.kv_heads, programs)](
        operands.out,
        operands.query,
        operands.keys,
        operands.values,
        step.cu_seqlens[first:],
        step.lengths[first:],
        step.tables[first:],
        operands.sinks,
        operands.slopes,
        operands.scale,
        operands.value_scale,
        rows,
        step.tables.stride(0),
        operands.query.stride(0),
        operands.query.stride(1),
        shape=shape,
        queries=tile.queries,
        positions=tile.positions,
        one_loop=tile.one_loop,
        **tile.launch_options(),
    )


def decode_splits(shape: AttentionShape, step: StepArrays, tile: Tile, multiprocessors: int) -> int:
    """Into how many parts the decode rows are split; from host numbers, so that a captured step may be run for other lengths."""
    programs = step.decode_rows * shape.kv_heads * -(-shape.group // tile.queries)
    reach = step.max_length if shape.window is None else min(step.max_length, shape.window)
    return split_count(programs, -(-reach // tile.positions), multiprocessors * tile.programs)


def launch_decode(operands: Operands, step: StepArrays, tile: Tile, splits: int) -> None:
    """Attention for the decode rows, whose positions are split into `splits` parts."""
    shape, rows = operands.shape, step.decode_rows
    partials = weights = None
    if splits > 1:
        device = operands.query.device
        partials = torch.empty(rows, shape.heads, splits, shape.value_width, dtype=torch.float32, device=device)
        weights = torch.empty(rows, shape.heads, splits, dtype=torch.float32, device=device)
    decode_kernel[(shape.kv_heads * -(-shape.group // tile.queries), splits, rows)](
        operands.out,
        partials,
        weights,
        operands.query,
        operands.keys,
        operands.values,
        step.lengths,
        step.tables,
        operands.sinks,
        operands.slopes,
        operands.scale,
        operands.value_scale,
        step.tables.stride(0),
        operands.query.stride(0),
        operands.query.stride(1),
        shape=shape,
        queries=tile.queries,
        positions=tile.positions,
        whole=splits == 1,
        **tile.launch_options(),
    )
    if splits > 1:
        join_kernel[(shape.heads, rows)](
            operands.out, partials, weights, splits, heads=shape.heads, width=shape.value_width, block=shape.value_block
        )


def launch_write(
    shape: AttentionShape,
    keys: Tensor,
    values: Tensor,
    key: Tensor,
    value: Tensor,
    slots: Tensor,
    inverses: tuple[float, float] = (1.0, 1.0),
) -> None:
    """Copy key and value [kv_heads, tokens, width] to `slots` [tokens] of the cache; slot -1 is not written.

    `inverses` are of the scales of keys and values, for a cache of another type.
    """
    tokens = slots.shape[0]
    write_kernel[(triton.cdiv(tokens, WRITE_TOKENS), shape.kv_heads)](
        keys,
        values,
        key,
        value,
        slots,
        *inverses,
        tokens,
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        shape=shape,
        block=WRITE_TOKENS,
    )
