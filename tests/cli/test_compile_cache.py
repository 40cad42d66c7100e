"""--compile-cache: where a backend keeps what it compiles."""

from __future__ import annotations

from pathlib import Path

import pytest

from tgi_core.cli.open_options import open_options
from tgi_core.cli.shard_flags import shard_flags
from tgi_core.config import Settings


def test_the_backend_gets_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Absolute, wherever the server was started, and not made for it."""
    monkeypatch.chdir(tmp_path)
    options = open_options(tmp_path, Settings(compile_cache="compiled/here"))
    assert options.compile_cache == str(tmp_path / "compiled" / "here")
    assert not any(tmp_path.iterdir())
    assert open_options(tmp_path, Settings()).compile_cache == ""


def test_so_does_a_shard_in_a_process_of_its_own() -> None:
    """The setting is among the flags of a child."""
    flags = shard_flags(Settings(compile_cache="/data/compiled"))
    assert flags[flags.index("--compile-cache") + 1] == "/data/compiled"
