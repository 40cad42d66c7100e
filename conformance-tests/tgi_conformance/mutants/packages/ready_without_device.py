"""Is ready, with no device."""

from __future__ import annotations

from tgi_core.backend import Manifest, OpenOptions, Probe, ProbeStatus, hookimpl


@hookimpl
def backend_manifest() -> Manifest:
    """Who it says it is."""
    return Manifest("ready-without-device", "tgi-core", "1.0", (1, 0), (1, 0), "accelerator")


@hookimpl
def backend_probe() -> Probe:
    """What it says it finds."""
    return Probe(ProbeStatus.READY)


@hookimpl
def backend_open(options: OpenOptions) -> object:
    """Nothing to open."""
    return object()
