"""GEMMs of 8-bit codes by 8-bit codes (W8A8), integers or e4m3 floats, and the rounding of their inputs.

Sums of integers are exact, so their bits depend on nothing but the row and the output. Floats are summed in float32, on chips whose sums
have fewer bits at least from tile to tile. A tile of inputs and weights belongs to one group, whose two scales multiply its sum; if a row
and an output have one scale each, these multiply the whole sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from tgi_core.engine.quantization.rows import RowRounding
from tgi_core.engine.triton.attention_blocks import cast_for_cache
from tgi_core.engine.triton.builds import Build
from tgi_core.engine.triton.tiles import TileTable

_ROUNDED_ONCE = {"enable_fp_fusion": False}
"""Options of all kernels: products and sums are rounded one by one, as in torch."""

_ROUNDED_INPUTS = 1024
"""The most inputs that a program rounds at a time."""


@dataclass(frozen=True, slots=True)
class CodedWeight:
    """A weight [columns, depth] of 8-bit codes, as the kernels read it, with float32 scales [groups, columns]."""

    codes: Tensor
    scales: Tensor

    @property
    def num_bytes(self) -> int:
        """Bytes on the device."""
        return sum(part.numel() * part.itemsize for part in (self.codes, self.scales))


@dataclass(frozen=True, slots=True)
class CodeTile:
    """What one program computes, [rows, columns], from `depth` inputs at a time, with so many warps and stages."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int

    def within(self, group: int) -> int:
        """Inputs at a time, of which each group has a whole number. A group has a multiple of 32 inputs."""
        return min(self.depth, group & -group)


TILES = (CodeTile(16, 64, 128, 4, 3), CodeTile(64, 64, 128, 4, 3), CodeTile(128, 128, 64, 8, 3))
"""By rows of the inputs. They were not tuned by measurement."""

GROUPED_TILES = (TILES[0], CodeTile(64, 64, 128, 8, 3), CodeTile(128, 64, 64, 8, 3))
"""The same for weights with several groups, for the same numbers of rows: a tile has two sums, and larger ones spill registers on RDNA."""


