"""GEMMs of experts: each block of rows is multiplied by the weight of the expert that owns it.

Rows are a token's choices, in the order that `routing.py` has found. The first GEMM reads a token's hidden state once per choice, and ends
with the activation; the second multiplies by the router's weights. Both sum in float32, and write a choice's row to its own place, so that
nothing needs to be sorted back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from tgi_core.engine.experts import Activation, Chosen, Experts
from tgi_core.engine.triton.builds import ITEMSIZE, Build
from tgi_core.engine.triton.routing import BLOCK_ROWS, Order, launch_sort
from tgi_core.engine.triton.tiles import TileTable


@dataclass(frozen=True, slots=True)
class GroupedTile:
    """What one program computes, [rows, columns], over `depth` inputs at a time, with so many warps and stages."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


TILES = {
    2: (
        GroupedTile(BLOCK_ROWS[0], 32, 64, 4, 3),
        GroupedTile(BLOCK_ROWS[1], 64, 64, 8, 2),
        GroupedTile(BLOCK_ROWS[2], 64, 32, 8, 3),
    ),
    4: (GroupedTile(BLOCK_ROWS[0], 32, 32, 4, 3), GroupedTile(BLOCK_ROWS[1], 32, 32, 16, 2)),
}
"""By bytes of an element, then by rows. They fit every chip, and were not tuned by measurement."""


