"""The plugin hooks: who this is, whether its device is here, and how a model is opened on it.

Importing this module imports neither torch nor the device's library: the server imports every plugin it finds.
"""

from __future__ import annotations

from pathlib import Path

from tgi_core.backend import Manifest, OpenOptions, Probe, ProbeStatus, Progress, Unsupported, hookimpl

from tgi_backend_static import __version__
from tgi_backend_static.errors import translated


@hookimpl
def backend_manifest() -> Manifest:
    """Who this plugin is."""
    return Manifest(
        name="static",
        vendor="tgi-core",
        version=__version__,
        api_built=(1, 2),
        api_requires=(1, 2),
        device_kind="none",
    )


@hookimpl
def backend_probe() -> Probe:
    """What is here. Runs in a child process with a time limit, and answers ABSENT or BROKEN rather than raise."""

    return Probe(ProbeStatus.READY, devices=("a made-up chip",), reason="selected only by name")


@hookimpl
def backend_open(options: OpenOptions, progress: Progress) -> object:
    """Load the model. Raises InvalidModel, Unsupported, and what the error table says."""
    from tgi_backend_static.device import Device  # here, so that only an open session loads the device's library
    from tgi_backend_static.session import DeviceSession

    if options.group.world != 1:
        raise Unsupported(f"a group of {options.group.world} ranks: static runs on one")
    with translated():
        device = Device(Path(options.model), options.dtype)
    progress("loading", 1, 1, "step")
    return DeviceSession(device)
