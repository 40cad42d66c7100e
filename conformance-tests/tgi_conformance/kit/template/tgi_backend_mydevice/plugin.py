"""The plugin hooks: what this is, whether its device is present, and how a model is opened on it.

Importing this module imports neither torch nor the device's library: the server imports every plugin it finds.
"""

from __future__ import annotations

from pathlib import Path

from tgi_core.backend import Manifest, OpenOptions, Probe, ProbeStatus, Progress, Unsupported, hookimpl

from tgi_backend_mydevice import __version__
from tgi_backend_mydevice.errors import translated


@hookimpl
def backend_manifest() -> Manifest:
    """The plugin's manifest."""
    return Manifest(
        name="mydevice",  # as the entry point
        vendor="mydevice",
        version=__version__,
        api_built=(1, 10),  # the contract version that this was written against
        api_requires=(1, 2),  # the oldest version that it works with
        device_kind="none",  # Replace: your kind of device. "none" is a toy, compared with the toy's transcripts
    )


@hookimpl
def backend_probe() -> Probe:
    """Detect the device. Runs in a child process with a time limit, and returns ABSENT or BROKEN rather than raise."""
    # Replace: ask the driver. Without one: Probe(ProbeStatus.ABSENT, reason="no driver", hint="install it")
    return Probe(ProbeStatus.READY, devices=("a toy in plain Python",), reason="selected only by name")


@hookimpl
def backend_open(options: OpenOptions, progress: Progress) -> object:
    """Load the model. Raises InvalidModel, Unsupported, and the errors in the table."""
    # Imported here, so that only an open session loads the device's library.
    from tgi_backend_mydevice.device import Device
    from tgi_backend_mydevice.session import DeviceSession

    if options.group.world != 1:
        raise Unsupported(f"a group of {options.group.world} ranks: mydevice runs on one")
    with translated():
        device = Device(Path(options.model), options.dtype)
    progress("loading", 1, 1, "step")
    return DeviceSession(device)
