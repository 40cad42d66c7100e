"""Attention for rows of any number of tokens, each after any number of positions in the cache."""

from __future__ import annotations

from collections.abc import Iterator

import triton
import triton.language as tl

from tgi_core.engine.triton.attention_blocks import attend, average, begin, first_visible, load_queries, store_heads
from tgi_core.engine.triton.builds import AttentionCase, Build, attention_cases
from tgi_core.engine.triton.tiles import Phase, Tile, TileTable, grown


@triton.jit
def find_row(cu_seqlens: tl.tensor, rows: tl.tensor, program: tl.tensor, tokens: tl.constexpr) -> tl.tensor:
    """Which row a program works on, and which block of `tokens` of its tokens.

    Row i owns programs from (its first token) // tokens + i on: at least as many as it needs, and the host need not know how many.
    """
    origin = tl.load(cu_seqlens)
    low, high = 0, rows
    while high - low > 1:
        middle = (low + high) // 2
        begins = (tl.load(cu_seqlens + middle) - origin) // tokens + middle
        if begins <= program:
            low = middle
        else:
            high = middle
    return low, program - ((tl.load(cu_seqlens + low) - origin) // tokens + low)


@triton.jit
def tiles_seen(
    earliest: tl.tensor, latest: tl.tensor, shape: tl.constexpr, positions: tl.constexpr, one_loop: tl.constexpr
) -> tl.tensor:
    """The tiles first…stop-1 that queries at `earliest`…`latest` see some of; all of them see all of clear…dim-1, which are none if
    `one_loop`."""
    first = first_visible(earliest, shape) // positions
    stop = tl.cdiv(latest + 1, positions)
    clear = tl.minimum(tl.cdiv(first_visible(latest, shape), positions), stop)
    dim = first if one_loop else tl.maximum((earliest + 1) // positions, clear)
    return first, clear, dim, stop


@triton.jit(
    do_not_specialize=["rows", "table_stride"],
    do_not_specialize_on_alignment=["cu_seqlens", "lengths", "tables"],
)
def varlen_kernel(
    out: tl.tensor,
    query: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    cu_seqlens: tl.tensor,
    lengths: tl.tensor,
    tables: tl.tensor,
    sinks: tl.tensor,
    slopes: tl.tensor,
    scale: tl.tensor,
    value_scale: tl.tensor,
    rows: tl.tensor,
    table_stride: tl.tensor,
    head_stride: tl.tensor,
    token_stride: tl.tensor,
    shape: tl.constexpr,
    queries: tl.constexpr,
    positions: tl.constexpr,
    one_loop: tl.constexpr,
) -> None:
    """One tile of queries: a few tokens of a row, with the heads that share one KV head.

    Grid [kv_heads, programs]; the last tokens of a row, which see the most, come first. Tiles that all queries see have a loop without
    masks, unless `one_loop`.
    """
    tokens: tl.constexpr = queries // shape.group
    row, block = find_row(cu_seqlens, rows, tl.num_programs(1) - 1 - tl.program_id(1), tokens)
    start = tl.load(cu_seqlens + row)
    take = tl.load(cu_seqlens + row + 1) - start
    if block * tokens >= take:
        return
    length = tl.load(lengths + row)
    kv_head = tl.program_id(0)
    lane = tl.arange(0, queries)
    index = block * tokens + lane // shape.group
    head = kv_head * shape.group + lane % shape.group
    there = (lane < tokens * shape.group) & (index < take)
    query_position = length - take + index
    q = load_queries(query, start + index, head, there, head_stride, token_stride, shape)
    slope = tl.load(slopes + head, mask=there, other=0.0).to(tl.float32) if shape.alibi else None
    acc, peak, total = begin(sinks, head, there, there, queries, shape)

    earliest = length - take + block * tokens
    lowest = first_visible(earliest, shape)
    first, clear, dim, stop = tiles_seen(earliest, tl.minimum(earliest + tokens, length) - 1, shape, positions, one_loop)
    k, v = keys + kv_head * shape.key_width, values + kv_head * shape.value_width
    table = tables + row * table_stride
    if shape.limited and not one_loop:
        acc, peak, total = attend(
            acc, peak, total, q, query_position, slope, k, v, table, scale, first, clear, lowest, length, shape, positions, True
        )
    if not one_loop:
        acc, peak, total = attend(
            acc, peak, total, q, query_position, slope, k, v, table, scale, clear, dim, lowest, length, shape, positions, False
        )
    acc, peak, total = attend(
        acc, peak, total, q, query_position, slope, k, v, table, scale, dim, stop, lowest, length, shape, positions, True
    )
    store_heads(out, (start + index).to(tl.int64) * shape.heads + head, there, average(acc, total, value_scale), shape)


def builds(tiles: TileTable) -> Iterator[Build]:
    """Prefill with its own tiles, and rows of few tokens with those of decode."""
    for case in attention_cases(tiles):
        tile = grown(case.tile(tiles, Phase.PREFILL), case.shape.group)
        yield _build(case, tile)
        if case.feature == "plain":
            yield _build(case, case.tile(tiles, Phase.DECODE), "few tokens")


def _build(case: AttentionCase, tile: Tile, feature: str = "") -> Build:
    constants = {"shape": case.shape, "queries": tile.queries, "positions": tile.positions, "one_loop": tile.one_loop}
    return Build(varlen_kernel, case.types(), constants, tile.launch_options(), case.labels("varlen", feature), tile.programs)
