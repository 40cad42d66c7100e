"""The manifest's version is "main"."""

from __future__ import annotations

from tgi_core.backend import Manifest, OpenOptions, Probe, ProbeStatus, hookimpl


@hookimpl
def backend_manifest() -> Manifest:
    """Return the manifest."""
    return Manifest("branch-version", "tgi-core", "main", (1, 0), (1, 0), "accelerator")


@hookimpl
def backend_probe() -> Probe:
    """Return what the probe finds."""
    return Probe(ProbeStatus.READY, devices=("made up",))


@hookimpl
def backend_open(options: OpenOptions) -> object:
    """Never open a session."""
    return object()
