"""A model that compiles fast."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.tiny_models import save_tiny


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of 2 layers in float32."""
    return save_tiny("llama", tmp_path_factory.mktemp("llama"), num_hidden_layers=2)