@triton.jit(do_not_specialize=["choices", "fan"])
def grouped_gemm_kernel(
    inputs: tl.tensor,  # [choices / fan, depth]
    weight: tl.tensor,  # [experts, columns, depth]; GATED: [experts, 2 · columns, depth]
    bias: tl.tensor,  # [experts, columns or 2 · columns], or None
    weights: tl.tensor,  # float32 [choices], or None
    out: tl.tensor,  # [choices, columns]
    order: tl.tensor,  # int32 [blocks · ROWS]
    owners: tl.tensor,  # int32 [blocks]
    choices: tl.tensor,
    columns: tl.tensor,
    depth: tl.tensor,
    fan: tl.tensor,  # choices per row of the inputs
    GATED: tl.constexpr,  # whether the first half of the outputs are gates of the second
    SLOPE: tl.constexpr,
    OFFSET: tl.constexpr,
    LIMIT: tl.constexpr,  # or None
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
) -> None:
    """A tile of one block per program; blocks without an owner have none."""
    owner = tl.load(owners + tl.program_id(1)).to(tl.int64)
    if owner >= 0:
        choice = tl.load(order + tl.program_id(1) * ROWS + tl.arange(0, ROWS))
        there = choice < choices
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        known = column < columns
        at = tl.arange(0, DEPTH)
        own = inputs + (choice // fan).to(tl.int64)[:, None] * depth + at[None, :]
        first_row = owner * columns * (2 if GATED else 1)
        gates = weight + (first_row + column)[:, None] * depth + at[None, :]
        ups = gates + columns.to(tl.int64) * depth
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        total_up = tl.zeros((ROWS, COLUMNS), tl.float32)
        for first in range(0, depth, DEPTH):
            inside = (first + at < depth)[None, :]
            some = tl.load(own + first, mask=there[:, None] & inside, other=0.0)
            gate = tl.load(gates + first, mask=known[:, None] & inside, other=0.0)
            total = tl.dot(some, tl.trans(gate), total, input_precision="ieee")
            if GATED:
                up = tl.load(ups + first, mask=known[:, None] & inside, other=0.0)
                total_up = tl.dot(some, tl.trans(up), total_up, input_precision="ieee")
        if bias is not None:
            total += tl.load(bias + first_row + column, mask=known, other=0.0).to(tl.float32)[None, :]
            if GATED:
                total_up += tl.load(bias + first_row + columns + column, mask=known, other=0.0).to(tl.float32)[None, :]
        if GATED:
            if LIMIT is not None:
                total = tl.minimum(total, LIMIT)
                total_up = tl.minimum(tl.maximum(total_up, -LIMIT), LIMIT)
            total = total * tl.sigmoid(SLOPE * total) * (total_up + OFFSET)
        if weights is not None:
            total *= tl.load(weights + choice, mask=there, other=0.0)[:, None]
        to = out + choice.to(tl.int64)[:, None] * columns + column[None, :]
        tl.store(to, total.to(out.dtype.element_ty), mask=there[:, None] & known[None, :])


def launch_experts(hidden: Tensor, chosen: Chosen, experts: Experts, tile: GroupedTile | None = None) -> Tensor:
    """See `ExpertsKernel.experts`: three launches. The tile follows from the number of choices unless it is given."""
    tokens, fan = chosen.ids.shape
    made = hidden.new_empty(tokens, fan, hidden.shape[1])
    if tokens == 0:
        return made
    tile = tile or choose_tile(tokens * fan, experts.count, hidden.itemsize)
    order = launch_sort(chosen.ids, experts.count, tile.rows)
    gated = hidden.new_empty(tokens * fan, experts.down.shape[2])
    _launch(hidden, experts.gate_up, experts.gate_up_bias, None, gated, order, tile, fan, experts.activation)
    _launch(gated, experts.down, experts.down_bias, chosen.weights, made, order, tile, 1, None)
    return made


def choose_tile(choices: int, experts: int, itemsize: int) -> GroupedTile:
    """The tile with the fewest rows that holds an expert's average number of choices, or the largest one."""
    tiles = TILES[itemsize]
    return next((tile for tile in tiles if choices <= tile.rows * experts), tiles[-1])


def compile_experts(experts: Experts) -> None:
    """Compile every tile for experts of these sizes."""
    hidden = experts.down.new_zeros(1, experts.down.shape[1])
    chosen = Chosen(*(torch.zeros(1, 1, dtype=dtype, device=hidden.device) for dtype in (torch.int32, torch.float32)))
    for tile in TILES[hidden.itemsize]:
        launch_experts(hidden, chosen, experts, tile)


def _launch(
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    weights: Tensor | None,
    out: Tensor,
    order: Order,
    tile: GroupedTile,
    fan: int,
    activation: Activation | None,
) -> None:
    depth = weight.shape[2]
    columns = weight.shape[1] // (1 if activation is None else 2)
    grouped_gemm_kernel[(triton.cdiv(columns, tile.columns), order.blocks)](
        inputs,
        weight,
        bias,
        weights,
        out,
        order.order,
        order.owners,
        out.numel() // columns,
        columns,
        depth,
        fan,
        **_constants(activation, tile),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


def _constants(activation: Activation | None, tile: GroupedTile) -> dict[str, object]:
    own = activation or Activation()
    return {
        "GATED": activation is not None,
        "SLOPE": own.slope,
        "OFFSET": own.offset,
        "LIMIT": own.limit,
        "ROWS": tile.rows,
        "COLUMNS": tile.columns,
        "DEPTH": tile.depth,
    }


_CLAMPED = Activation(1.702, 1.0, 7.0)


def builds(tiles: TileTable) -> Iterator[Build]:
    """Both GEMMs with each tile, with SiLU and without biases, or with a clamped activation and biases."""
    for dtype, itemsize in ITEMSIZE.items():
        for tile in TILES[itemsize]:
            options = {"num_warps": tile.warps, "num_stages": tile.stages}
            for activation, biased in ((Activation(), False), (_CLAMPED, True), (None, False), (None, True)):
                types = dict.fromkeys(("inputs", "weight", "out"), f"*{dtype}:16")
                types |= dict.fromkeys(("order", "owners"), "*i32:16")
                types |= {"choices": "i32", "fan": "i32", "columns": "i32:16", "depth": "i32:16"}
                constants: dict[str, object] = _constants(activation, tile)
                types |= {"bias": f"*{dtype}:16"} if biased else {}
                types |= {"weights": "*fp32:16"} if activation is None else {}
                constants |= {name: None for name in ("bias", "weights") if name not in types}
                labels = {"kernel": "gate and up" if activation else "down", "dtype": dtype, "width": f"{tile.rows} rows"}
                labels["feature"] = "biased" if biased else "plain"
                yield Build(grouped_gemm_kernel, types, constants, options, labels)
