"""Raises in its probe."""

from __future__ import annotations

from tgi_core.backend import Manifest, OpenOptions, Probe, hookimpl


@hookimpl
def backend_manifest() -> Manifest:
    """Who it says it is."""
    return Manifest("probe-raises", "tgi-core", "1.0", (1, 0), (1, 0), "accelerator")


@hookimpl
def backend_probe() -> Probe:
    """What it says it finds."""
    raise FileNotFoundError("/dev/accel0")


@hookimpl
def backend_open(options: OpenOptions) -> object:
    """Nothing to open."""
    return object()
