"""Tiles of the Triton attention kernels for Intel GPUs.

Based on what such kernels use there, for the smallest local memory of the family. Nothing here was compiled, since Triton for these
devices needs its own package, and nothing has run.
"""

from __future__ import annotations

from tgi_core.engine.triton.tiles import Phase, Tile, TileRow, TileTable

TABLES = (
    TileTable(
        "xe",
        64 * 1024,
        (
            TileRow(Phase.DECODE, 2, 128, Tile(16, 32, 4, 2, programs=2)),
            TileRow(Phase.DECODE, 2, 256, Tile(16, 16, 4, 2, programs=2)),
            TileRow(Phase.PREFILL, 2, 64, Tile(128, 64, 16, 2)),
            TileRow(Phase.PREFILL, 2, 128, Tile(128, 32, 16, 2)),
            TileRow(Phase.PREFILL, 2, 256, Tile(64, 16, 16, 2)),
            TileRow(Phase.DECODE, 4, 256, Tile(16, 16, 8, 2)),
            TileRow(Phase.PREFILL, 4, 256, Tile(16, 16, 8, 2)),
        ),
    ),
)
"""One table for all devices."""


def tiles_for(name: str) -> TileTable:
    """The tiles of a device of any name."""
    return TABLES[0]
