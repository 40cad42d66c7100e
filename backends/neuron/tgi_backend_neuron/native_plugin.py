"""The plugin hooks of `neuron-native`, which is experimental. Importing this module does not import torch."""

from __future__ import annotations

import os
from pathlib import Path

from tgi_backend_neuron import __version__
from tgi_backend_neuron.discovery import check_free, find_machine, probe_native
from tgi_core.backend import Manifest, OpenOptions, Probe, Progress, hookimpl
from tgi_core.engine.accelerator.discovery import check_ready
from tgi_core.engine.weights.sizes import check_model


@hookimpl
def backend_manifest() -> Manifest:
    """The plugin's manifest."""
    return Manifest("neuron-native", "tgi-core", __version__, (1, 10), (1, 2), device_kind="neuron")


@hookimpl
def backend_probe() -> Probe:
    """Detect devices by the driver's files, and check that TorchNeuron is installed."""
    return probe_native()


@hookimpl
def backend_open(options: OpenOptions, progress: Progress) -> object:
    """Load the model. Raises InvalidModel, Unsupported, DeviceBusy, OutOfMemory, PeerLost; DeviceLost if there is no device."""
    check_ready(probe_native())
    machine = find_machine()
    if options.group.world == 1 and machine is not None:  # otherwise the other ranks hold some
        check_free(machine, 1)
    check_model(Path(options.model))  # finds damaged models before torch is loaded, which takes seconds
    os.environ.setdefault("TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION", "1")  # a graph that fails to compile is an error
    if options.compile_cache:  # the runtime finds programs there by their contents
        os.environ.setdefault("TORCH_NEURONX_NEFF_CACHE_DIR", str(Path(options.compile_cache) / "neff"))
    from tgi_backend_neuron.failures import FAILURES
    from tgi_backend_neuron.native import NativeKit
    from tgi_core.engine.accelerator.failures import device_errors
    from tgi_core.engine.static.session import open_static

    with device_errors(FAILURES):
        return open_static(options, NativeKit(options.group.local_rank, options.memory_fraction), progress)
