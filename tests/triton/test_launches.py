"""Launches as a device's driver sees them: real compilation for a chip, and a driver that only takes notes."""

from __future__ import annotations

import torch

from tests.triton.noting import NotingDriver
from tgi_core.backend import Request
from tgi_core.backend.batch_tracker import RowInput, RowState
from tgi_core.engine.attention.cache import LayerShape
from tgi_core.engine.attention.interface import AttentionParameters
from tgi_core.engine.attention.metadata import build
from tgi_core.engine.triton.provider import TritonAttention
from tgi_core.engine.triton.tiles import Phase, Tile, TileRow, TileTable

CPU = torch.device("cpu")
TILES = TileTable(
    "none", 1 << 20, (TileRow(Phase.DECODE, 4, 256, Tile(16, 16, 4, 2)), TileRow(Phase.PREFILL, 4, 256, Tile(32, 16, 4, 2)))
)


def run(rows: list[tuple[int, int]], splits: int | None = None) -> None:
    """A step of rows (past, take) through the provider: the writing of its keys and values, and attention."""
    layer = TritonAttention(TILES, 4).new_layer(LayerShape(2, 64, 64), 100, 16, torch.bfloat16, CPU)
    row_inputs = []
    for place, (past, take) in enumerate(rows):
        tokens = [0] * (past + take)
        request = Request(place, tuple(tokens), len(tokens), 0, ((1,),), 1)
        row_inputs.append(RowInput(RowState(request, tokens, past, ([1] * -(-len(tokens) // 16),)), past, take, True))
    step = build(row_inputs, 16, CPU)
    # As projections make them: heads beside each other in one tensor.
    qkv = torch.zeros(len(step.input_ids), 8, 64, dtype=torch.bfloat16).transpose(0, 1)
    layer.write(step.slots, qkv[4:6], qkv[6:])
    out = TritonAttention(TILES, 4, splits).attend(qkv[:4], layer, step, AttentionParameters(0.125))
    assert out.shape == (len(step.input_ids), 4, 64)


def test_launches(driver: NotingDriver) -> None:
    """Decode rows and the others are launched apart; grids follow from numbers of the host."""
    run([(30, 1), (5, 1), (0, 100), (64, 40)], splits=3)
    assert driver.launched == [
        ("write_kernel", (9, 2, 1)),
        ("decode_kernel", (2, 3, 2)),
        ("join_kernel", (4, 2, 1)),
        ("varlen_kernel", (2, 140 // 16 + 2, 1)),
    ]


def test_nothing_compiles_later(driver: NotingDriver) -> None:
    """After one step of each kind no count of rows, tokens, blocks or parts makes Triton compile again."""
    run([(0, 1), (0, 20)], splits=1)
    run([(40, 1), (40, 3)], splits=2)
    run([(0, 1)] * 3, splits=1)
    before = len(driver.loaded)
    for rows in (
        [(16, 1)] * 16,
        [(0, 16), (100, 33)],
        [(7, 1), (9, 1), (3, 5)],
        [(500, 1)],
        [(15, 1)] * 7 + [(31, 64)] * 3,
        [(2, 3)],
    ):
        for splits in (None, 1, 16, 33):
            run(rows, splits)
    assert driver.loaded[before:] == []
