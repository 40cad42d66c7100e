"""Tiles of the Triton attention kernels, per compute capability.

Blocks of the cache are found through a table, so that loads wait for other loads: half of the `stages` go to the table. Programs per
multiprocessor: as many as fit in shared memory and registers. Figures are from ahead-of-time compilation; docs/kernels.md says how.
"""

from __future__ import annotations

from dataclasses import replace

from tgi_core.engine.triton.tiles import Phase, Tile, TileRow, TileTable, table_of

_KIB = 1024

_DECODE = (
    TileRow(Phase.DECODE, 2, 64, Tile(16, 128, 4, 5, programs=3)),
    TileRow(Phase.DECODE, 2, 128, Tile(16, 64, 4, 5, programs=3)),
    TileRow(Phase.DECODE, 2, 256, Tile(16, 32, 4, 5, programs=3)),
)

_AMPERE_DECODE = tuple(replace(row, tile=replace(row.tile, programs=2)) for row in _DECODE)

_SMALL_DECODE = (
    TileRow(Phase.DECODE, 2, 64, Tile(16, 64, 4, 5, programs=2)),
    TileRow(Phase.DECODE, 2, 128, Tile(16, 32, 4, 5, programs=2)),
    TileRow(Phase.DECODE, 2, 256, Tile(16, 16, 4, 5, programs=2)),
)

# float32 is computed as it is, without tensor cores: larger tiles spill, and so do these with 4 warps on 8.0, 8.6 or 8.9, and before
# Triton 3.7 with three stages.
_FLOAT32 = (
    TileRow(Phase.DECODE, 4, 128, Tile(16, 32, 8, 3, programs=2), (3, 7)),
    TileRow(Phase.DECODE, 4, 128, Tile(16, 32, 8, 2, programs=2)),
    TileRow(Phase.DECODE, 4, 256, Tile(16, 16, 8, 3)),
    TileRow(Phase.PREFILL, 4, 64, Tile(32, 32, 8, 2)),
    TileRow(Phase.PREFILL, 4, 128, Tile(16, 32, 8, 2)),
    TileRow(Phase.PREFILL, 4, 256, Tile(16, 16, 8, 2)),
)

# There 8 warps have too few registers each for the widest heads, and 4 enough.
_CONSUMER_BLACKWELL_FLOAT32 = (
    *_FLOAT32[:2],
    TileRow(Phase.DECODE, 4, 256, Tile(16, 16, 4, 3)),
    *_FLOAT32[3:],
)

# Without warp-group MMA 128 queries spill.
_AMPERE_PREFILL = (
    TileRow(Phase.PREFILL, 2, 64, Tile(128, 64, 8, 3)),
    TileRow(Phase.PREFILL, 2, 128, Tile(64, 64, 8, 3)),
    TileRow(Phase.PREFILL, 2, 256, Tile(64, 32, 8, 3)),
)

# 128 positions would spill at a width of 128, and 64 at 256, though not on 9.0 with Triton 3.7 and 3.8.
_BLACKWELL_PREFILL = (
    TileRow(Phase.PREFILL, 2, 64, Tile(128, 128, 8, 3)),
    TileRow(Phase.PREFILL, 2, 128, Tile(128, 64, 8, 3)),
    TileRow(Phase.PREFILL, 2, 256, Tile(128, 32, 8, 3)),
)
_HOPPER_PREFILL = (
    *_BLACKWELL_PREFILL[:2],
    TileRow(Phase.PREFILL, 2, 256, Tile(128, 32, 8, 3), (3, 9)),
    TileRow(Phase.PREFILL, 2, 256, Tile(128, 64, 8, 3), (3, 7)),
    _BLACKWELL_PREFILL[2],
)

# Triton 3.9 needs a few more registers than 3.7: eight warps would have 128 each on 8.6 and 8.9, and spill.
_SMALL_SINCE_3_9 = (
    TileRow(Phase.PREFILL, 2, 128, Tile(64, 32, 4, 3), (3, 9)),
    TileRow(Phase.PREFILL, 2, 256, Tile(64, 32, 8, 2), (3, 9)),
)
_SMALL_PREFILL = (_AMPERE_PREFILL[0], *_SMALL_SINCE_3_9, *_AMPERE_PREFILL[1:])

TABLES = (
    TileTable("sm_80", 163 * _KIB, (*_AMPERE_DECODE, *_AMPERE_PREFILL, *_FLOAT32)),
    TileTable("sm_86", 99 * _KIB, (*_SMALL_DECODE, *_SMALL_PREFILL, *_FLOAT32)),
    TileTable("sm_89", 99 * _KIB, (*_SMALL_DECODE, *_SMALL_PREFILL, *_FLOAT32), fp8="fp8e4nv"),
    TileTable("sm_90", 227 * _KIB, (*_DECODE, *_HOPPER_PREFILL, *_FLOAT32), fp8="fp8e4nv"),
    TileTable("sm_100", 227 * _KIB, (*_DECODE, *_BLACKWELL_PREFILL, *_FLOAT32), fp8="fp8e4nv"),
    TileTable("sm_120", 99 * _KIB, (*_SMALL_DECODE, *_AMPERE_PREFILL, *_CONSUMER_BLACKWELL_FLOAT32), fp8="fp8e4nv"),
)
"""One table per compute capability that was compiled for."""

_LIKE = {(7, 5): "sm_86", (8, 7): "sm_80", (10, 3): "sm_100", (12, 1): "sm_120"}
"""For capabilities without a table, one that has no more shared memory."""


def tiles_for(capability: tuple[int, int]) -> TileTable:
    """The tiles of devices of this compute capability. Raises LookupError."""
    major, minor = capability
    return table_of(TABLES, _LIKE.get(capability, f"sm_{major}{minor}"))
