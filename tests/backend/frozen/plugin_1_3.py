"""A plugin built against API 1.3 and in need of it: it reads `Grant.drafts` and `WarmupPlan.draft`, and declares speculation.

It verifies drafts one after the other. The rest is the plugin of 1.2.
"""

from __future__ import annotations

import dataclasses

from tests.backend.frozen import plugin_1_2
from tests.backend.frozen.plugin_1_2 import backend_probe
from tgi_core import backend as api

__all__ = ["backend_manifest", "backend_open", "backend_probe"]


@api.hookimpl
def backend_manifest():
    return api.Manifest("frozen-1-3", "a vendor", "1.3", (1, 3), (1, 3), "none", api.Processes.PER_RANK)


@api.hookimpl
def backend_open(options):
    older = plugin_1_2.backend_open(options)
    return Session(older.vocab_size, older.max_positions, older.adapters)


class Session(plugin_1_2.Session):
    def __init__(self, vocab_size, max_positions, adapters):
        super().__init__(vocab_size, max_positions, adapters)
        self.drafts = {}

    @api.hookimpl
    def capabilities(self):
        found = super().capabilities()
        return dataclasses.replace(found, features=found.features | {api.Feature.SPECULATION})

    @api.hookimpl
    def warmup(self, plan):
        self.capacity = dataclasses.replace(super().warmup(plan), draft=plan.draft)
        return self.capacity

    def _launch(self, rows, grants, old):
        """As in 1.2 for the first token of each row; the positions of drafts are added."""
        size, longer = self.capacity.groups[0].block_size, [row for row in rows if self._drafts(row, grants)]
        for row in longer:
            grant = grants[row.request.id]
            held = len(row.blocks) + sum(map(len, grant.blocks))
            if row.done + grant.take > self.capacity.max_row_tokens:
                raise api.CapacityExceeded("longer than max_row_tokens")
            if held * size < row.done + grant.take:
                raise api.InvalidRequest("too few blocks")
        takes = [grants[row.request.id].take if row.request.id in grants else 1 for row in rows]
        if sum(takes) > self.capacity.max_step_tokens:
            raise api.CapacityExceeded("more tokens than max_step_tokens")
        firsts = {row.request.id: dataclasses.replace(grants[row.request.id], take=1, drafts=()) for row in longer}
        step = super()._launch(rows, {**grants, **firsts}, old)
        for row in longer:
            self.drafts[row.request.id] = grants[row.request.id].drafts
            row.done += len(grants[row.request.id].drafts)
        return step

    def _drafts(self, row, grants):
        """The drafts of a row, checked."""
        grant = grants.get(row.request.id, api.Grant(row.request.id, 1))
        if row.request.id in self.drafts and grant.take:
            raise api.InvalidRequest("its drafts have not been read")
        if len(grant.drafts) > self.capacity.draft:
            raise api.CapacityExceeded("more drafts than draft")
        wrong = (row.done < len(row.request.tokens), grant.take != 1 + len(grant.drafts))
        if grant.drafts and (any(wrong) or any(not 0 <= token < self.vocab_size for token in grant.drafts)):
            raise api.InvalidRequest("drafts or take out of range")
        return grant.drafts

    def _run(self, row, start, take):
        drafts = self.drafts.pop(row.request.id, ())
        if not drafts:
            return super()._run(row, start, take)
        made = []
        for draft in (*drafts, None):
            made += super()._run(row, start + len(made), 1).tokens
            if made[-1] != draft:
                break
        row.done = len(row.tokens) - 1
        return api.Row(row.request.id, tuple(made), drafted=len(drafts))
