"""The kernels compile for chips that are not here, and fit them."""

from __future__ import annotations

import pytest

from tests.triton.aot import COMPILED, MODULES, builds, compile_all, matrix, sample
from tests.triton.tables import tables_of


@pytest.mark.timeout(900)
def test_sample_fits() -> None:
    """Every kernel for every chip, and every width, dtype, block size and feature somewhere: within the chip, and nothing spilled."""
    entries = sample(matrix(), ("chip", "kernel"))
    faults = [f"{taken.entry}: {taken.fault}" for taken in compile_all(entries, processes=2) if taken.fault]
    assert not faults, "\n".join(faults)


def test_matrix_has_all_tiles() -> None:
    """Every row of every tile table is compiled by the whole matrix."""
    for package in COMPILED:
        for table in tables_of(package):
            found = {
                (build.constants["queries"], build.constants["positions"], *sorted(build.options.items()))
                for module in MODULES
                for build in builds(module, table)
                if "queries" in build.constants
            }
            for row in table.rows:
                tile = row.tile
                assert (tile.queries, tile.positions, *sorted(tile.launch_options().items())) in found, (table.chip, row)
