"""The probe ends its process."""

from __future__ import annotations

import os

from tgi_core.backend import Manifest, OpenOptions, Probe, hookimpl


@hookimpl
def backend_manifest() -> Manifest:
    """Return the manifest."""
    return Manifest("probe-crashes", "tgi-core", "1.0", (1, 0), (1, 0), "accelerator")


@hookimpl
def backend_probe() -> Probe:
    """Return what the probe finds."""
    os.abort()


@hookimpl
def backend_open(options: OpenOptions) -> object:
    """Never open a session."""
    return object()
