"""RMS norm over whole rows, alone or after adding a branch, or the sum of several, to the residual stream."""

from __future__ import annotations

from collections.abc import Iterator

import triton
import triton.language as tl
from torch import Tensor

from tgi_core.engine.triton.builds import ITEMSIZE, Build
from tgi_core.engine.triton.tiles import TileTable


@triton.jit
def rms_norm_kernel(
    stream: tl.tensor,  # [rows, columns], changed if a branch is added
    branch: tl.tensor,  # [rows, PARTS, columns]
    weight: tl.tensor,  # [columns]
    out: tl.tensor,  # [rows, columns]
    columns: tl.tensor,
    scale: tl.tensor,
    epsilon: tl.tensor,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One row per program, held whole."""
    row = tl.program_id(0).to(tl.int64) * columns
    at = tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(stream + row + at, mask=inside, other=0.0).to(tl.float32)
    if PARTS == 1:
        values += scale * tl.load(branch + row + at, mask=inside, other=0.0).to(tl.float32)
    if PARTS > 1:
        added = tl.load(branch + row * PARTS + at, mask=inside, other=0.0).to(tl.float32)
        for part in range(1, PARTS):
            added += tl.load(branch + row * PARTS + part * columns + at, mask=inside, other=0.0).to(tl.float32)
        values += scale * added
    if PARTS > 0:
        # Normalize the rounded values, which the stream will hold.
        values = values.to(stream.dtype.element_ty).to(tl.float32)
    factor = tl.rsqrt(tl.sum(values * values, axis=0) / columns + epsilon)
    scaled = values * factor * tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row + at, scaled.to(out.dtype.element_ty), mask=inside)
    if PARTS > 0:
        # Only after the sum: a row shorter than the program's threads is read by several of them, and the sum is where they meet.
        # Last, since the compiler holds back loads behind a store: the weights of the widest rows would find no registers.
        tl.store(stream + row + at, values.to(stream.dtype.element_ty), mask=inside)


def launch_norm(stream: Tensor, branch: Tensor | None, scale: float, weight: Tensor, epsilon: float) -> Tensor:
    """stream [rows, columns] += scale · branch, normed, in the weight's dtype; all contiguous. A branch [rows, parts, columns] is
    summed."""
    rows, columns = stream.shape
    out = weight.new_empty(rows, columns)
    parts = 0 if branch is None else 1 if branch.ndim == 2 else branch.shape[1]
    rms_norm_kernel[(rows,)](
        stream,
        stream if branch is None else branch,
        weight,
        out,
        columns,
        scale,
        epsilon,
        PARTS=parts,
        BLOCK=triton.next_power_of_2(columns),
        num_warps=norm_warps(columns),
    )
    return out


def norm_warps(columns: int) -> int:
    """Warps per row: about eight elements per thread, and no more than every device supports."""
    return 4 if columns <= 2048 else 8 if columns <= 8192 else 16


def builds(tiles: TileTable) -> Iterator[Build]:
    """Rows of some models' widths, in all dtypes."""
    for dtype in ITEMSIZE:
        for columns in (1024, 2880, 4096, 8192, 16384):
            for parts in (0, 1, 8) if columns in (2880, 8192) else (0, 1):
                types = dict.fromkeys(("stream", "branch", "weight", "out"), f"*{dtype}:16")
                types |= {"columns": "i32:16", "scale": "fp32", "epsilon": "fp32"}
                constants = {"PARTS": parts, "BLOCK": triton.next_power_of_2(columns)}
                labels = {"kernel": "add and norm" if parts else "norm", "dtype": dtype, "width": str(columns)}
                labels |= {"feature": f"{parts} parts"} if parts > 1 else {}
                yield Build(rms_norm_kernel, types, constants, {"num_warps": norm_warps(columns)}, labels)
