"""Lacks backend_open."""

from __future__ import annotations

from tgi_core.backend import Manifest, Probe, ProbeStatus, hookimpl


@hookimpl
def backend_manifest() -> Manifest:
    """Return the manifest."""
    return Manifest("misses-a-hook", "tgi-core", "1.0", (1, 0), (1, 0), "accelerator")


@hookimpl
def backend_probe() -> Probe:
    """Return what the probe finds."""
    return Probe(ProbeStatus.READY, devices=("made up",))
