"""Writing keys and values to their slots in the cache."""

from __future__ import annotations

from collections.abc import Iterator

import triton
import triton.language as tl

from tgi_core.engine.triton.attention_blocks import cast_for_cache
from tgi_core.engine.triton.builds import Build, attention_cases
from tgi_core.engine.triton.tiles import TileTable

WRITE_TOKENS = 16
"""Tokens that one program writes."""


@triton.jit
def _store(
    cache: tl.tensor,
    source: tl.tensor,
    slot: tl.tensor,
    token: tl.tensor,
    there: tl.tensor,
    inverse: tl.tensor,
    head_stride: tl.tensor,
    token_stride: tl.tensor,
    kv_heads: tl.constexpr,
    width: tl.constexpr,
    block: tl.constexpr,
) -> None:
    column = tl.arange(0, block)
    inside = there[:, None] & (column < width)[None, :]
    head = tl.program_id(1).to(tl.int64)
    read = source + (token.to(tl.int64) * token_stride)[:, None] + head * head_stride + column[None, :]
    write = cache + (slot * kv_heads + head)[:, None] * width + column[None, :]
    data = tl.load(read, mask=inside, other=0.0)
    if cache.dtype.element_ty != source.dtype.element_ty:
        data = cast_for_cache(data.to(tl.float32) * inverse, cache.dtype.element_ty)
    tl.store(write, data, mask=inside)


@triton.jit(do_not_specialize=["tokens"], do_not_specialize_on_alignment=["slots"])
def write_kernel(
    keys: tl.tensor,
    values: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    slots: tl.tensor,
    key_inverse: tl.tensor,
    value_inverse: tl.tensor,
    tokens: tl.tensor,
    key_head_stride: tl.tensor,
    key_token_stride: tl.tensor,
    value_head_stride: tl.tensor,
    value_token_stride: tl.tensor,
    shape: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Copy `block` tokens of one KV head to `slots`, which are block · page + offset; slot -1 is not written.

    Grid [tokens / block, kv_heads]. If the cache has another dtype, elements are multiplied by the inverses before they are cast.
    """
    token = tl.program_id(0) * block + tl.arange(0, block)
    slot = tl.load(slots + token, mask=token < tokens, other=-1).to(tl.int64)
    there = slot >= 0
    _store(
        keys,
        key,
        slot,
        token,
        there,
        key_inverse,
        key_head_stride,
        key_token_stride,
        shape.kv_heads,
        shape.key_width,
        shape.key_block,
    )
    _store(
        values,
        value,
        slot,
        token,
        there,
        value_inverse,
        value_head_stride,
        value_token_stride,
        shape.kv_heads,
        shape.value_width,
        shape.value_block,
    )


def builds(tiles: TileTable) -> Iterator[Build]:
    """Every width and dtype."""
    for case in attention_cases(tiles):
        if case.feature != "plain" and not case.cache:
            continue
        strides = ("key_head_stride", "key_token_stride", "value_head_stride", "value_token_stride")
        types = {
            **dict.fromkeys(("keys", "values"), f"*{case.cache or case.dtype}:16"),
            **dict.fromkeys(("key", "value"), f"*{case.dtype}:16"),
            "slots": "*i64",
            "key_inverse": "fp32",
            "value_inverse": "fp32",
            "tokens": "i32",
            **dict.fromkeys(strides, "i32:16"),
        }
        yield Build(write_kernel, types, {"shape": case.shape, "block": WRITE_TOKENS}, labels=case.labels("write"))
