"""A plugin built against API 1.8 and in need of it: its steps must not end within an image.

The rest is the plugin of 1.7.
"""

from __future__ import annotations

import dataclasses

from tests.backend.frozen import plugin_1_5, plugin_1_7
from tests.backend.frozen.plugin_1_7 import backend_plan, backend_probe
from tgi_core import backend as api

__all__ = ["backend_manifest", "backend_open", "backend_plan", "backend_probe"]


@api.hookimpl
def backend_manifest():
    return api.Manifest("frozen-1-8", "a vendor", "1.8", (1, 8), (1, 8), "none", api.Processes.PER_RANK)


@api.hookimpl
def backend_open(options):
    older = plugin_1_5.backend_open(options)
    session = Session(older.vocab_size, older.max_positions, older.adapters)
    session.proposals = older.proposals
    return session


class Session(plugin_1_7.Session):
    @api.hookimpl
    def capabilities(self):
        return dataclasses.replace(super().capabilities(), whole_images=True)
