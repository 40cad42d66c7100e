"""A plugin built against API 1.8 and in need of it: some layers see a window, and their cache group's blocks are taken back behind a row;
and its steps must not end within an image.

It keeps each position's token in that group, and looks whether the window has those of its row. The rest is the plugin of 1.7.
"""

from __future__ import annotations

import dataclasses

from tests.backend.frozen import plugin_1_5, plugin_1_7
from tests.backend.frozen.plugin_1_7 import backend_probe
from tgi_core import backend as api

__all__ = ["backend_manifest", "backend_open", "backend_plan", "backend_probe"]

WINDOW = 10


@api.hookimpl
def backend_manifest():
    return api.Manifest("frozen-1-8", "a vendor", "1.8", (1, 8), (1, 8), "none", api.Processes.PER_RANK)


@api.hookimpl
def backend_open(options):
    older = plugin_1_5.backend_open(options)
    session = Session(older.vocab_size, older.max_positions, older.adapters)
    session.proposals = older.proposals
    return session


@api.hookimpl
def backend_plan(options, free_bytes):
    return plugin_1_7.backend_plan(options, free_bytes)


class Session(plugin_1_7.Session):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.tables, self.window_slots, self.written = {}, {}, {}

    @api.hookimpl
    def capabilities(self):
        return dataclasses.replace(super().capabilities(), whole_images=True)

    @api.hookimpl
    def warmup(self, plan):
        promised = super().warmup(plan)
        (group,) = promised.groups
        window = api.CacheGroup(api.CacheKind.WINDOW, group.block_size, plan.window_blocks or group.num_blocks, WINDOW)
        self.capacity = dataclasses.replace(promised, groups=(group, window))
        return self.capacity

    @api.hookimpl
    def prefill(self, batch, cached, grants):
        self._open()
        if any(len(request.blocks) != 2 for request in batch):
            raise api.InvalidRequest("two groups")
        new = {request.id: self._table(request.id, [], request.blocks[1], 0, request.cached + request.take) for request in batch}
        plain = tuple(dataclasses.replace(request, blocks=request.blocks[:1]) for request in batch)
        step = super().prefill(plain, cached, grants)
        self.tables |= new
        self.written |= dict.fromkeys(new, 0)
        return step

    @api.hookimpl
    def decode(self, batches, grants):
        self._open()
        by_id, new = {grant.request_id: grant for grant in grants}, {}
        for row in [row for handle in batches for row in self._rows(handle)]:
            id = row.request.id
            grant = by_id.get(id, api.Grant(id, 1))
            if len(grant.blocks) not in (0, 2):
                raise api.InvalidRequest("two groups")
            more = grant.blocks[1] if grant.blocks else ()
            new[id] = self._table(id, self.tables[id], more, row.done, row.done + grant.take)
        step = super().decode(batches, tuple(dataclasses.replace(grant, blocks=grant.blocks[:1]) for grant in grants))
        self.tables |= new
        return step

    def _table(self, id, held, more, start, end):
        """A row's table with more blocks, for a step of the positions start…end - 1."""
        if end > self.capacity.max_row_tokens:
            raise api.CapacityExceeded("longer than max_row_tokens")
        group, table = self.capacity.groups[1], [*held, *more]
        seen = table[group.unseen(start) :]
        if any(not 1 <= block <= group.num_blocks for block in more) or len(set(seen)) < len(seen):
            raise api.InvalidRequest("blocks out of range, or one twice")
        if len(table) * group.block_size < end:
            raise api.InvalidRequest("too few blocks")
        return table

    def _choose(self, row, state):
        """As before, if the window has what this row wrote."""
        id, size, count = row.request.id, self.capacity.groups[1].block_size, len(row.tokens)
        table = self.tables[id]
        for position in range(self.written[id], count):
            self.window_slots[table[position // size], position % size] = position, row.tokens[position]
        self.written[id] = count
        window = range(max(0, count - WINDOW), count)
        found = [self.window_slots[table[position // size], position % size] for position in window]
        return super()._choose(row, state if found == [(position, row.tokens[position]) for position in window] else ~state)
