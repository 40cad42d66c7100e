"""Returns nothing from its probe."""

from __future__ import annotations

from tgi_core.backend import Manifest, OpenOptions, Probe, hookimpl


@hookimpl
def backend_manifest() -> Manifest:
    """Who it says it is."""
    return Manifest("probe-is-none", "tgi-core", "1.0", (1, 0), (1, 0), "accelerator")


@hookimpl
def backend_probe() -> Probe:
    """What it says it finds."""
    return None  # type: ignore[return-value]


@hookimpl
def backend_open(options: OpenOptions) -> object:
    """Nothing to open."""
    return object()