@triton.jit(do_not_specialize=["group"])
def round_rows_kernel(
    inputs: tl.tensor,  # [rows, depth], `stride` apart
    codes: tl.tensor,  # [rows, depth], contiguous
    scales: tl.tensor,  # float32 [rows, groups]
    given: tl.tensor,  # a scale, or 0 if there is none
    depth: tl.tensor,
    stride: tl.tensor,
    group: tl.tensor,  # inputs that share a scale
    MOST: tl.constexpr,  # the largest code
    GIVEN: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The codes and the scale of one group of a row, see `rounded_rows`. Grid [rows, groups]."""
    row, place = tl.program_id(0).to(tl.int64), tl.program_id(1)
    own = inputs + row * stride + place * group
    at = tl.arange(0, BLOCK)
    # Magnitudes are compared as integers, of which those of numbers that are not finite are the largest.
    largest = tl.zeros([BLOCK], tl.int32)
    for first in range(0, group, BLOCK):
        value = tl.load(own + first + at, mask=first + at < group, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, value.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
    most = tl.max(largest, 0).to(tl.float32, bitcast=True)
    if GIVEN:
        scale = given + most * 0.0
        inverse = tl.div_rn(1.0, given)
    else:
        scale = tl.div_rn(most, MOST)
        inverse = tl.where(most > 0.0, tl.div_rn(MOST, tl.where(most > 0.0, most, 1.0)), 0.0)
    tl.store(scales + row * tl.num_programs(1) + place, scale)
    to = codes + row * depth + place * group
    for first in range(0, group, BLOCK):
        inside = first + at < group
        value = tl.load(own + first + at, mask=inside, other=0.0).to(tl.float32) * inverse
        value = tl.where(value == value, value, 0.0)
        if codes.dtype.element_ty == tl.int8:
            value = tl.clamp(value, -MOST, MOST)
            value = (value + 12582912.0) - 12582912.0  # to a whole number, the even one of two
            tl.store(to + first + at, value.to(tl.int8), mask=inside)
        else:
            tl.store(to + first + at, cast_for_cache(value, codes.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows", "group", "groups"])
def scaled_gemm_kernel(
    inputs: tl.tensor,  # codes [rows, depth], contiguous
    input_scales: tl.tensor,  # float32 [rows, groups]
    codes: tl.tensor,  # [columns, depth]
    scales: tl.tensor,  # float32 [groups, columns]
    bias: tl.tensor,  # [columns], or None
    out: tl.tensor,  # [rows, columns]
    rows: tl.tensor,
    columns: tl.tensor,
    depth: tl.tensor,
    group: tl.tensor,  # inputs that share a scale
    groups: tl.tensor,
    GROUPED: tl.constexpr,  # whether there are several groups
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
) -> None:
    """inputs · weightᵀ + bias, a tile per program."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, DEPTH)
    of_rows, of_columns = row < rows, column < columns
    own_inputs = inputs + row.to(tl.int64)[:, None] * depth + at[None, :]
    own_codes = codes + column.to(tl.int64)[None, :] * depth + at[:, None]
    own_scales = input_scales + row * groups
    WHOLE: tl.constexpr = codes.dtype.element_ty == tl.int8
    SUM: tl.constexpr = tl.int32 if WHOLE else tl.float32
    PROMOTED: tl.constexpr = 0 if WHOLE else DEPTH
    total = tl.zeros((ROWS, COLUMNS), tl.float32 if GROUPED else SUM)
    for first in range(0, depth, DEPTH):
        inside = first + at < depth
        left = tl.load(own_inputs + first, mask=of_rows[:, None] & inside[None, :], other=0.0)
        right = tl.load(own_codes + first, mask=of_columns[None, :] & inside[:, None], other=0.0)
        if GROUPED:
            place = first // group
            part = tl.dot(left, right, out_dtype=SUM).to(tl.float32)
            part *= tl.load(own_scales + place, mask=of_rows, other=0.0)[:, None]
            total += part * tl.load(scales + place * columns + column, mask=of_columns, other=0.0)[None, :]
        else:
            total = tl.dot(left, right, total, out_dtype=SUM, max_num_imprecise_acc=PROMOTED)
    result = total.to(tl.float32)
    if not GROUPED:
        result *= tl.load(own_scales, mask=of_rows, other=0.0)[:, None]
        result *= tl.load(scales + column, mask=of_columns, other=0.0)[None, :]
    if bias is not None:
        result += tl.load(bias + column, mask=of_columns, other=0.0).to(tl.float32)[None, :]
    to = out + row.to(tl.int64)[:, None] * columns + column[None, :]
    tl.store(to, result.to(out.dtype.element_ty), mask=of_rows[:, None] & of_columns[None, :])


def launch_round_rows(rows: Tensor, rounding: RowRounding) -> tuple[Tensor, Tensor]:
    """`rounded_rows`, of rows that are contiguous in their last dimension."""
    count, depth = rows.shape
    groups = depth // rounding.group
    codes = torch.empty(count, depth, dtype=rounding.dtype, device=rows.device)
    scales = torch.empty(count, groups, dtype=torch.float32, device=rows.device)
    if count:
        round_rows_kernel[(count, groups)](
            rows,
            codes,
            scales,
            rounding.scale or 0.0,
            depth,
            rows.stride(0),
            rounding.group,
            MOST=rounding.most,
            GIVEN=rounding.scale is not None,
            BLOCK=_block(rounding.group),
            num_warps=4,
            **_ROUNDED_ONCE,
        )
    return codes, scales


def launch_scaled_gemm(rows: Tensor, weight: CodedWeight, bias: Tensor | None, rounding: RowRounding) -> Tensor:
    """rows [rows, depth], rounded, times the weight, plus the bias: [rows, columns] in the dtype of the rows."""
    columns, depth = weight.codes.shape
    out = rows.new_empty(rows.shape[0], columns)
    if not rows.shape[0]:  # of a step that reads no logits
        return out
    codes, scales = launch_round_rows(rows, rounding)
    grouped = scales.shape[1] > 1
    tiles = GROUPED_TILES if grouped else TILES
    tile = next((tile for tile in tiles if rows.shape[0] <= tile.rows), tiles[-1])
    scaled_gemm_kernel[(triton.cdiv(columns, tile.columns), triton.cdiv(rows.shape[0], tile.rows))](
        codes,
        scales,
        weight.codes,
        weight.scales,
        bias,
        out,
        rows.shape[0],
        columns,
        depth,
        rounding.group,
        scales.shape[1],
        GROUPED=grouped,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        DEPTH=tile.within(rounding.group) if grouped else tile.depth,
        num_warps=tile.warps,
        num_stages=tile.stages,
        **_ROUNDED_ONCE,
    )
    return out


def _block(group: int) -> int:
    return min(_ROUNDED_INPUTS, triton.next_power_of_2(group))


def builds(tiles: TileTable) -> Iterator[Build]:
    """Integers, and the chip's 8-bit floats if it has them; with a scale per row, with one that was given, and by groups."""
    for codes in ("i8", *((tiles.fp8,) if tiles.fp8 else ())):
        most = 127.0 if codes == "i8" else 240.0 if codes == "fp8e4b8" else 448.0
        for dtype in ("bf16", "fp16"):
            for feature, group in (("per row", 4096), ("groups of 128", 128), ("groups of 32", 32)):
                labels = {"dtype": dtype, "feature": f"{codes}, {feature}"}
                if dtype == "bf16" or group == 4096:
                    yield from _gemms(codes, dtype, group, labels)
                yield from _roundings(codes, dtype, group, most, labels)


def _roundings(codes: str, dtype: str, group: int, most: float, labels: dict[str, str]) -> Iterator[Build]:
    types = {"inputs": f"*{dtype}:16", "codes": f"*{codes}:16", "scales": "*fp32:16", "given": "fp32", "group": "i32"}
    types |= dict.fromkeys(("depth", "stride"), "i32:16")
    for given in (False, True) if group == 4096 else (False,):
        constants = {"MOST": most, "GIVEN": given, "BLOCK": _block(group)}
        own = {"kernel": "round rows", **labels} | ({"width": "a given scale"} if given else {})
        yield Build(round_rows_kernel, types, constants, {"num_warps": 4} | _ROUNDED_ONCE, own)


def _gemms(codes: str, dtype: str, group: int, labels: dict[str, str]) -> Iterator[Build]:
    types = dict.fromkeys(("inputs", "codes"), f"*{codes}:16") | dict.fromkeys(("input_scales", "scales"), "*fp32:16")
    types |= dict.fromkeys(("bias", "out"), f"*{dtype}:16") | dict.fromkeys(("columns", "depth"), "i32:16")
    types |= dict.fromkeys(("rows", "group", "groups"), "i32")
    grouped = group != 4096
    for tile in GROUPED_TILES if grouped else TILES:
        constants = {"GROUPED": grouped, "ROWS": tile.rows, "COLUMNS": tile.columns}
        constants["DEPTH"] = tile.within(group) if grouped else tile.depth
        own = {"kernel": "scaled gemm", **labels, "width": f"{tile.rows} rows"}
        yield Build(
            scaled_gemm_kernel, types, constants, {"num_warps": tile.warps, "num_stages": tile.stages} | _ROUNDED_ONCE, own
        )
