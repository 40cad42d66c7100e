"""Attention for rows of one token: split-KV, with the splits combined in a fixed order."""

from __future__ import annotations

from collections.abc import Iterator

import triton
import triton.language as tl

from tgi_core.engine.triton.attention_blocks import attend, average, begin, first_visible, load_queries, store_heads
from tgi_core.engine.triton.builds import Build, attention_cases
from tgi_core.engine.triton.tiles import MAX_SPLITS, Phase, TileTable

_MAX_SPLITS = tl.constexpr(MAX_SPLITS)


@triton.jit(do_not_specialize=["table_stride"], do_not_specialize_on_alignment=["lengths", "tables"])
def decode_kernel(
    out: tl.tensor,
    partials: tl.tensor,
    weights: tl.tensor,
    query: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    lengths: tl.tensor,
    tables: tl.tensor,
    sinks: tl.tensor,
    slopes: tl.tensor,
    scale: tl.tensor,
    value_scale: tl.tensor,
    table_stride: tl.tensor,
    head_stride: tl.tensor,
    token_stride: tl.tensor,
    shape: tl.constexpr,
    queries: tl.constexpr,
    positions: tl.constexpr,
    whole: tl.constexpr,
) -> None:
    """The heads of one KV head, or some of them where they are more than `queries`, over one part of one row.

    Grid [kv_heads · parts of a group, splits, rows]. Where the split is `whole` the result goes to `out`; else its mean goes to
    `partials` [rows, heads, splits, value_width] and the logarithm of its weight to `weights` [rows, heads, splits].
    """
    parts: tl.constexpr = (shape.group + queries - 1) // queries
    kv_head, part = tl.program_id(0) // parts, tl.program_id(0) % parts
    split, splits = tl.program_id(1), tl.num_programs(1)
    row = tl.program_id(2)
    length = tl.load(lengths + row)
    member = part * queries + tl.arange(0, queries)
    there = member < shape.group
    head = kv_head * shape.group + member
    query_position = tl.zeros((queries,), tl.int32) + (length - 1)
    q = load_queries(query, row + tl.zeros((queries,), tl.int32), head, there, head_stride, token_stride, shape)
    slope = tl.load(slopes + head, mask=there, other=0.0).to(tl.float32) if shape.alibi else None
    acc, peak, total = begin(sinks, head, there, there & (split == 0), queries, shape)

    lowest = first_visible(length - 1, shape)
    first, last = lowest // positions, tl.cdiv(length, positions)
    share = tl.cdiv(last - first, splits)
    start = first + split * share
    stop = tl.minimum(start + share, last)
    k, v = keys + kv_head * shape.key_width, values + kv_head * shape.value_width
    table = tables + row * table_stride
    acc, peak, total = attend(
        acc, peak, total, q, query_position, slope, k, v, table, scale, start, stop, lowest, length, shape, positions, True
    )
    result = average(acc, total, value_scale)
    place = row.to(tl.int64) * shape.heads + head
    if whole:
        store_heads(out, place, there, result, shape)
    else:
        place = place * splits + split
        store_heads(partials, place, there, result, shape)
        logarithm = peak + tl.log2(tl.where(total == 0.0, 1.0, total))
        tl.store(weights + place, tl.where(total == 0.0, float("-inf"), logarithm), mask=there)


@triton.jit(do_not_specialize=["splits"])
def join_kernel(
    out: tl.tensor,
    partials: tl.tensor,
    weights: tl.tensor,
    splits: tl.tensor,
    heads: tl.constexpr,
    width: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """The mean of the parts of one head of one row, by weight. Grid [heads, rows].

    All splits are combined at once, in a fixed order, and their number needs no kernel of its own.
    """
    place = tl.program_id(1).to(tl.int64) * heads + tl.program_id(0)
    split, column = tl.arange(0, _MAX_SPLITS), tl.arange(0, block)
    there = split < splits
    logarithm = tl.load(weights + place * splits + split, mask=there, other=float("-inf"))
    peak = tl.max(logarithm, 0)
    weight = tl.exp2(logarithm - tl.where(peak == float("-inf"), 0.0, peak))
    total = tl.sum(weight, 0)
    rows = partials + (place * splits + split)[:, None] * width + column[None, :]
    mean = tl.load(rows, mask=there[:, None] & (column < width)[None, :], other=0.0)
    result = tl.sum(mean * (weight / tl.where(total == 0.0, 1.0, total))[:, None], 0)
    tl.store(out + place * width + column, result.to(out.dtype.element_ty), mask=column < width)


def builds(tiles: TileTable) -> Iterator[Build]:
    """Decode in parts with every case, whole with the plain ones of one width, and the join of every width."""
    for case in attention_cases(tiles):
        tile = case.tile(tiles, Phase.DECODE)
        for whole in (False, True):
            if whole and (case.feature != "plain" or case.shape.key_width != 128):
                continue
            constants = {"shape": case.shape, "queries": tile.queries, "positions": tile.positions, "whole": whole}
            types = {**case.types(), "partials": "*fp32:16", "weights": "*fp32:16"}
            labels = case.labels("decode", "whole" if whole else "")
            yield Build(decode_kernel, types, constants, tile.launch_options(), labels, tile.programs)
        if case.feature == "plain":
            shape = case.shape
            types = {"out": f"*{case.dtype}:16", "partials": "*fp32:16", "weights": "*fp32:16", "splits": "i32"}
            constants = {"heads": shape.heads, "width": shape.value_width, "block": shape.value_block}
            yield Build(join_kernel, types, constants, labels=case.labels("join"))
