"""A machine with Gaudi devices and habana_frameworks, as the plugin sees it in this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tgi_backend_gaudi import discovery, plugin

from tests.engine.tiny_models import save_tiny
from tests.gaudi.standin import PACKAGES, gaudi


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The root of a machine with one device."""
    root = gaudi(tmp_path / "machine")
    monkeypatch.setattr(discovery, "ROOT", root)
    monkeypatch.syspath_prepend(str(PACKAGES))
    kept = dict(os.environ)
    for name in (*plugin.IGNORED, discovery.VISIBLE):
        os.environ.pop(name, None)
    os.environ["PT_HPU_LAZY_MODE"] = "0"  # as the plugin sets it
    if imported := sys.modules.get("habana_frameworks.torch.hpu"):
        torch.hpu = imported.device_module  # type: ignore[attr-defined]
    yield root
    if hasattr(torch, "hpu"):
        del torch.hpu  # torch's own fake tensors ask whether there is one
    os.environ.clear()
    os.environ.update(kept)


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of 2 layers in float32."""
    return save_tiny("llama", tmp_path_factory.mktemp("llama"), num_hidden_layers=2)
