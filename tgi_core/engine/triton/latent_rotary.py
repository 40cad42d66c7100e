"""Everything between the projections of latent attention and attention itself, in one kernel.

RoPE is applied to the last elements of queries, in place, and to the key's that all heads share; keys and values are written to the cache,
where every head has its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import triton
import triton.language as tl
from torch import Tensor

from tgi_core.engine.attention.cache import DenseLayer
from tgi_core.engine.decoder.latent import LatentSizes
from tgi_core.engine.decoder.operators import LatentHeads
from tgi_core.engine.triton.attention_blocks import cast_for_cache
from tgi_core.engine.triton.builds import ITEMSIZE, Build
from tgi_core.engine.triton.rotary import TILE, copy_heads
from tgi_core.engine.triton.tiles import TileTable


@triton.jit(do_not_specialize_on_alignment=["positions", "slots"])
def latent_rope_and_cache_kernel(
    query: tl.tensor,  # [tokens, HEADS · (NOPE + 2 · HALF)], rows `query_stride` apart
    expanded: tl.tensor,  # [tokens, HEADS, NOPE + VALUE]
    shared: tl.tensor,  # [tokens, 2 · HALF], rows `shared_stride` apart
    positions: tl.tensor,  # [tokens]
    slots: tl.tensor,  # [tokens], or −1 for a token that is not to be written
    cos_sin: tl.tensor,  # [positions, 2 · HALF]: cosines, then sines
    keys: tl.tensor,  # [slots, HEADS, NOPE + 2 · HALF]
    values: tl.tensor,  # [slots, HEADS, VALUE]
    key_inverse: tl.tensor,  # of the scales of keys and values, in a cache of another type
    value_inverse: tl.tensor,
    query_stride: tl.tensor,
    shared_stride: tl.tensor,
    HEADS: tl.constexpr,
    NOPE: tl.constexpr,
    HALF: tl.constexpr,
    VALUE: tl.constexpr,
    INTERLEAVED: tl.constexpr,  # whether pairs are adjacent elements
    BLOCK_HEADS: tl.constexpr,
    BLOCK_NOPE: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_VALUE: tl.constexpr,
) -> None:
    """Some heads of one token per program. Elements stay where they are, so that what one thread stores no other has yet to load."""
    KEY: tl.constexpr = NOPE + 2 * HALF
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    there = head < HEADS
    slot = tl.load(slots + token).to(tl.int64)
    pair = tl.arange(0, BLOCK_HALF)
    at = pair * 2 if INTERLEAVED else pair
    apart: tl.constexpr = 1 if INTERLEAVED else HALF
    row = cos_sin + tl.load(positions + token).to(tl.int64) * (2 * HALF) + pair
    cosine = tl.load(row, mask=pair < HALF, other=0.0)
    sine = tl.load(row + HALF, mask=pair < HALF, other=0.0)

    own = query + token * query_stride + head[:, None] * KEY + NOPE + at[None, :]
    inside = there[:, None] & (pair < HALF)[None, :]
    first = tl.load(own, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(own + apart, mask=inside, other=0.0).to(tl.float32)
    tl.store(own, (first * cosine[None, :] - second * sine[None, :]).to(query.dtype.element_ty), mask=inside)
    tl.store(own + apart, (second * cosine[None, :] + first * sine[None, :]).to(query.dtype.element_ty), mask=inside)

    source = shared + token * shared_stride + at
    first_key = tl.load(source, mask=pair < HALF, other=0.0).to(tl.float32)
    second_key = tl.load(source + apart, mask=pair < HALF, other=0.0).to(tl.float32)
    scale = key_inverse if keys.dtype.element_ty != query.dtype.element_ty else 1.0
    turned = cast_for_cache((first_key * cosine - second_key * sine) * scale, keys.dtype.element_ty)
    turned_second = cast_for_cache((second_key * cosine + first_key * sine) * scale, keys.dtype.element_ty)
    stored = there & (slot >= 0)
    inside = stored[:, None] & (pair < HALF)[None, :]
    place = (slot * HEADS + head)[:, None]
    to = keys + place * KEY + NOPE + at[None, :]
    tl.store(to, tl.broadcast_to(turned[None, :], (BLOCK_HEADS, BLOCK_HALF)), mask=inside)
    tl.store(to + apart, tl.broadcast_to(turned_second[None, :], (BLOCK_HEADS, BLOCK_HALF)), mask=inside)

    made = expanded + (token * HEADS + head)[:, None] * (NOPE + VALUE)
    copy_heads(made, keys + place * KEY, stored, key_inverse, NOPE, BLOCK_NOPE)
    copy_heads(made + NOPE, values + place * VALUE, stored, value_inverse, VALUE, BLOCK_VALUE)


def launch_latent_rope_and_cache(
    query: Tensor, expanded: Tensor, down: Tensor, positions: Tensor, slots: Tensor, latent: LatentHeads, layer: DenseLayer
) -> None:
    """See `Operators.latent_rope_and_cache`; rows of `query` and `down` are contiguous, and queries are changed in place."""
    options = latent_blocks(latent.sizes, latent.heads)
    grid = (query.shape[0], triton.cdiv(latent.heads, int(options["BLOCK_HEADS"])))
    latent_rope_and_cache_kernel[grid](
        query,
        expanded,
        down[:, latent.ahead + latent.sizes.kv_rank :],
        positions,
        slots,
        latent.cos_sin,
        layer.keys,
        layer.values,
        *layer.scales.inverses,
        query.stride(0),
        down.stride(0),
        **options,
        num_warps=1,
    )


@cache
def latent_blocks(sizes: LatentSizes, heads: int) -> dict[str, int | bool]:
    """Constants of the kernel for some sizes."""
    widest = triton.next_power_of_2(max(sizes.nope, sizes.value))
    return {
        "HEADS": heads,
        "NOPE": sizes.nope,
        "HALF": sizes.rope // 2,
        "VALUE": sizes.value,
        "INTERLEAVED": sizes.interleaved,
        "BLOCK_HEADS": min(triton.next_power_of_2(heads), max(1, TILE // widest)),
        "BLOCK_NOPE": triton.next_power_of_2(sizes.nope),
        "BLOCK_HALF": triton.next_power_of_2(sizes.rope // 2),
        "BLOCK_VALUE": triton.next_power_of_2(sizes.value),
    }


_BUILT = (
    (LatentSizes(1536, 512, 128, 64, 128, True), 128),
    (LatentSizes(768, 512, 192, 64, 256, True), 20),
    (LatentSizes(0, 512, 128, 64, 128, True), 16),
    (LatentSizes(768, 256, 64, 32, 64, False), 40),
)


def builds(tiles: TileTable) -> Iterator[Build]:
    """Heads of some models, to a cache of their own type and of 8 bits."""
    for dtype in ITEMSIZE:
        for sizes, heads in _BUILT:
            yield _build(dtype, sizes, heads)
    if tiles.fp8:
        yield _build("bf16", *_BUILT[0], tiles.fp8)


def _build(dtype: str, sizes: LatentSizes, heads: int, fp8: str = "") -> Build:
    types = dict.fromkeys(("query", "expanded", "shared"), f"*{dtype}:16")
    types |= dict.fromkeys(("keys", "values"), f"*{fp8 or dtype}:16")
    types |= {"positions": "*i64", "slots": "*i64", "cos_sin": "*fp32:16", "query_stride": "i32:16", "shared_stride": "i32:16"}
    types |= dict.fromkeys(("key_inverse", "value_inverse"), "fp32")
    labels = {"kernel": "latent rope and cache", "dtype": dtype, "width": f"{sizes.key}/{sizes.value}"}
    labels["feature"] = "8-bit cache" if fp8 else "plain"
    return Build(latent_rope_and_cache_kernel, types, latent_blocks(sizes, heads), {"num_warps": 1}, labels)
