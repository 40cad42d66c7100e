"""Everything between the qkv projection and attention, in one kernel.

Heads are normalized if the model does, RoPE is applied, and keys and values are written to the cache. Queries are written back in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import triton
import triton.language as tl
from torch import Tensor

from tgi_core.engine.attention.cache import DenseLayer
from tgi_core.engine.decoder.operators import Heads, HeadSizes
from tgi_core.engine.triton.attention_blocks import cast_for_cache
from tgi_core.engine.triton.builds import ITEMSIZE, Build
from tgi_core.engine.triton.tiles import TileTable

TILE = 512
"""Elements that a program holds: a few heads."""


@triton.jit
def _head_weight(query_norm: tl.tensor, key_norm: tl.tensor, at: tl.tensor, inside: tl.tensor, is_query: tl.tensor) -> tl.tensor:
    """[heads, BLOCK] of the norm that each head has."""
    own = tl.load(query_norm + at, mask=inside, other=0.0).to(tl.float32)
    other = tl.load(key_norm + at, mask=inside, other=0.0).to(tl.float32)
    return tl.where(is_query[:, None], own[None, :], other[None, :])


@triton.jit
def _put(
    values: tl.tensor,
    at: tl.tensor,
    mask: tl.tensor,
    is_query: tl.tensor,
    is_key: tl.tensor,
    own: tl.tensor,
    page: tl.tensor,
    inverse: tl.tensor,
) -> None:
    """Queries to where they were, keys to their page; to one of another type, times the inverse of their scale."""
    tl.store(own + at[None, :], values.to(own.dtype.element_ty), mask=mask & is_query[:, None])
    if page.dtype.element_ty != own.dtype.element_ty:
        values *= inverse
    tl.store(page + at[None, :], cast_for_cache(values, page.dtype.element_ty), mask=mask & is_key[:, None])


@triton.jit
def copy_heads(
    source: tl.tensor, target: tl.tensor, there: tl.tensor, inverse: tl.tensor, width: tl.constexpr, block: tl.constexpr
) -> None:
    """Whole heads, where they are there; see `_put`."""
    at = tl.arange(0, block)
    mask = there[:, None] & (at < width)[None, :]
    values = tl.load(source + at[None, :], mask=mask, other=0.0)
    if target.dtype.element_ty != source.dtype.element_ty:
        values = cast_for_cache(values.to(tl.float32) * inverse, target.dtype.element_ty)
    tl.store(target + at[None, :], values, mask=mask)


@triton.jit(do_not_specialize_on_alignment=["positions", "slots"])
def rope_and_cache_kernel(
    qkv: tl.tensor,  # [tokens, (HEADS + 2 · KV_HEADS) · HEAD]
    positions: tl.tensor,  # [tokens]
    slots: tl.tensor,  # [tokens], or −1 for a token that is not to be written
    cos_sin: tl.tensor,  # [positions, 2 · HALF]: cosines, then sines
    query_norm: tl.tensor,  # [HEAD]
    key_norm: tl.tensor,  # [HEAD]
    keys: tl.tensor,  # [slots, KV_HEADS, HEAD]
    values: tl.tensor,  # [slots, KV_HEADS, HEAD]
    key_inverse: tl.tensor,  # of the scales of keys and values, in a cache of another type
    value_inverse: tl.tensor,
    epsilon: tl.tensor,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    HALF: tl.constexpr,  # pairs that are rotated, 0 in a layer without positions
    NORMED: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_REST: tl.constexpr,
    BLOCK_HEAD: tl.constexpr,
) -> None:
    """Some query and key heads of one token per program; the values go with their keys."""
    REST: tl.constexpr = HEAD - 2 * HALF
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    slot = tl.load(slots + token).to(tl.int64)
    is_query = head < HEADS
    is_key = (head >= HEADS) & (head < HEADS + KV_HEADS) & (slot >= 0)
    known = (is_query | is_key)[:, None]
    own = qkv + token * ((HEADS + 2 * KV_HEADS) * HEAD) + head[:, None] * HEAD
    place = (slot * KV_HEADS + head - HEADS)[:, None] * HEAD
    if HALF > 0:
        at = tl.arange(0, BLOCK_HALF)
        rotated = known & (at < HALF)[None, :]
        first = tl.load(own + at[None, :], mask=rotated, other=0.0).to(tl.float32)
        second = tl.load(own + HALF + at[None, :], mask=rotated, other=0.0).to(tl.float32)
    if REST > 0:
        beyond = 2 * HALF + tl.arange(0, BLOCK_REST)
        left = known & (beyond < HEAD)[None, :]
        rest = tl.load(own + beyond[None, :], mask=left, other=0.0).to(tl.float32)
    if NORMED:
        squares = tl.zeros([BLOCK_HEADS], tl.float32)
        if HALF > 0:
            squares += tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1)
        if REST > 0:
            squares += tl.sum(rest * rest, axis=1)
        factor = tl.rsqrt(squares / HEAD + epsilon)[:, None]
        if HALF > 0:
            first *= factor * _head_weight(query_norm, key_norm, at, at < HALF, is_query)
            second *= factor * _head_weight(query_norm, key_norm, HALF + at, at < HALF, is_query)
        if REST > 0:
            rest *= factor * _head_weight(query_norm, key_norm, beyond, beyond < HEAD, is_query)
    if HALF > 0:
        cos_sin_row = cos_sin + tl.load(positions + token).to(tl.int64) * (2 * HALF) + at
        cosine = tl.load(cos_sin_row, mask=at < HALF, other=0.0)[None, :]
        sine = tl.load(cos_sin_row + HALF, mask=at < HALF, other=0.0)[None, :]
        _put(first * cosine - second * sine, at, rotated, is_query, is_key, own, keys + place, key_inverse)
        _put(second * cosine + first * sine, HALF + at, rotated, is_query, is_key, own, keys + place, key_inverse)
    if REST > 0:
        _put(rest, beyond, left, is_query, is_key, own, keys + place, key_inverse)
    copy_heads(own + KV_HEADS * HEAD, values + place, is_key, value_inverse, HEAD, BLOCK_HEAD)


def launch_rope_and_cache(qkv: Tensor, positions: Tensor, slots: Tensor, heads: Heads, layer: DenseLayer) -> None:
    """See `Operators.rope_and_cache`; `qkv` is contiguous, and its queries are changed in place."""
    sizes, cos_sin, norms = heads.sizes, heads.cos_sin, heads.norms
    query_norm, key_norm, epsilon = (qkv, qkv, 0.0) if norms is None else (norms.query, norms.key, norms.epsilon)
    half = 0 if cos_sin is None else cos_sin.shape[1] // 2
    options = head_blocks(sizes, half)
    grid = (qkv.shape[0], triton.cdiv(sizes.heads + sizes.kv_heads, options["BLOCK_HEADS"]))
    rope_and_cache_kernel[grid](
        qkv,
        positions,
        slots,
        qkv if cos_sin is None else cos_sin,
        query_norm,
        key_norm,
        layer.keys,
        layer.values,
        *layer.scales.inverses,
        epsilon,
        NORMED=norms is not None,
        **options,
        num_warps=1,
    )


@cache
def head_blocks(sizes: HeadSizes, half: int) -> dict[str, int]:
    """Constants of the kernel for some sizes."""
    whole = triton.next_power_of_2(sizes.head)
    return {
        "HEADS": sizes.heads,
        "KV_HEADS": sizes.kv_heads,
        "HEAD": sizes.head,
        "HALF": half,
        "BLOCK_HEADS": min(triton.next_power_of_2(sizes.heads + sizes.kv_heads), max(1, TILE // whole)),
        "BLOCK_HALF": triton.next_power_of_2(max(1, half)),
        "BLOCK_REST": triton.next_power_of_2(max(1, sizes.head - 2 * half)),
        "BLOCK_HEAD": whole,
    }


_BUILT = (
    HeadSizes(32, 8, 128),
    HeadSizes(14, 2, 64),
    HeadSizes(9, 3, 80),
    HeadSizes(32, 32, 96),
    HeadSizes(64, 8, 192),
    HeadSizes(16, 4, 256),
)


def builds(tiles: TileTable) -> Iterator[Build]:
    """Heads of some models, rotated whole, in part or not at all, with norms and without, to a cache of their own type and of 8 bits."""
    for dtype in ITEMSIZE:
        for sizes in _BUILT:
            for part in (2, 4, 0):
                for normed in (False, True):
                    yield _build(dtype, sizes, part, normed)
    if tiles.fp8:
        yield _build("bf16", _BUILT[0], 2, True, tiles.fp8)


def _build(dtype: str, sizes: HeadSizes, part: int, normed: bool, fp8: str = "") -> Build:
    types = dict.fromkeys(("qkv", "query_norm", "key_norm"), f"*{dtype}:16")
    types |= dict.fromkeys(("keys", "values"), f"*{fp8 or dtype}:16")
    types |= {"positions": "*i64", "slots": "*i64", "cos_sin": "*fp32:16"}
    types |= dict.fromkeys(("key_inverse", "value_inverse", "epsilon"), "fp32")
    constants = head_blocks(sizes, sizes.head // part if part else 0) | {"NORMED": normed}
    feature = (f"1/{part} of a head, " if part else "not rotated, ") + ("normed" if normed else "plain")
    labels = {"kernel": "rope and cache", "dtype": dtype, "width": str(sizes.head)}
    labels["feature"] = feature + (", 8-bit cache" if fp8 else "")
    return Build(rope_and_cache_kernel, types, constants, {"num_warps": 1}, labels)
