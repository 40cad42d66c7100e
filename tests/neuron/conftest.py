"""A machine with Neuron devices and optimum-neuron, as the plugin sees it in this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tgi_backend_neuron import discovery

from tests.engine.tiny_models import save_tiny
from tests.neuron.standin import LEGACY, PACKAGES, make_machine, make_packages


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The root of an Inf2 instance's files, with what optimum-neuron 0.4.5 needs installed."""
    root = make_machine(tmp_path / "machine")
    monkeypatch.setattr(discovery, "ROOT", root)
    monkeypatch.syspath_prepend(str(PACKAGES))
    monkeypatch.syspath_prepend(str(make_packages(tmp_path / "site", LEGACY)))
    for name in [name for name in os.environ if name.startswith(("HF_NUM", "HF_AUTO", "NEURON_RT"))]:
        monkeypatch.delenv(name)
    discovery.check_free.cache_clear()
    yield root
    discovery.check_free.cache_clear()


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of 2 layers in float32."""
    return save_tiny("llama", tmp_path_factory.mktemp("llama"), num_hidden_layers=2)
