"""A plugin built against API 1.6 and in need of it: it plans models before they are loaded.

Its plan is its session itself, which needs no weights. The rest is the plugin of 1.5.
"""

from __future__ import annotations

from tests.backend.frozen import plugin_1_5
from tests.backend.frozen.plugin_1_5 import backend_probe
from tgi_core import backend as api

__all__ = ["backend_manifest", "backend_open", "backend_plan", "backend_probe"]


@api.hookimpl
def backend_manifest():
    return api.Manifest("frozen-1-6", "a vendor", "1.6", (1, 6), (1, 6), "none", api.Processes.PER_RANK)


@api.hookimpl
def backend_open(options):
    return plugin_1_5.backend_open(options)


@api.hookimpl
def backend_plan(options, free_bytes):
    if free_bytes is not None and free_bytes < 1:
        raise api.Unsupported("no memory at all")
    return plugin_1_5.backend_open(options)
