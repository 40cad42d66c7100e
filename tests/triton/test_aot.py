"""The kernels compile for chips that are not here, and fit them."""

from __future__ import annotations

import pytest

from tests.triton.aot import COMPILED, FUSED, MODULES, Entry, builds, compile_all, matrix, sample
from tests.triton.tables import tables_of
from tgi_core.engine.triton import tiles
from tgi_core.engine.triton.tiles import Phase, Tile, TileRow, TileTable


@pytest.mark.timeout(900)
def test_sample_fits() -> None:
    """Attention kernels for every chip, and every width, dtype, block size and feature somewhere: within the chip, and nothing spilled."""
    check(sample([entry for entry in matrix() if entry.module not in FUSED], ("chip", "kernel")))


@pytest.mark.timeout(900)
def test_fused_sample_fits() -> None:
    """Every fused kernel in every dtype, and every chip, width and feature somewhere, likewise."""
    check(sample([entry for entry in matrix() if entry.module in FUSED], ("kernel", "dtype")))


def check(entries: list[Entry]) -> None:
    """They compile and fit."""
    faults = [f"{taken.entry}: {taken.fault}" for taken in compile_all(entries, processes=2) if taken.fault]
    assert not faults, "\n".join(faults)


def test_matrix_has_all_tiles() -> None:
    """Every row of every tile table that is for this Triton is compiled by the whole matrix."""
    for package in COMPILED:
        for table in tables_of(package):
            found = {
                (build.constants["queries"], build.constants["positions"], *sorted(build.options.items()))
                for module in MODULES
                for build in builds(module, table)
                if "queries" in build.constants
            }
            for row in table.rows_in_use():
                tile = row.tile
                assert (tile.queries, tile.positions, *sorted(tile.launch_options().items())) in found, (table.chip, row)


@pytest.mark.parametrize(("installed", "positions"), [((3, 8), 64), ((3, 9), 32), ((3, 10), 32), ((4, 0), 32), ((0, 0), 64)])
def test_rows_for_later_versions(installed: tuple[int, int], positions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that says since which version of Triton it counts goes before the older one from then on, and is unknown to earlier ones."""
    monkeypatch.setattr(tiles, "triton_version", lambda: installed)
    old, new = Tile(64, 64, 8, 3), Tile(64, 32, 8, 3)
    table = TileTable("any", 0, (TileRow(Phase.PREFILL, 2, 128, new, (3, 9)), TileRow(Phase.PREFILL, 2, 128, old)))
    assert table.choose(Phase.PREFILL, 2, 96).positions == positions and len(table.rows_in_use()) == 1
