"""Imports a vendor's framework, or what stands for one here."""

from __future__ import annotations

import sys
import types

from tgi_core.backend import Manifest, OpenOptions, Probe, ProbeStatus, hookimpl

sys.modules["habana_frameworks"] = types.ModuleType("habana_frameworks")


@hookimpl
def backend_manifest() -> Manifest:
    """Who it says it is."""
    return Manifest("imports-vendor", "tgi-core", "1.0", (1, 0), (1, 0), "accelerator")


@hookimpl
def backend_probe() -> Probe:
    """What it says it finds."""
    return Probe(ProbeStatus.READY, devices=("made up",))


@hookimpl
def backend_open(options: OpenOptions) -> object:
    """Nothing to open."""
    return object()
