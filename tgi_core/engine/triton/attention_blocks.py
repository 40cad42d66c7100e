"""Shared by the attention kernels: loading blocks of the cache, and one pass of online softmax over them."""

from __future__ import annotations

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
"""Whether kernels run in Triton's interpreter."""

LOG2E = tl.constexpr(1.4426950408889634)
"""Exponentials are base two, which devices compute natively."""


@triton.jit
def dot(left: tl.tensor, right: tl.tensor, onto: tl.tensor) -> tl.tensor:
    """left @ right + onto, in float32."""
    if INTERPRETED:
        # The interpreter stores bfloat16 as integers, and would multiply those.
        left, right = left.to(tl.float32), right.to(tl.float32)
    # Affects float32 only: no TF32.
    return tl.dot(left, right, onto, input_precision="ieee")


@triton.jit
def cast_for_cache(values: tl.tensor, kind: tl.constexpr) -> tl.tensor:
    """float32 values in a cache's dtype; an 8-bit one saturates at its largest value."""
    if kind == tl.float8e4nv:
        values = tl.clamp(values, -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL)
    if kind == tl.float8e4b8:
        values = tl.clamp(values, -240.0, 240.0, propagate_nan=tl.PropagateNan.ALL)
    if INTERPRETED and kind.primitive_bitwidth == 8:
        # The interpreter loses the carry where it rounds up to a power of two: rounded to four bits beforehand, it has nothing to round.
        shifted = values * (2.0**20 + 1)
        values = shifted - (shifted - values)
    return values.to(kind)


