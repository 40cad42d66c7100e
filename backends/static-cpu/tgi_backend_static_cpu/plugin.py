"""The plugin hooks. Importing this module does not import torch."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from tgi_backend_static_cpu import __version__
from tgi_core.backend import Manifest, OpenOptions, Probe, ProbeStatus, Progress, hookimpl
from tgi_core.engine.weights.sizes import check_model

_NEEDED = ("numpy", "torch", "transformers", "safetensors")


@hookimpl
def backend_manifest() -> Manifest:
    """The plugin's manifest. Devices of the kind "emulated" are never chosen automatically."""
    return Manifest("static-cpu", "tgi-core", __version__, api_built=(1, 10), api_requires=(1, 2), device_kind="emulated")


@hookimpl
def backend_probe() -> Probe:
    """Every machine has a CPU, but packages may be missing."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        return Probe(ProbeStatus.BROKEN, reason=f"not installed: {', '.join(missing)}", hint="pip install tgi-core[engine]")
    return Probe(ProbeStatus.READY, devices=("a static device, emulated by torch on the CPU",))


@hookimpl
def backend_open(options: OpenOptions, progress: Progress) -> object:
    """Load the model. Raises InvalidModel, Unsupported, OutOfMemory."""
    check_model(Path(options.model))  # finds damaged and absurd models before torch is loaded, which takes seconds
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from tgi_backend_static_cpu.kit import StaticCpuKit
    from tgi_core.engine.static.session import open_static

    return open_static(options, StaticCpuKit(), progress)
