"""The package as the core and pip see it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tgi_core.backend import API_VERSION, Processes
from tgi_core.backend.registry import find

BACKEND = Path(__file__).resolve().parents[2] / "backends/neuron"
VENDORS = ("optimum", "torch_neuronx", "neuronxcc", "neuronx_distributed", "libneuronxla", "torch_xla")


def test_everything_imports_without_a_vendor() -> None:
    """With the vendor's libraries blocked, plugins and probes import and answer without torch, and all other modules import with it."""
    modules = [f"tgi_backend_neuron.{file.stem}" for file in BACKEND.glob("tgi_backend_neuron/*.py") if file.stem != "__init__"]
    code = (
        f"import importlib, sys; sys.modules.update(dict.fromkeys({VENDORS!r}));"
        "from tgi_backend_neuron import plugin, native_plugin;"
        "assert {each.backend_probe().status.value for each in (plugin, native_plugin)} == {'absent'};"
        "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules);"
        f"[importlib.import_module(name) for name in {modules!r}]"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("name", "processes"), [("neuron", Processes.ONE), ("neuron-native", Processes.PER_RANK)])
def test_what_they_say(name: str, processes: Processes) -> None:
    """Each names itself and fits this core."""
    plugin = find(name)
    assert plugin.manifest is not None and plugin.manifest.api_built == API_VERSION
    assert (plugin.manifest.name, plugin.manifest.device_kind, plugin.manifest.processes) == (name, "neuron", processes)


def test_what_pip_would_install() -> None:
    """Nothing of the vendor's, nor torch: PyPI has other things under those names."""
    project = tomllib.loads((BACKEND / "pyproject.toml").read_text())["project"]
    assert {re.split(r"[\[<>= ]", line)[0] for line in project["dependencies"]} == {
        "tgi-core",
        "numpy",
        "safetensors",
        "transformers",
    }
    assert "optional-dependencies" not in project
