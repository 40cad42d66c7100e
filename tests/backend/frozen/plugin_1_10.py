"""A plugin built against API 1.10 and in need of it: it encodes images ahead of their requests.

It notes them, and refuses empty ones. The rest is the plugin of 1.9.
"""

from __future__ import annotations

from tests.backend.frozen import plugin_1_5, plugin_1_9
from tests.backend.frozen.plugin_1_9 import backend_probe
from tgi_core import backend as api

__all__ = ["backend_manifest", "backend_open", "backend_plan", "backend_probe"]


@api.hookimpl
def backend_manifest():
    return api.Manifest("frozen-1-10", "a vendor", "1.10", (1, 10), (1, 10), "none", api.Processes.PER_RANK)


@api.hookimpl
def backend_open(options):
    older = plugin_1_5.backend_open(options)
    session = Session(older.vocab_size, older.max_positions, older.adapters)
    session.proposals = older.proposals
    return session


@api.hookimpl
def backend_plan(options, free_bytes):
    return plugin_1_9.backend_plan(options, free_bytes)


class Session(plugin_1_9.Session):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.encoded = []

    @api.hookimpl
    def encode(self, item):
        if not item:
            raise api.InvalidRequest("an empty image")
        self.encoded.append(item)
        return api.Encoded()
