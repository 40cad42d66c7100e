"""A plugin built against API 1.7 and in need of it: rows for which `Grant.propose` is False propose nothing.

The rest is the plugin of 1.6.
"""

from __future__ import annotations

import dataclasses

from tests.backend.frozen import plugin_1_5, plugin_1_6
from tests.backend.frozen.plugin_1_6 import backend_probe
from tgi_core import backend as api

__all__ = ["backend_manifest", "backend_open", "backend_plan", "backend_probe"]


@api.hookimpl
def backend_manifest():
    return api.Manifest("frozen-1-7", "a vendor", "1.7", (1, 7), (1, 7), "none", api.Processes.PER_RANK)


@api.hookimpl
def backend_open(options):
    older = plugin_1_5.backend_open(options)
    session = Session(older.vocab_size, older.max_positions, older.adapters)
    session.proposals = older.proposals
    return session


@api.hookimpl
def backend_plan(options, free_bytes):
    return plugin_1_6.backend_plan(options, free_bytes)


class Session(plugin_1_5.Session):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.silent = set()

    @api.hookimpl
    def prefill(self, batch, cached, grants):
        step = super().prefill(batch, cached, grants)
        self.silent = {grant.request_id for grant in grants if not grant.propose}
        return step

    @api.hookimpl
    def decode(self, batches, grants):
        step = super().decode(batches, grants)
        self.silent = {grant.request_id for grant in grants if not grant.propose}
        return step

    def _run(self, row, start, take):
        made = super()._run(row, start, take)
        return dataclasses.replace(made, proposed=()) if made.request_id in self.silent else made
