"""Imports torch in its probe, or what stands for it here."""

from __future__ import annotations

import sys
import types

from tgi_core.backend import Manifest, OpenOptions, Probe, ProbeStatus, hookimpl


@hookimpl
def backend_manifest() -> Manifest:
    """Who it says it is."""
    return Manifest("probe-imports-torch", "tgi-core", "1.0", (1, 0), (1, 0), "accelerator")


@hookimpl
def backend_probe() -> Probe:
    """What it says it finds."""
    sys.modules["torch"] = types.ModuleType("torch")
    return Probe(ProbeStatus.READY, devices=("made up",))


@hookimpl
def backend_open(options: OpenOptions) -> object:
    """Nothing to open."""
    return object()
