"""A plugin built against API 1.1 and in need of it: it reads `OpenOptions.adapters`, and declares `Capabilities.adapters`.

The rest is the plugin of 1.0.
"""

from __future__ import annotations

import dataclasses
import zlib

from tests.backend.frozen import plugin_1_0
from tests.backend.frozen.plugin_1_0 import backend_probe, mix
from tgi_core import backend as api

__all__ = ["backend_manifest", "backend_open", "backend_probe"]


@api.hookimpl
def backend_manifest():
    return api.Manifest("frozen-1-1", "a vendor", "1.1", (1, 1), (1, 1), "none", api.Processes.PER_RANK)


@api.hookimpl
def backend_open(options):
    group = options.group
    if (group.local_rank, group.local_world) != (0, 1):
        raise api.Unsupported("runs on one rank")
    plain = plugin_1_0.backend_open(options)
    return Session(plain.vocab_size, plain.max_positions, tuple(adapter.name for adapter in options.adapters))


class Session(plugin_1_0.Session):
    def __init__(self, vocab_size, max_positions, adapters):
        super().__init__(vocab_size, max_positions)
        self.adapters = adapters

    @api.hookimpl
    def capabilities(self):
        features = frozenset({api.Feature.LORA}) if self.adapters else frozenset()
        return dataclasses.replace(super().capabilities(), features=features, adapters=self.adapters)

    def _check(self, request):
        if request.adapter in self.adapters:
            request = dataclasses.replace(request, adapter=None)
        super()._check(request)

    def _run(self, row, start, take):
        """As in 1.0, but that a row begins from its adapter's name, as the golden transcripts have it."""
        size, state = self.capacity.groups[0].block_size, 0
        for position in range(start, start + take):
            places = [(row.blocks[at // size], at % size) for at in (position, position - 1, position // 2) if at >= 0]
            begin = zlib.crc32((row.request.adapter or "").encode())
            before, far = (self.slots[places[1]], self.slots[places[2]]) if position else (begin, 0)
            state = self.slots[places[0]] = mix(before ^ mix(far ^ row.tokens[position]))
        row.tokens.append(self._choose(row, state))
        return api.Row(row.request.id, (row.tokens[-1],))
