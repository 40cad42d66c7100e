"""Latents to queries, keys and values: their norms, and the projections from them.

For as many tokens as a decode step has, one kernel does all of it: a GEMM that normalizes the rows that it reads. With more tokens, or
weights that are not dense, one kernel normalizes, and the device's own GEMMs multiply. The same GEMM without a norm is that of a router in
float32.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from tgi_core.engine.decoder.operators import LatentHeads
from tgi_core.engine.triton.attention_blocks import dot
from tgi_core.engine.triton.builds import ITEMSIZE, Build
from tgi_core.engine.triton.grouped import TILES, GroupedTile
from tgi_core.engine.triton.norm import norm_warps
from tgi_core.engine.triton.tiles import TileTable


@triton.jit
def _row_gemm(
    inputs: tl.tensor,
    norm: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    tile: tl.tensor,
    rows: tl.tensor,
    stride: tl.tensor,
    columns: tl.tensor,
    depth: tl.tensor,
    epsilon: tl.tensor,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
) -> None:
    """A tile of out [rows, columns] = inputs [rows, depth] · weight [columns, depth]ᵀ; with a norm [depth], of normalized inputs, which are
    rounded to their type as `rms_norm_kernel` rounds them."""
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tile * COLUMNS + tl.arange(0, COLUMNS)
    at = tl.arange(0, DEPTH)
    there, known = row < rows, column < columns
    own = inputs + row.to(tl.int64)[:, None] * stride + at[None, :]
    factor = tl.zeros((ROWS,), tl.float32)
    if norm is not None:
        for first in range(0, depth, DEPTH):
            some = tl.load(own + first, mask=there[:, None] & (first + at < depth)[None, :], other=0.0).to(tl.float32)
            factor += tl.sum(some * some, axis=1)
        factor = tl.rsqrt(factor / depth + epsilon)
    others = weight + column.to(tl.int64)[:, None] * depth + at[None, :]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, depth, DEPTH):
        inside = first + at < depth
        some = tl.load(own + first, mask=there[:, None] & inside[None, :], other=0.0)
        if norm is not None:
            scaled = some.to(tl.float32) * factor[:, None]
            scaled *= tl.load(norm + first + at, mask=inside, other=0.0).to(tl.float32)[None, :]
            some = scaled.to(some.dtype)
        part = tl.load(others + first, mask=known[:, None] & inside[None, :], other=0.0)
        total = dot(some.to(part.dtype), tl.trans(part), total)
    to = out + row.to(tl.int64)[:, None] * columns + column[None, :]
    tl.store(to, total.to(out.dtype.element_ty), mask=there[:, None] & known[None, :])


@triton.jit(do_not_specialize=["rows"])
def expand_kernel(
    down: tl.tensor,  # [rows, stride]: the latent of queries, that of keys and values, and more
    query_norm: tl.tensor,  # [query_rank], or None
    query_weight: tl.tensor,  # [query_columns, query_rank]
    query: tl.tensor,  # [rows, query_columns]
    kv_norm: tl.tensor,  # [kv_rank]
    kv_weight: tl.tensor,  # [kv_columns, kv_rank]
    kv: tl.tensor,  # [rows, kv_columns]
    rows: tl.tensor,
    stride: tl.tensor,
    ahead: tl.tensor,  # elements before the latent of keys and values
    query_columns: tl.tensor,  # 0 if there is no latent of queries
    query_rank: tl.tensor,
    kv_columns: tl.tensor,
    kv_rank: tl.tensor,
    epsilon: tl.tensor,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
) -> None:
    """A tile of one of the two products per program."""
    tile, tiles = tl.program_id(0), 0
    if query_norm is not None:
        tiles = tl.cdiv(query_columns, COLUMNS)
        if tile < tiles:
            _row_gemm(
                down,
                query_norm,
                query_weight,
                query,
                tile,
                rows,
                stride,
                query_columns,
                query_rank,
                epsilon,
                ROWS,
                COLUMNS,
                DEPTH,
            )
    if tile >= tiles:
        _row_gemm(
            down + ahead, kv_norm, kv_weight, kv, tile - tiles, rows, stride, kv_columns, kv_rank, epsilon, ROWS, COLUMNS, DEPTH
        )


@triton.jit(do_not_specialize=["rows"])
def wide_linear_kernel(
    inputs: tl.tensor,  # [rows, depth]
    weight: tl.tensor,  # float32 [columns, depth]
    out: tl.tensor,  # float32 [rows, columns]
    rows: tl.tensor,
    columns: tl.tensor,
    depth: tl.tensor,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
) -> None:
    """A tile of the product per program, in float32."""
    _row_gemm(inputs, None, weight, out, tl.program_id(0), rows, depth, columns, depth, 0.0, ROWS, COLUMNS, DEPTH)


@triton.jit
def latent_norm_kernel(
    down: tl.tensor,  # [rows, stride]: the latent of queries, that of keys and values, and more
    query_norm: tl.tensor,  # [query_rank], or None
    query: tl.tensor,  # [rows, query_rank]
    kv_norm: tl.tensor,  # [kv_rank]
    kv: tl.tensor,  # [rows, kv_rank]
    stride: tl.tensor,
    ahead: tl.tensor,
    query_rank: tl.tensor,
    kv_rank: tl.tensor,
    epsilon: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """One latent of one row per program."""
    row = tl.program_id(0).to(tl.int64)
    if query_norm is None:
        _norm_row(down + row * stride + ahead, kv_norm, kv + row * kv_rank, kv_rank, epsilon, BLOCK)
    else:
        if tl.program_id(1) == 0:
            _norm_row(down + row * stride, query_norm, query + row * query_rank, query_rank, epsilon, BLOCK)
        else:
            _norm_row(down + row * stride + ahead, kv_norm, kv + row * kv_rank, kv_rank, epsilon, BLOCK)


@triton.jit
def _norm_row(
    source: tl.tensor, norm: tl.tensor, to: tl.tensor, columns: tl.tensor, epsilon: tl.tensor, BLOCK: tl.constexpr
) -> None:
    at = tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(source + at, mask=inside, other=0.0).to(tl.float32)
    factor = tl.rsqrt(tl.sum(values * values, axis=0) / columns + epsilon)
    scaled = values * factor * tl.load(norm + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(to + at, scaled.to(to.dtype.element_ty), mask=inside)


def launch_expand(down: Tensor, latent: LatentHeads) -> tuple[Tensor, Tensor]:
    """See `Operators.expand_latents`; `down` is contiguous."""
    query = None if latent.query is None else latent.query.dense
    kv, rows = latent.kv.dense, down.shape[0]
    tile = next((tile for tile in TILES[down.itemsize] if rows <= tile.rows), None)
    if tile is None or kv is None or (query is None and latent.query is not None):
        return _normed_apart(down, latent)
    columns = 0 if query is None else query.shape[0]
    made, made_kv = down.new_empty(rows, columns), down.new_empty(rows, kv.shape[0])
    tiles = triton.cdiv(columns, tile.columns) + triton.cdiv(kv.shape[0], tile.columns)
    expand_kernel[(tiles, triton.cdiv(rows, tile.rows))](
        down,
        latent.query_norm,
        query,
        None if query is None else made,
        latent.kv_norm,
        kv,
        made_kv,
        rows,
        down.stride(0),
        latent.ahead,
        columns,
        latent.sizes.query_rank,
        kv.shape[0],
        latent.sizes.kv_rank,
        latent.epsilon,
        **_constants(tile),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return down[:, : latent.ahead] if query is None else made, made_kv


def _normed_apart(down: Tensor, latent: LatentHeads) -> tuple[Tensor, Tensor]:
    """The same by three launches, two of them GEMMs of the linear provider."""
    sizes, rows = latent.sizes, down.shape[0]
    query, kv = (down.new_empty(rows, rank) for rank in (sizes.query_rank, sizes.kv_rank))
    widest = max(sizes.query_rank, sizes.kv_rank)
    latent_norm_kernel[(rows, 2 if sizes.query_rank else 1)](
        down,
        latent.query_norm,
        query if sizes.query_rank else None,
        latent.kv_norm,
        kv,
        down.stride(0),
        latent.ahead,
        sizes.query_rank,
        sizes.kv_rank,
        latent.epsilon,
        BLOCK=triton.next_power_of_2(widest),
        num_warps=norm_warps(widest),
    )
    return down[:, : latent.ahead] if latent.query is None else latent.query(query), latent.kv(kv)


def launch_wide_linear(input: Tensor, weight: Tensor) -> Tensor:
    """See `Operators.wide_linear`; both are contiguous."""
    (rows, depth), columns = input.shape, weight.shape[0]
    tile = next((tile for tile in _WIDE if rows <= tile.rows), _WIDE[-1])
    out = torch.empty(rows, columns, dtype=torch.float32, device=input.device)
    wide_linear_kernel[(triton.cdiv(columns, tile.columns), triton.cdiv(rows, tile.rows))](
        input, weight, out, rows, columns, depth, **_constants(tile), num_warps=tile.warps, num_stages=tile.stages
    )
    return out


def compile_latents(latent: LatentHeads, router: Tensor | None) -> None:
    """Compile what any number of tokens needs for these sizes."""
    dtype, device = latent.kv_norm.dtype, latent.kv_norm.device
    width = latent.ahead + latent.sizes.kv_rank + latent.sizes.rope
    for rows in (*(tile.rows for tile in TILES[dtype.itemsize]), TILES[dtype.itemsize][-1].rows + 1):
        launch_expand(torch.zeros(rows, width, dtype=dtype, device=device), latent)
    if router is not None:
        for tile in _WIDE:
            launch_wide_linear(torch.zeros(tile.rows, router.shape[1], dtype=dtype, device=device), router)


_WIDE = TILES[4]


def _constants(tile: GroupedTile) -> dict[str, int]:
    return {"ROWS": tile.rows, "COLUMNS": tile.columns, "DEPTH": tile.depth}


def builds(tiles: TileTable) -> Iterator[Build]:
    """Each tile, with a latent of queries and without; the float32 GEMM; and norms of some models' latents."""
    numbers = ("stride", "ahead", "query_columns", "query_rank", "kv_columns", "kv_rank")
    for dtype, itemsize in ITEMSIZE.items():
        for own in (True, False):
            types = dict.fromkeys(("down", "kv_norm", "kv_weight", "kv"), f"*{dtype}:16")
            types |= dict.fromkeys(numbers, "i32:16") | {"rows": "i32", "epsilon": "fp32"}
            queries = ("query_norm", "query_weight", "query")
            types |= dict.fromkeys(queries, f"*{dtype}:16") if own else {}
            labels = {"kernel": "expand", "dtype": dtype, "feature": "two latents" if own else "one latent"}
            for tile in TILES[itemsize]:
                constants: dict[str, object] = {**_constants(tile), **({} if own else dict.fromkeys(queries))}
                options = {"num_warps": tile.warps, "num_stages": tile.stages}
                yield Build(expand_kernel, types, constants, options, labels | {"width": f"{tile.rows} rows"})
            left_out = {"query_weight", "rows", "kv_weight", "query_columns", "kv_columns"}
            types = {name: kind for name, kind in types.items() if name not in left_out}
            for widest in (512, 1536):
                constants = {"BLOCK": triton.next_power_of_2(widest)} | ({} if own else dict.fromkeys(("query_norm", "query")))
                labels |= {"kernel": "latent norm", "width": str(widest)}
                yield Build(latent_norm_kernel, types, constants, {"num_warps": norm_warps(widest)}, labels)
        types = {"inputs": f"*{dtype}:16", **dict.fromkeys(("weight", "out"), "*fp32:16"), "rows": "i32"}
        types |= dict.fromkeys(("columns", "depth"), "i32:16")
        for tile in _WIDE:
            options = {"num_warps": tile.warps, "num_stages": tile.stages}
            labels = {"kernel": "wide linear", "dtype": dtype, "width": f"{tile.rows} rows"}
            yield Build(wide_linear_kernel, types, _constants(tile), options, labels)
