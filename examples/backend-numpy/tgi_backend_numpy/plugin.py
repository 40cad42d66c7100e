"""The plugin hooks. Importing this module imports no NumPy."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from tgi_core.backend import Manifest, OpenOptions, Probe, ProbeStatus, Unsupported, hookimpl

from tgi_backend_numpy import __version__
from tgi_backend_numpy.errors import translated


@hookimpl
def backend_manifest() -> Manifest:
    """Who this plugin is."""
    return Manifest("numpy", "tgi-core", __version__, api_built=(1, 3), api_requires=(1, 3), device_kind="cpu")


@hookimpl
def backend_probe() -> Probe:
    """Every machine has a CPU; what may be missing is NumPy."""
    if importlib.util.find_spec("numpy") is None:
        return Probe(ProbeStatus.BROKEN, reason="NumPy is not installed", hint="pip install numpy")
    return Probe(ProbeStatus.READY, devices=("NumPy",), verified_on_hardware=True)


@hookimpl
def backend_open(options: OpenOptions) -> object:
    """Load the model. Raises InvalidModel, Unsupported, OutOfMemory."""
    from tgi_backend_numpy.device import Device
    from tgi_backend_numpy.session import DeviceSession

    if options.group.world != 1:
        raise Unsupported(f"a group of {options.group.world} ranks: this backend runs on one")
    with translated():
        return DeviceSession(Device(Path(options.model), options.dtype))
