"""GEMMs with quantized weights: codes of four or eight bits are dequantized in registers, right before they are multiplied.

A weight of the model's dtype is (code − zero point) · scale, or code · scale + offset, computed in float32 and rounded once, so it has the
bits of `Weight.dequantize`. Codes are stored as bytes, by output. Eight-bit integers are counted from the lowest code; e4m3 floats keep
their bits. With four bits, a byte has the codes of two inputs that are `half` apart: a tile of bytes is then two tiles of weights, without
interleaving. `half` divides the groups, so a tile needs one scale per output.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from tgi_core.engine.triton.builds import ITEMSIZE, Build
from tgi_core.engine.triton.packed_codes import CodeLayout, PackedCodes, halves
from tgi_core.engine.triton.tiles import TileTable

_ROUNDED_ONCE = {"enable_fp_fusion": False}
"""Options of all kernels: a product plus an offset is two roundings, as in torch."""

_DEQUANTIZED_OUTPUTS = 32
"""Outputs per program where weights are only dequantized."""


@dataclass(frozen=True, slots=True)
class GemmTile:
    """What one program computes, [rows, columns], with so many warps and stages."""

    rows: int
    columns: int
    warps: int
    stages: int


TILES = (GemmTile(16, 32, 4, 3), GemmTile(32, 64, 8, 3), GemmTile(64, 64, 8, 3))
"""By rows of the inputs. They were not tuned by measurement; with four warps, the larger ones spill registers on chips with waves of 32."""


@triton.jit
def _numbers(codes: tl.tensor, layout: tl.constexpr) -> tl.tensor:
    """Bytes as the float32 numbers that they mean, exactly and without conversion instructions, which are slow."""
    wide = codes.to(tl.uint32)
    if layout.floats:
        magnitude = wide & 0x7F
        number = ((magnitude << 20) + 0x3C000000).to(tl.float32, bitcast=True)
        number = tl.where(magnitude < 8, (number - 0.0078125) * 2.0, number)  # denormal: no implicit one
        number = tl.where(magnitude == 0x7F, float("nan"), number)
        return tl.where(wide > 0x7F, -number, number)
    return (wide | 0x4B000000).to(tl.float32, bitcast=True) - (8388608.0 - layout.base)


@triton.jit
def _weights(
    stored: tl.tensor,  # [COLUMNS, half] bytes
    place: tl.constexpr,  # of a code in its byte
    first: tl.tensor,  # input of the first of these codes
    scales: tl.tensor,
    zeros: tl.tensor,
    offsets: tl.tensor,
    column: tl.tensor,
    columns: tl.tensor,
    group: tl.tensor,
    groups: tl.tensor,
    layout: tl.constexpr,
) -> tl.tensor:
    """float32 [COLUMNS, half]."""
    number = _numbers((stored >> (place * layout.bits)) & ((1 << layout.bits) - 1), layout)
    inside = column < columns
    at = tl.minimum(first // group, groups - 1).to(tl.int64) * columns + column
    if zeros is not None:
        number -= tl.load(zeros + at, mask=inside, other=0.0).to(tl.float32)[:, None]
    weight = number * tl.load(scales + at, mask=inside, other=0.0).to(tl.float32)[:, None]
    if offsets is not None:
        weight += tl.load(offsets + at, mask=inside, other=0.0).to(tl.float32)[:, None]
    return weight


@triton.jit(do_not_specialize=["rows"])
def gemm_kernel(
    inputs: tl.tensor,  # [rows, depth], `stride` apart
    codes: tl.tensor,  # uint8 [columns, row_bytes]
    scales: tl.tensor,  # [groups, columns], as zeros and offsets are, which may be None
    zeros: tl.tensor,
    offsets: tl.tensor,
    bias: tl.tensor,  # [columns], or None
    out: tl.tensor,  # [rows, columns]
    rows: tl.tensor,
    columns: tl.tensor,
    depth: tl.tensor,
    row_bytes: tl.tensor,
    stride: tl.tensor,
    group: tl.tensor,  # inputs that share a scale
    groups: tl.tensor,
    layout: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """inputs · weightᵀ + bias, a tile per program, summed in float32."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, layout.half)
    own_codes = codes + column.to(tl.int64)[:, None] * row_bytes + at[None, :]
    own_inputs = inputs + row.to(tl.int64)[:, None] * stride + at[None, :]
    of_rows, of_columns = (row < rows)[:, None], (column < columns)[:, None]
    per_byte: tl.constexpr = layout.per_byte
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for byte in range(0, row_bytes, layout.half):
        stored = tl.load(own_codes + byte, mask=of_columns, other=0)
        for place in tl.static_range(per_byte):
            first = byte * per_byte + place * layout.half
            weight = _weights(stored, place, first, scales, zeros, offsets, column, columns, group, groups, layout)
            some = tl.load(own_inputs + first, mask=of_rows & (first + at < depth)[None, :], other=0.0)
            total = tl.dot(some, tl.trans(weight.to(some.dtype)), total, input_precision="ieee")
    if bias is not None:
        total += tl.load(bias + column, mask=column < columns, other=0.0).to(tl.float32)[None, :]
    to = out + row.to(tl.int64)[:, None] * columns + column[None, :]
    tl.store(to, total.to(out.dtype.element_ty), mask=of_rows & (column < columns)[None, :])


