"""A plugin built against API 1.5 and in need of it: it reads `OpenOptions.speculator`, declares `Capabilities.proposals` and returns
`Row.proposed`.

Its guess is that a token repeats itself. The rest is the plugin of 1.4.
"""

from __future__ import annotations

import dataclasses

from tests.backend.frozen import plugin_1_4
from tests.backend.frozen.plugin_1_4 import backend_probe
from tgi_core import backend as api

__all__ = ["backend_manifest", "backend_open", "backend_probe"]


@api.hookimpl
def backend_manifest():
    return api.Manifest("frozen-1-5", "a vendor", "1.5", (1, 5), (1, 5), "none", api.Processes.PER_RANK)


@api.hookimpl
def backend_open(options):
    older = plugin_1_4.backend_open(options)
    session = Session(older.vocab_size, older.max_positions, older.adapters)
    session.proposals = 3 if options.speculator else 0
    return session


class Session(plugin_1_4.Session):
    proposals = 0

    @api.hookimpl
    def capabilities(self):
        return dataclasses.replace(super().capabilities(), proposals=self.proposals)

    def _run(self, row, start, take):
        made = super()._run(row, start, take)
        count = min(self.proposals, self.capacity.draft) if made.tokens and made.fault is None else 0
        return dataclasses.replace(made, proposed=made.tokens[-1:] * count)
