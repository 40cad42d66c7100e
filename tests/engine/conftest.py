"""A tiny model that most tests of the engine share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.tiny_models import Schedule, open_cpu, save_tiny
from tgi_core.backend import Capacity, WarmupPlan
from tgi_core.backend.session import Session


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of 4 layers in float32."""
    return save_tiny("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def opened(llama: Path) -> tuple[Session, Capacity]:
    """A warmed session on it."""
    return open_cpu(llama, WarmupPlan(max_rows=8, max_row_tokens=96, max_step_tokens=128, num_blocks=64))


@pytest.fixture
def schedule(opened: tuple[Session, Capacity]) -> Iterator[Schedule]:
    """A driver over the session, which it leaves empty."""
    yield Schedule(*opened)
    opened[0].clear(None)
