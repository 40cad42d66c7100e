"""The tile tables of all device packages, read from their files: a package need not be installed to be checked."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from tgi_core.engine.triton.tiles import TileTable

BACKENDS = Path(__file__).parents[2] / "backends"
PACKAGES = ("cuda", "rocm", "xpu")


def tables_of(package: str) -> tuple[TileTable, ...]:
    """The tables of one device package."""
    path = BACKENDS / package / f"tgi_backend_{package}" / "tiles.py"
    spec = importlib.util.spec_from_file_location(f"tiles_of_{package}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tables: tuple[TileTable, ...] = module.TABLES
    return tables
