"""A plugin built against API 1.0, with books of its own: of tgi-core it knows the contract and nothing else.

The model is the conformance suite's toy. It declares the profile text-core and no feature beyond it.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from pathlib import Path

from tgi_core import backend as api


@api.hookimpl
def backend_manifest():
    return api.Manifest("frozen-1-0", "a vendor", "1.0", (1, 0), (1, 0), "none", api.Processes.PER_RANK)


@api.hookimpl
def backend_probe():
    return api.Probe(api.ProbeStatus.READY, ("toy",), "", "", False)


@api.hookimpl
def backend_open(options):
    if options.group.world != 1:
        raise api.Unsupported("runs on one rank")
    path = Path(options.model) / "config.json"
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise api.InvalidModel(f"{path}: cannot be read") from error
    return Session(config["vocab_size"], config["max_position_embeddings"])


class Live:
    """A row: `tokens` are the prompt's and those made, `done` of them are computed."""

    def __init__(self, request):
        self.request, self.tokens, self.done, self.blocks = request, list(request.tokens), 0, []


class Session:
    def __init__(self, vocab_size, max_positions):
        self.vocab_size, self.max_positions = vocab_size, max_positions
        self.numbers, self.steps, self.capacity = itertools.count(1), 0, None
        self.batches, self.unread, self.slots = {}, {}, {}

    @api.hookimpl
    def capabilities(self):
        return api.Capabilities(
            frozenset(), frozenset(), (8, 16), api.Mixing.NONE, api.Determinism.SELF, self.vocab_size, self.max_positions
        )

    @api.hookimpl
    def warmup(self, plan):
        size, rows = plan.block_size or 16, plan.max_rows or 4
        blocks = plan.num_blocks or 64
        longest = min(plan.max_row_tokens or 256, self.max_positions, blocks * size)
        group = api.CacheGroup(api.CacheKind.FULL, size, blocks, None)
        self.capacity = api.Capacity((group,), rows, longest, plan.max_step_tokens or 256, rows)
        return self.capacity

    @api.hookimpl
    def prefill(self, batch, cached, grants):
        self._open()
        for request in batch:
            self._check(request)
        if cached != api.EMPTY:
            raise api.Unsupported("does not mix prefill and decode")
        ids = [request.id for request in batch]
        live = {row.request.id for rows in self.batches.values() for row in rows}
        if not ids or len(set(ids)) < len(ids) or live & set(ids):
            raise api.InvalidRequest("no requests, or an id that lives already")
        if len(live) + len(ids) > self.capacity.max_rows:
            raise api.CapacityExceeded("more rows than max_rows")
        if grants:
            raise api.UnknownRequest("a grant for a row that is not in this step")
        grants = {request.id: api.Grant(request.id, request.take, request.blocks) for request in batch}
        return self._launch([Live(request) for request in batch], grants, [])

    @api.hookimpl
    def decode(self, batches, grants):
        self._open()
        if not batches or len(set(batches)) < len(batches):
            raise api.InvalidRequest("needs distinct batches")
        rows = [row for handle in batches for row in self._rows(handle)]
        if len({grant.request_id for grant in grants}) < len(grants):
            raise api.InvalidRequest("two grants for one row")
        by_id = {grant.request_id: grant for grant in grants}
        if by_id.keys() - {row.request.id for row in rows}:
            raise api.UnknownRequest("a grant for a row that is not here")
        return self._launch(rows, by_id, batches)

    @api.hookimpl
    def rows(self, step):
        if step.id not in self.unread:
            raise api.InvalidRequest("was read before, or never launched")
        self.steps += 1
        return api.Rows(step.id, tuple(self._run(row, start, take) for row, start, take in self.unread.pop(step.id)))

    @api.hookimpl
    def filter(self, batch, keep):
        rows = self._rows(batch)
        if set(keep) - {row.request.id for row in rows}:
            raise api.UnknownRequest("keeps a row that is not in the batch")
        del self.batches[batch]
        return self._hold([row for row in rows if row.request.id in keep])

    @api.hookimpl
    def clear(self, batch):
        rows = {handle: self._rows(handle) for handle in (list(self.batches) if batch is None else [batch])}
        self.batches = {handle: held for handle, held in self.batches.items() if handle not in rows}
        return api.Cleared(sum(map(len, rows.values())))

    @api.hookimpl
    def stats(self):
        return api.Stats(self.steps)

    @api.hookimpl
    def close(self):
        self.batches, self.unread, self.slots, self.capacity = {}, {}, {}, None
        return api.Closed()

    # the books

    def _open(self):
        if self.capacity is None:
            raise api.InvalidRequest("the session is over")

    def _rows(self, handle):
        if handle not in self.batches:
            raise api.UnknownBatch("no such batch")
        return self.batches[handle]

    def _hold(self, rows):
        handle = api.Handle(next(self.numbers)) if rows else api.EMPTY
        if rows:
            self.batches[handle] = rows
        return handle

    def _check(self, request):
        how, want, count = request.sampling, request.want, len(request.tokens)
        numbers = (how.temperature > 0, how.top_k >= 0, 0 < how.top_p <= 1, math.isfinite(how.temperature), want.top_n >= 0)
        if not count or not all(numbers) or any(not 0 <= token < self.vocab_size for token in request.tokens):
            raise api.InvalidRequest("no tokens, or numbers out of range")
        fields = (how.typical_p, how.repetition_penalty, how.frequency_penalty, how.presence_penalty, how.logit_bias)
        if fields != (1.0, 1.0, 0.0, 0.0, ()) or want != api.Want(False, 0, False):
            raise api.Unsupported("only text-core")
        if not 0 <= request.cached < count or not 0 <= request.prompt_len <= count or len(request.blocks) != 1:
            raise api.InvalidRequest("cached, prompt_len or blocks out of range")
        if not 0 < request.take <= count - request.cached:
            raise api.InvalidRequest("take out of range")
        if request.cached or request.masked or request.adapter is not None or request.media:
            raise api.Unsupported("only text-core")
        if count > self.capacity.max_row_tokens:
            raise api.CapacityExceeded("longer than max_row_tokens")
        if request.take < count:
            raise api.Unsupported("only whole prompts")

    def _launch(self, rows, grants, old):
        group, total, planned = self.capacity.groups[0], 0, []
        for row in rows:
            grant = grants.get(row.request.id, api.Grant(row.request.id, 1))
            more = grant.blocks[0] if len(grant.blocks) == 1 else ()
            limit, end = (len(row.request.tokens) - row.done if row.done < len(row.request.tokens) else 1), row.done + grant.take
            table = [*row.blocks, *more]
            if len(grant.blocks) > 1 or not 0 <= grant.take <= limit or any(not 1 <= b <= group.num_blocks for b in more):
                raise api.InvalidRequest("take or blocks out of range")
            if end > self.capacity.max_row_tokens:
                raise api.CapacityExceeded("longer than max_row_tokens")
            if len(set(table)) < len(table) or len(table) * group.block_size < end:
                raise api.InvalidRequest("a block twice, or too few of them")
            total += grant.take
            planned.append((row, table, grant.take))
        if total > self.capacity.max_step_tokens:
            raise api.CapacityExceeded("more tokens than max_step_tokens")
        for handle in old:
            del self.batches[handle]
        work = [(row, row.done, take) for row, _, take in planned if take]
        for row, table, take in planned:
            row.blocks, row.done = table, row.done + take
        step = api.Step(next(self.numbers), self._hold(rows))
        self.unread[step.id] = work
        return step

    # the toy

    def _run(self, row, start, take):
        size, state = self.capacity.groups[0].block_size, 0
        for position in range(start, start + take):
            places = [(row.blocks[at // size], at % size) for at in (position, position - 1, position // 2) if at >= 0]
            before, far = (self.slots[places[1]], self.slots[places[2]]) if position else (0, 0)
            state = self.slots[places[0]] = mix(before ^ mix(far ^ row.tokens[position]))
        row.tokens.append(self._choose(row, state))
        return api.Row(row.request.id, (row.tokens[-1],))

    def _choose(self, row, state):
        how, logits = row.request.sampling, {}
        for rank in range(min(8, self.vocab_size)):
            state = mix(state)
            logits.setdefault(state % self.vocab_size, -0.5 * rank + (state >> 40) / 2**25)
        order = sorted(logits, key=lambda token: (-logits[token], token))
        if not how.do_sample:
            return order[0]
        kept = order[: how.top_k or None]
        weights = [math.exp((logits[token] - logits[order[0]]) / how.temperature) for token in kept]
        heads = itertools.accumulate(weight / sum(weights) for weight in weights)
        count = 1 + sum(head < how.top_p for head in heads)
        return random.Random(f"{how.seed} {len(row.tokens)}").choices(kept[:count], weights[:count])[0]


def mix(value):
    value = (value + 0x9E3779B97F4A7C15) & (2**64 - 1)
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return value ^ (value >> 31)
