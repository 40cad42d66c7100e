"""The attention kernels and what chooses among them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.triton.interpreting import run_interpreted
from tests.triton.tables import PACKAGES, tables_of
from tgi_core.engine.triton.tiles import MAX_SPLITS, Phase, TileTable, split_count

pytestmark = pytest.mark.long

TABLES = [table for package in PACKAGES for table in tables_of(package)]


@pytest.mark.timeout(1800)
def test_interpreted() -> None:
    """Every claim of `interpreted_attention.py` holds in Triton's interpreter."""
    run_interpreted("interpreted_attention.py")


def test_engine_needs_no_triton() -> None:
    """The engine and the provider are imported, and the provider gives its reason, where Triton is not."""
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "from tgi_core.engine.triton.provider import TritonAttention\n"
        "from tgi_core.engine.triton.tiles import TileTable\n"
        "print(TritonAttention(TileTable('none', 0, ()), 1).probe())"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.startswith("triton cannot be imported")


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.chip)
def test_tables(table: TileTable) -> None:
    """Every table has tiles for heads of up to 256 elements of 2 bytes and 128 of 4, and a tile's operands fit the shared memory."""
    assert table.serves(2, 256) and table.serves(4, 128)
    for itemsize in (2, 4):
        for width in (64, 80, 96, 112, 128, 192, 256):
            for phase in Phase if table.serves(itemsize, width) else ():
                tile = table.choose(phase, itemsize, width)
                padded = 64 if width <= 64 else 128 if width <= 128 else 256
                assert (tile.queries + 2 * tile.positions) * padded * itemsize <= table.shared_bytes
                assert tile.queries >= 16 and tile.positions >= 16
    with pytest.raises(LookupError, match=table.chip):
        table.choose(Phase.DECODE, 2, 512)


@pytest.mark.parametrize(
    ("programs", "tiles", "least", "most"),
    [(1, 1, 1, 1), (4096, 1, 1, 1), (4096, 500, 1, 1), (512, 32, 1, 2), (8, 8, 4, 8), (8, 500, 24, 33), (1, 500, 48, MAX_SPLITS)],
)
def test_splits(programs: int, tiles: int, least: int, most: int) -> None:
    """Of 264 programs at a time: few rows with many positions are split until they fill the machine, many rows or short ones hardly."""
    assert least <= split_count(programs, tiles, 264) <= most