@triton.jit
def first_visible(position: tl.tensor, shape: tl.constexpr) -> tl.tensor:
    """The first position that a query at `position` sees."""
    first = position * 0
    if shape.window is not None:
        first = tl.maximum(first, position - (shape.window - 1))
    if shape.chunk is not None:
        first = tl.maximum(first, position // shape.chunk * shape.chunk)
    return first


@triton.jit
def load_queries(
    query: tl.tensor,
    token: tl.tensor,
    head: tl.tensor,
    there: tl.tensor,
    head_stride: tl.tensor,
    token_stride: tl.tensor,
    shape: tl.constexpr,
) -> tl.tensor:
    """[queries, key_block] of tokens and heads, zeros where not `there`."""
    column = tl.arange(0, shape.key_block)
    place = token.to(tl.int64) * token_stride + head.to(tl.int64) * head_stride
    places = query + place[:, None] + column[None, :]
    return tl.load(places, mask=there[:, None] & (column < shape.key_width)[None, :], other=0.0)


@triton.jit
def load_slots(
    cache: tl.tensor,
    slot: tl.tensor,
    there: tl.tensor,
    kv_heads: tl.constexpr,
    width: tl.constexpr,
    block: tl.constexpr,
    masked: tl.constexpr,
) -> tl.tensor:
    """[positions, block] of one head at slots; zeros where not `there`, if `masked` says that there are such."""
    column = tl.arange(0, block)
    places = cache + slot[:, None] * (kv_heads * width) + column[None, :]
    if masked:
        tile = tl.load(places, mask=there[:, None] & (column < width)[None, :], other=0.0)
    elif width < block:
        tile = tl.load(places, mask=(column < width)[None, :], other=0.0)
    else:
        tile = tl.load(places)
    return tile


@triton.jit
def begin(
    sinks: tl.tensor, head: tl.tensor, there: tl.tensor, counted: tl.tensor, queries: tl.constexpr, shape: tl.constexpr
) -> tl.tensor:
    """The initial state of online softmax: weighted values, largest score in base two, sum of weights.

    A sink is a position with a score and no value; it counts if `counted`.
    """
    width: tl.constexpr = shape.value_block
    acc = tl.zeros((queries, width), tl.float32)
    peak = tl.full((queries,), float("-inf"), tl.float32)
    total = tl.zeros((queries,), tl.float32)
    if shape.sinks:
        sink = tl.load(sinks + head, mask=there & counted, other=float("-inf")).to(tl.float32) * LOG2E
        total = tl.where(sink > float("-inf"), 1.0, 0.0)
        peak = sink
    return acc, peak, total


@triton.jit
def scored(
    dots: tl.tensor, position: tl.tensor, query_position: tl.tensor, slope: tl.tensor, scale: tl.tensor, shape: tl.constexpr
) -> tl.tensor:
    """[queries, positions] of scores, at their own scale only where `shape.natural`: else scaling is left to the exponential."""
    scores = dots
    if shape.natural:
        scores = scores * scale
    if shape.softcap is not None:
        # tanh from the exponential, since not all devices have tanh.
        scores = shape.softcap * (2.0 / (1.0 + tl.exp2(scores * (-2.0 * LOG2E / shape.softcap))) - 1.0)
    if shape.alibi:
        scores += slope[:, None] * (position[None, :] - query_position[:, None]).to(tl.float32)
    return scores


@triton.jit
def attend(
    acc: tl.tensor,
    peak: tl.tensor,
    total: tl.tensor,
    query: tl.tensor,
    query_position: tl.tensor,
    slope: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    table: tl.tensor,
    scale: tl.tensor,
    start: tl.tensor,
    stop: tl.tensor,
    lowest: tl.tensor,
    length: tl.tensor,
    shape: tl.constexpr,
    positions: tl.constexpr,
    masked: tl.constexpr,
) -> tl.tensor:
    """Online softmax over tiles start…stop-1 of a row's positions, continuing from a state. `keys` and `values` point to one KV head.

    If not `masked`, every query sees every position of these tiles. Else nothing before `lowest` or from `length` on is loaded: stale
    elements of a block have no effect, not even as zero times NaN.
    """
    factor = LOG2E if shape.natural else scale * LOG2E
    for tile in tl.range(start, stop):
        position = tile * positions + tl.arange(0, positions)
        there = (position >= lowest) & (position < length)
        entry = table + position // shape.page
        block = tl.load(entry, mask=there, other=0) if masked else tl.load(entry)
        slot = block.to(tl.int64) * shape.page + position % shape.page
        key = load_slots(keys, slot, there, shape.kv_heads, shape.key_width, shape.key_block, masked).to(query.dtype)
        dots = dot(query, tl.trans(key), tl.zeros((query.shape[0], positions), tl.float32))
        scores = scored(dots, position, query_position, slope, scale, shape)
        if masked:
            seen = there[None, :] & (position[None, :] <= query_position[:, None])
            if shape.limited:
                seen &= position[None, :] >= first_visible(query_position, shape)[:, None]
            scores = tl.where(seen, scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1) * factor)
        # A query that has seen nothing yet has a peak of minus infinity, and infinity minus infinity is NaN.
        shift = tl.where(new_peak == float("-inf"), 0.0, new_peak) if masked else new_peak
        weights = tl.exp2(scores * factor - shift[:, None])
        fade = tl.exp2(peak - shift)
        total = total * fade + tl.sum(weights, 1)
        value = load_slots(values, slot, there, shape.kv_heads, shape.value_width, shape.value_block, masked).to(query.dtype)
        acc = dot(weights.to(value.dtype), value, acc * fade[:, None])
        peak = new_peak
    return acc, peak, total


@triton.jit
def average(acc: tl.tensor, total: tl.tensor, value_scale: tl.tensor) -> tl.tensor:
    """The weighted mean of the values; zero where nothing was seen."""
    return acc * (value_scale / tl.where(total == 0.0, 1.0, total))[:, None]


@triton.jit
def store_heads(out: tl.tensor, place: tl.tensor, there: tl.tensor, result: tl.tensor, shape: tl.constexpr) -> None:
    """Store [queries, value_block] to the heads `place` of `out` [heads of all tokens, value_width]."""
    column = tl.arange(0, shape.value_block)
    places = out + place[:, None] * shape.value_width + column[None, :]
    tl.store(places, result.to(out.dtype.element_ty), mask=there[:, None] & (column < shape.value_width)[None, :])
