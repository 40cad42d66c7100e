"""The gated activation between the two projections of an MLP."""

from __future__ import annotations

from collections.abc import Iterator

import triton
import triton.language as tl
from torch import Tensor

from tgi_core.engine.triton.builds import ITEMSIZE, Build
from tgi_core.engine.triton.tiles import TileTable

BLOCK = 1024


@triton.jit
def silu_mul_kernel(
    gate_up: tl.tensor,  # [rows, 2 · columns]
    out: tl.tensor,  # [rows, columns]
    columns: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """SiLU of the first half of a row times its second half."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < columns
    gates = gate_up + row * 2 * columns + at
    gate = tl.load(gates, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gates + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * columns + at, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=inside)


def launch_silu_mul(gate_up: Tensor) -> Tensor:
    """gate_up [rows, 2 · columns], contiguous → [rows, columns]."""
    rows, columns = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, columns)
    silu_mul_kernel[(rows, triton.cdiv(columns, BLOCK))](gate_up, out, columns, BLOCK=BLOCK, num_warps=4)
    return out


def builds(tiles: TileTable) -> Iterator[Build]:
    """All dtypes."""
    for dtype in ITEMSIZE:
        types = {"gate_up": f"*{dtype}:16", "out": f"*{dtype}:16", "columns": "i32:16"}
        yield Build(silu_mul_kernel, types, {"BLOCK": BLOCK}, {"num_warps": 4}, {"kernel": "silu_mul", "dtype": dtype})
