"""A plugin built against API 1.9 and in need of it: tokens of a prompt see each other, so that no step may end inside it.

It notes the requests whose prompts were cut. The rest is the plugin of 1.8.
"""

from __future__ import annotations

import dataclasses

from tests.backend.frozen import plugin_1_5, plugin_1_8
from tests.backend.frozen.plugin_1_8 import backend_probe
from tgi_core import backend as api

__all__ = ["backend_manifest", "backend_open", "backend_plan", "backend_probe"]


@api.hookimpl
def backend_manifest():
    return api.Manifest("frozen-1-9", "a vendor", "1.9", (1, 9), (1, 9), "none", api.Processes.PER_RANK)


@api.hookimpl
def backend_open(options):
    older = plugin_1_5.backend_open(options)
    session = Session(older.vocab_size, older.max_positions, older.adapters)
    session.proposals = older.proposals
    return session


@api.hookimpl
def backend_plan(options, free_bytes):
    return plugin_1_8.backend_plan(options, free_bytes)


class Session(plugin_1_8.Session):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.cut = []

    @api.hookimpl
    def capabilities(self):
        return dataclasses.replace(super().capabilities(), whole_prompts=True)

    def _run(self, row, start, take):
        if start + take < row.request.prompt_len:
            self.cut.append(row.request.id)
        return super()._run(row, start, take)
