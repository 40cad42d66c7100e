"""Random traffic: rows of every kind start, join, merge, decode, pause, continue, fail and leave, interspersed with calls that must be
refused.

The oracle judges every call, and every row is compared with what it makes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from tgi_conformance.calls import NOTHING, STRANGER, Call, Clear, Decode, Filter, Prefill, Ref
from tgi_conformance.clauses.feature_combinations import Company, Spec
from tgi_conformance.clauses.random_features import drawn_row
from tgi_conformance.masks import BREAKING
from tgi_conformance.oracle import OracleRow
from tgi_conformance.verdict import NotReached
from tgi_core.backend import Grant, Mixing, Request, UnknownBatch

_SPARE = (0, 1, 2, 6, 6)
"""Positions that rows leave for the tokens they generate."""


@dataclass(slots=True)
class Traffic:
    """A group of rows that come and go at random."""

    here: Company
    draw: Random
    used: list[Ref] = field(default_factory=lambda: [STRANGER])
    """Handles that verbs have used up."""
    owners: set[int] = field(default_factory=set)
    """Rows whose blocks others share."""

    def run(self, actions: int) -> None:
        """Take a number of actions, read what is unread, clear everything, and compare with the formula."""
        oracle = self.here.stage.play.oracle
        often: dict[Callable[[], None], float] = {
            self.start: 3,
            self.decode: 5,
            self.merge: 1.5,
            self.ahead: 1.5,
            self.remove: 1.5,
            self.go_on_as_new: 0.7,
            self.refuse: 0.7,
            self.clear: 0.4,
            self.fail: 1.5 if self.here.stage.play.setup.masks == BREAKING else 0,
        }
        for _ in range(actions):
            action = self.start if not oracle.batches else self.draw.choices(list(often), list(often.values()))[0]
            try:
                action()
            except NotReached:  # no free blocks
                self._clear(None)
        self._read_all()
        self._clear(None)
        self.here.check_formula()

    # actions

    def start(self) -> None:
        """Start new rows, alone or in a live batch."""
        stage, oracle = self.here.stage, self.here.stage.play.oracle
        joins = oracle.batches and stage.capabilities.mixing is not Mixing.NONE and self.draw.random() < 0.5
        self._make_room()
        beside = self._fit(self._any_batch()) if joins and oracle.batches else NOTHING
        if self.draw.random() < 0.3:  # so that neighbouring blocks belong to different rows
            stage.prefer(self.draw.sample(stage.free(0), len(stage.free(0))))
        running = len(oracle.batches.get(beside, ()))
        room = min(stage.capacity.max_rows - len(oracle.rows), self.draw.choice((1, 1, 1, 2, 2, 3, 3, 5, 8, 12, 66)))
        requests = self._requests(room, stage.capacity.max_step_tokens - running)
        if requests:
            self.used += [beside] if beside else []
            stage.launch(*requests, beside=beside)

    def decode(self) -> None:
        """Run a step of a batch, in which some rows may pause."""
        self._go_on([self._any_batch()])

    def merge(self) -> None:
        """Run a step of several batches."""
        batches = sorted(self.here.stage.play.oracle.batches)
        self._go_on(self.draw.sample(batches, self.draw.randint(1, len(batches))))

    def ahead(self) -> None:
        """Launch as many steps of a batch as may be unread."""
        batch, oracle = self._any_batch(), self.here.stage.play.oracle
        self._read_all()
        for _ in range(self.here.stage.capacity.in_flight):
            batch = self._go_on([batch]) if batch in oracle.batches else NOTHING

    def remove(self) -> None:
        """Remove some rows of a batch, and keep the others in their order or in another."""
        batch = self._any_batch()
        ids = [row.request.id for row in self.here.stage.play.oracle.batches[batch]]
        kept = self.draw.sample(ids, self.draw.randint(len(ids) // 2, len(ids)))
        self._filter(batch, kept if self.draw.random() < 0.3 else [id for id in ids if id in kept])

    def go_on_as_new(self) -> None:
        """Remove a row, and start a request with the tokens it has, as after a preemption."""
        self._read_all()
        stage, oracle = self.here.stage, self.here.stage.play.oracle
        if not oracle.batches:
            return
        batch = self._any_batch()
        row = self.draw.choice(oracle.batches[batch])
        self._filter(batch, [other.request.id for other in oracle.batches[batch] if other is not row])
        tokens = (*row.request.tokens, *stage.play.tokens(row.request.id))
        fits = len(tokens) <= min(stage.capacity.max_row_tokens - 2, stage.capacity.max_step_tokens)
        if fits and not row.failed and not row.request.masked:  # a mask source may only receive tokens that it allowed itself
            kept = row.request
            want = replace(kept.want, prompt_logprobs=False)
            self.here.requests.append(
                stage.request(tokens, kept.sampling, want=want, adapter=kept.adapter, prompt_len=kept.prompt_len)
            )
            stage.launch(self.here.requests[-1])

    def refuse(self) -> None:
        """Make a call with one mistake."""
        oracle, dead, batch = self.here.stage.play.oracle, self.draw.choice(self.used[-6:]), self._any_batch()
        row = self.draw.choice(oracle.batches[batch])
        calls: list[Call] = [
            *(Decode((dead,)), Decode((batch, dead)), Decode((batch, batch)), Filter(dead, ()), Clear(dead), Prefill(())),
            *(Filter(batch, (row.request.id, 555_555)), Decode((batch,), (Grant(555_555, 1),)), Prefill((row.request,))),
            Decode((batch,), (Grant(row.request.id, max(1, row.owed) + 1),)),
        ]
        self._make_room()
        call = self.draw.choice(calls)
        if oracle.expect(call).errors:
            self.here.stage.play.call(call)

    def clear(self) -> None:
        """Clear a batch, or rarely everything."""
        self._clear(None if self.draw.random() < 0.3 else self._any_batch())

    def fail(self) -> None:
        """Let a step of a separate batch fail, and start rows right after it."""
        self._read_all()
        stage = self.here.stage
        if len(stage.play.oracle.rows) + 2 <= stage.capacity.max_rows:
            batch = stage.decode(
                stage.start(stage.doomed(stage.prompts[0]), *self._requests(1, stage.capacity.max_step_tokens // 2))
            )
            stage.read(stage.go_on(batch))
            self.start()

    # calls

    def _any_batch(self) -> Ref:
        return self.draw.choice(sorted(self.here.stage.play.oracle.batches))

    def _make_room(self) -> None:
        """Read until another step may be launched, and sometimes further."""
        stage, steps = self.here.stage, self.here.stage.play.oracle.steps
        while len(steps) >= stage.capacity.in_flight or (steps and self.draw.random() < 0.6):
            stage.read(min(steps))

    def _read_all(self) -> None:
        while steps := self.here.stage.play.oracle.steps:
            self.here.stage.read(min(steps))

    def _fit(self, batch: Ref) -> Ref:
        """Remove rows that have failed or are at their longest. Returns the batch, or NOTHING if none is left."""
        rows, longest = self.here.stage.play.oracle.batches.get(batch, []), self.here.stage.capacity.max_row_tokens
        keep = [row.request.id for row in rows if not row.failed and row.done < longest]
        return batch if rows and len(keep) == len(rows) else self._filter(batch, keep) if rows else NOTHING

    def _go_on(self, batches: Sequence[Ref]) -> Ref:
        """Launch a step of batches, without the rows that are at their end."""
        stage, oracle = self.here.stage, self.here.stage.play.oracle
        self._make_room()
        fit = [ready for batch in batches if batch in oracle.batches and (ready := self._fit(batch))]
        fit = [batch for batch in fit if batch in oracle.batches]
        rows = [row for batch in fit for row in oracle.batches[batch]]
        if not rows or len(rows) > stage.capacity.max_step_tokens:
            return NOTHING
        self.used += fit
        made = stage.go_on(*fit, grants=self._grants(rows))
        if self.draw.random() < 0.2:
            stage.refuse(UnknownBatch, self.draw.choice((Filter(fit[-1], ()), Clear(fit[0]))))
        return made

    def _grants(self, rows: Sequence[OracleRow]) -> list[Grant]:
        """Grant prompts a chunk and rows the blocks they need; now and then a row sits out."""
        stage, grants = self.here.stage, list[Grant]()
        left, long = stage.capacity.max_step_tokens - len(rows), stage.capacity.max_prefill_rows
        for row in rows:
            if row.owed:
                most = min(row.owed, left + 1) if long else 1
                take = self.draw.choice((0, 1, min(3, most), min(16, most), most, most))
                left, long = left - max(0, take - 1), long - (take > 1)
                grants.append(stage.grant(row, take))
            elif self.draw.random() < 0.1:
                grants.append(Grant(row.request.id, 0))
            else:
                grant = stage.grant(row)
                grants += [grant] if any(grant.blocks) else []
        return grants

    def _filter(self, batch: Ref, keep: list[int]) -> Ref:
        self.used.append(batch)
        return self.here.stage.filter(batch, keep)

    def _clear(self, batch: Ref | None) -> None:
        self.used += sorted(self.here.stage.play.oracle.batches) if batch is None else [batch]
        self.here.stage.clear(batch)

    # requests

    def _requests(self, count: int, tokens: int) -> list[Request]:
        """Build up to `count` requests that fit one step of this many tokens."""
        stage, requests, long = self.here.stage, list[Request](), self.here.stage.capacity.max_prefill_rows
        while len(requests) < count and tokens > 0:
            most = (
                min(tokens, stage.capacity.max_row_tokens - self.draw.choice(_SPARE), 12 if count > 12 else tokens) if long else 1
            )
            request = self._request(max(1, most))
            requests.append(request)
            tokens, long = tokens - request.take, long - (request.take > 1)
        return requests

    def _request(self, most: int) -> Request:
        stage, spec = self.here.stage, drawn_row(self.here, self.draw)
        owner = self._owner(spec) if spec.shares else None
        if owner is not None:
            return self._sharer(spec, owner, most)
        size, number = stage.capacity.groups[0].block_size, self.draw.randint(1, 99)
        lengths = (self.draw.randint(1, 9), self.draw.randint(1, 40), self.draw.randint(1, most), size, size + 1, 2 * size, most)
        return self._new(spec, min(most, self.draw.choice(lengths)), number)

    def _new(self, spec: Spec, length: int, number: int) -> Request:
        """Build a request without a prefix; one token can neither be split nor follow others."""
        return self.here.request(
            replace(spec, shares=False) if length > 1 else replace(spec, shares=False, chunk=0, made=0), length, number
        )

    def _owner(self, spec: Spec) -> OracleRow | None:
        """Choose a row whose prompt is computed and read."""
        oracle, size = self.here.stage.play.oracle, self.here.stage.capacity.groups[0].block_size
        under_way = {part.row.request.id for parts in oracle.steps.values() for part in parts}
        rows = [
            row for row in oracle.rows if len(row.request.tokens) >= size and not (row.owed or row.failed or row.request.cached)
        ]
        rows = [row for row in rows if row.request.id not in under_way | self.here.stage.thinned]
        return self.draw.choice(rows) if rows else None

    def _sharer(self, spec: Spec, owner: OracleRow, most: int) -> Request:
        """Build a request behind some of an owner's blocks."""
        stage, request = self.here.stage, owner.request
        size, tail = stage.capacity.groups[0].block_size, self.draw.choice((1, 2, min(9, most)))
        longest = (stage.capacity.max_row_tokens - tail - self.draw.choice(_SPARE)) // size
        count = min(len(request.tokens) // size, longest)
        if count < 1:
            return self._new(spec, 1, 1)
        if request.id not in self.owners:
            self.owners.add(request.id)
            stage.keep_blocks(request.id)
        whole = replace(request, blocks=tuple(map(tuple, owner.blocks)))
        return self.here.sharer(
            replace(spec, adapter=request.adapter), whole, size * self.draw.randint(1, count), min(tail, most)
        )
