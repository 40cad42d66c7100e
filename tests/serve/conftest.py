"""One server with the demo model for all tests of this folder that need a real one."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.serve.process import ServerProcess, served


@pytest.fixture(scope="session")
def demo_server() -> Generator[ServerProcess, None, None]:
    """`tgi serve` on the CPU, as a user starts it."""
    with served("--backend", "cpu") as server:
        yield server
