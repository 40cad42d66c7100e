"""Imports a vendor's framework, or a stand-in for one."""

from __future__ import annotations

import sys
import types

from tgi_core.backend import Manifest, OpenOptions, Probe, ProbeStatus, hookimpl

sys.modules["habana_frameworks"] = types.ModuleType("habana_frameworks")


@hookimpl
def backend_manifest() -> Manifest:
    """Return the manifest."""
    return Manifest("imports-vendor", "tgi-core", "1.0", (1, 0), (1, 0), "accelerator")


@hookimpl
def backend_probe() -> Probe:
    """Return what the probe finds."""
    return Probe(ProbeStatus.READY, devices=("made up",))


@hookimpl
def backend_open(options: OpenOptions) -> object:
    """Never open a session."""
    return object()
