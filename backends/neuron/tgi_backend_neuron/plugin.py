"""The plugin hooks of `neuron`. Importing this module does not import torch."""

from __future__ import annotations

from tgi_backend_neuron import __version__
from tgi_backend_neuron.discovery import probe
from tgi_backend_neuron.opening import open_slots
from tgi_core.backend import Manifest, OpenOptions, Probe, Processes, Progress, hookimpl
from tgi_core.engine.accelerator.discovery import check_ready


@hookimpl
def backend_manifest() -> Manifest:
    """The plugin's manifest. The runtime itself drives all cores, from one process."""
    return Manifest("neuron", "tgi-core", __version__, (1, 10), (1, 2), device_kind="neuron", processes=Processes.ONE)


@hookimpl
def backend_probe() -> Probe:
    """Detect devices by the driver's files, and check that optimum-neuron and what it needs are installed."""
    return probe()


@hookimpl
def backend_open(options: OpenOptions, progress: Progress) -> object:
    """Read the model's sizes; warm-up compiles and loads it. Raises InvalidModel, Unsupported, DeviceBusy; DeviceLost if there is no
    device."""
    check_ready(probe())
    return open_slots(options)
