"""A tiny model that most tests of the engine share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.engine.tiny_models import Schedule, open_cpu, save_tiny
from tgi_core.backend import Capacity, WarmupPlan
from tgi_core.backend.session import Session

# Models this small gain nothing from threads, and threads that wait for each other on a busy machine lose much.
os.environ.setdefault("OMP_NUM_THREADS", "1")
torch.set_num_threads(1)


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