@triton.jit
def dequantize_kernel(
    codes: tl.tensor,
    scales: tl.tensor,
    zeros: tl.tensor,
    offsets: tl.tensor,
    out: tl.tensor,  # [columns, depth]
    columns: tl.tensor,
    depth: tl.tensor,
    row_bytes: tl.tensor,
    group: tl.tensor,
    groups: tl.tensor,
    layout: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """The weight itself; arguments are those of `gemm_kernel`."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    at = tl.arange(0, layout.half)
    byte, of_columns = tl.program_id(1) * layout.half, (column < columns)[:, None]
    per_byte: tl.constexpr = layout.per_byte
    stored = tl.load(codes + column.to(tl.int64)[:, None] * row_bytes + byte + at[None, :], mask=of_columns, other=0)
    for place in tl.static_range(per_byte):
        first = byte * per_byte + place * layout.half
        weight = _weights(stored, place, first, scales, zeros, offsets, column, columns, group, groups, layout)
        to = out + column.to(tl.int64)[:, None] * depth + first + at[None, :]
        tl.store(to, weight.to(out.dtype.element_ty), mask=of_columns & (first + at < depth)[None, :])


def launch_gemm(inputs: Tensor, weight: PackedCodes, bias: Tensor | None) -> Tensor:
    """inputs [rows, depth], contiguous in its last dimension → inputs · weightᵀ + bias [rows, columns]."""
    rows, columns, groups = inputs.shape[0], weight.columns, weight.scales.shape[0]
    out = inputs.new_empty(rows, columns)
    if rows == 0:  # of a step that reads no logits
        return out
    tile = next((tile for tile in TILES if rows <= tile.rows), TILES[-1])
    gemm_kernel[(triton.cdiv(columns, tile.columns), triton.cdiv(rows, tile.rows))](
        inputs,
        weight.codes,
        weight.scales,
        weight.zeros,
        weight.offsets,
        bias,
        out,
        rows,
        columns,
        weight.depth,
        weight.codes.shape[1],
        inputs.stride(0),
        weight.depth // groups,
        groups,
        layout=weight.layout,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        num_warps=tile.warps,
        num_stages=tile.stages,
        **_ROUNDED_ONCE,
    )
    return out


def launch_dequantize(weight: PackedCodes, dtype: torch.dtype) -> Tensor:
    """The weight [columns, depth]."""
    columns, row_bytes = weight.codes.shape
    groups = weight.scales.shape[0]
    out = torch.empty(columns, weight.depth, dtype=dtype, device=weight.codes.device)
    dequantize_kernel[(triton.cdiv(columns, _DEQUANTIZED_OUTPUTS), row_bytes // weight.layout.half)](
        weight.codes,
        weight.scales,
        weight.zeros,
        weight.offsets,
        out,
        columns,
        weight.depth,
        row_bytes,
        weight.depth // groups,
        groups,
        layout=weight.layout,
        COLUMNS=_DEQUANTIZED_OUTPUTS,
        num_warps=4,
        **_ROUNDED_ONCE,
    )
    return out


_CASES: dict[str, tuple[CodeLayout, str, str | None]] = {
    "int4, groups of 32": (CodeLayout(4, 32), "fp32", None),
    "int4, groups of 128, zero points": (CodeLayout(4, 64), "fp16", "zeros"),
    "int4, offsets": (CodeLayout(4, 32), "fp16", "offsets"),
    "int8": (CodeLayout(8, 64, -128), "fp32", None),
    "e4m3": (CodeLayout(8, 64, floats=True), "fp32", None),
}
"""Layouts, the dtype of scales, and what is beside them."""


def builds(tiles: TileTable) -> Iterator[Build]:
    """Each kind of weight with each tile."""
    for dtype, itemsize in ITEMSIZE.items():
        for feature, (layout, scales, beside) in _CASES.items():
            types = dict.fromkeys(("inputs", "bias", "out"), f"*{dtype}:16") | {"codes": "*u8:16", "scales": f"*{scales}:16"}
            types |= dict.fromkeys(("columns", "depth", "row_bytes", "stride"), "i32:16")
            types |= dict.fromkeys(("rows", "group", "groups"), "i32")
            half = min(layout.half, halves(layout.bits, itemsize, tiles.amd)[0])
            constants: dict[str, object] = {"layout": replace(layout, half=half)}
            types |= {beside: f"*{scales}:16"} if beside else {}
            constants |= {name: None for name in ("zeros", "offsets") if name != beside}
            labels = {"dtype": dtype, "feature": feature}
            for tile in TILES if dtype != "fp32" else TILES[:1]:
                shape, options = (
                    {"ROWS": tile.rows, "COLUMNS": tile.columns},
                    {"num_warps": tile.warps, "num_stages": tile.stages},
                )
                own = {"kernel": "gemm", **labels, "width": f"{tile.rows} rows"}
                yield Build(gemm_kernel, types, constants | shape, options | _ROUNDED_ONCE, own)
            shape = {"COLUMNS": _DEQUANTIZED_OUTPUTS}
            own = {"kernel": "dequantize", **labels}
            yield Build(dequantize_kernel, types, constants | shape, {"num_warps": 4} | _ROUNDED_ONCE, own)
