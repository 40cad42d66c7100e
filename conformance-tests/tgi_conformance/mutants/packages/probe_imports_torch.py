"""The probe imports torch, or a stand-in for it."""

from __future__ import annotations

import sys
import types

from tgi_core.backend import Manifest, OpenOptions, Probe, ProbeStatus, hookimpl


@hookimpl
def backend_manifest() -> Manifest:
    """Return the manifest."""
    return Manifest("probe-imports-torch", "tgi-core", "1.0", (1, 0), (1, 0), "accelerator")


@hookimpl
def backend_probe() -> Probe:
    """Return what the probe finds."""
    sys.modules["torch"] = types.ModuleType("torch")
    return Probe(ProbeStatus.READY, devices=("made up",))


@hookimpl
def backend_open(options: OpenOptions) -> object:
    """Never open a session."""
    return object()
