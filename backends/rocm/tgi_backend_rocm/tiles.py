"""Tiles of the Triton attention kernels, per architecture.

Loads in flight take the 64 KiB of local memory, and registers limit the rest: RDNA has half as many lanes per wave. Figures are from
ahead-of-time compilation; docs/kernels.md says how. None has run on a device.
"""

from __future__ import annotations

from dataclasses import replace

from tgi_core.engine.triton.tiles import Phase, Tile, TileRow, TileTable, table_of

_KIB = 1024

# Widths between 64 and 128 are padded, and what masks the padding takes registers: with 64 positions they spill.
_CDNA = (
    TileRow(Phase.DECODE, 2, 64, Tile(16, 64, 4, 2, programs=2)),
    TileRow(Phase.DECODE, 2, 128, Tile(16, 64, 4, 2, programs=2)),
    TileRow(Phase.DECODE, 2, 256, Tile(16, 32, 4, 2, programs=2)),
    TileRow(Phase.PREFILL, 2, 64, Tile(128, 64, 4, 2)),
    TileRow(Phase.PREFILL, 2, 112, Tile(128, 32, 4, 2)),
    TileRow(Phase.PREFILL, 2, 128, Tile(128, 64, 4, 2)),
    TileRow(Phase.PREFILL, 2, 256, Tile(64, 32, 4, 2)),
    TileRow(Phase.DECODE, 4, 128, Tile(16, 32, 4, 2)),
    TileRow(Phase.DECODE, 4, 256, Tile(16, 16, 4, 2)),
    TileRow(Phase.PREFILL, 4, 128, Tile(32, 32, 4, 2)),
    TileRow(Phase.PREFILL, 4, 256, Tile(16, 16, 4, 2)),
)

_RDNA = (
    TileRow(Phase.DECODE, 2, 64, Tile(16, 32, 4, 2, programs=2)),
    TileRow(Phase.DECODE, 2, 128, Tile(16, 16, 4, 2, programs=2)),
    TileRow(Phase.PREFILL, 2, 64, Tile(64, 32, 4, 2)),
    TileRow(Phase.PREFILL, 2, 128, Tile(64, 16, 8, 2)),
    TileRow(Phase.DECODE, 4, 128, Tile(16, 16, 16, 1)),
    TileRow(Phase.PREFILL, 4, 128, Tile(16, 16, 16, 1)),
)

# In float32, without matrix instructions, heads wider than 128 spill whatever the tile: there is none.
# RDNA 3 keeps operands twice, so that heads of 256 leave room for few queries, and none for prefetched loads or more than one loop.
# Before Triton 3.7, and from 3.9 on, heads take more registers there.
_GFX11 = (
    *_RDNA[:2],
    TileRow(Phase.PREFILL, 2, 64, Tile(64, 32, 8, 2), (3, 9)),
    TileRow(Phase.PREFILL, 2, 128, Tile(32, 16, 8, 2), (3, 9)),
    _RDNA[2],
    replace(_RDNA[3], since=(3, 7)),
    TileRow(Phase.PREFILL, 2, 128, Tile(32, 16, 8, 2)),
    TileRow(Phase.DECODE, 2, 256, Tile(16, 16, 8, 1, programs=2, one_loop=True), (3, 9)),
    TileRow(Phase.DECODE, 2, 256, Tile(16, 16, 4, 1, programs=2)),
    TileRow(Phase.PREFILL, 2, 256, Tile(32, 16, 16, 1, one_loop=True)),
    *_RDNA[4:],
)
_GFX12 = (
    *_RDNA[:4],
    TileRow(Phase.DECODE, 2, 256, Tile(16, 16, 4, 2, programs=2)),
    TileRow(Phase.PREFILL, 2, 256, Tile(32, 16, 8, 2)),
    *_RDNA[4:],
)

TABLES = (
    TileTable("gfx90a", 64 * _KIB, _CDNA),
    TileTable("gfx942", 64 * _KIB, _CDNA, fp8="fp8e4b8"),
    TileTable("gfx950", 160 * _KIB, _CDNA, fp8="fp8e4nv"),
    TileTable("gfx1100", 64 * _KIB, _GFX11),
    TileTable("gfx1201", 64 * _KIB, _GFX12, fp8="fp8e4nv"),
)
"""One table per architecture that was compiled for."""

_LIKE = {
    **dict.fromkeys(("gfx1101", "gfx1102", "gfx1103", "gfx1150", "gfx1151", "gfx1152"), "gfx1100"),
    "gfx1200": "gfx1201",
}


def tiles_for(architecture: str) -> TileTable:
    """The tiles of an architecture such as gfx942; what the driver appends after a colon is ignored. Raises LookupError."""
    name = architecture.partition(":")[0]
    return table_of(TABLES, _LIKE.get(name, name))
