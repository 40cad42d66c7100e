"""The probe says ABSENT without a reason."""

from __future__ import annotations

from tgi_core.backend import Manifest, OpenOptions, Probe, ProbeStatus, hookimpl


@hookimpl
def backend_manifest() -> Manifest:
    """Return the manifest."""
    return Manifest("absent-without-reason", "tgi-core", "1.0", (1, 0), (1, 0), "accelerator")


@hookimpl
def backend_probe() -> Probe:
    """Return what the probe finds."""
    return Probe(ProbeStatus.ABSENT)


@hookimpl
def backend_open(options: OpenOptions) -> object:
    """Never open a session."""
    return object()
