"""A random play: rows of every kind start, join, decode, pause, continue, share prefixes, fail and leave."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tgi_conformance.calls import NOTHING, STRANGER, Call, Clear, Decode, Filter, Prefill, Ref
from tgi_conformance.masks import BREAKING, DOOMED, FAILING
from tgi_conformance.oracle import Oracle, OracleRow
from tgi_conformance.scenario_steps import Stage
from tgi_conformance.verdict import NotReached
from tgi_core.backend import SAMPLING, Grant, OutputOptions, Request, Sampling

_RANGED = [spec for spec in SAMPLING if spec.range is not None]
_FIRST = [spec for spec in _RANGED if spec.since == (1, 0)]
_LATER = [spec for spec in _RANGED if spec.since > (1, 0)]
"""Fields that later contracts added. They are drawn with a row's seed, so that the rest of a play does not change."""


def improvise(stage: Stage, draw: Random, calls: int) -> None:
    """Make about `calls` calls, each either legal or one that must be refused."""
    player = _Player(stage, draw)
    player.start(many=True)
    for _ in range(calls):
        actions: list[Callable[[], None]] = [player.start, *[player.decode] * 6, player.read, player.leave, player.refused]
        if draw.random() < 0.03:
            actions = [player.clear]
        try:
            draw.choice(actions)()
        except NotReached:  # no free blocks
            player.clear()
    while player.oracle.steps:
        stage.read(min(player.oracle.steps))


@dataclass(slots=True)
class _Player:
    stage: Stage
    draw: Random
    used: list[Ref] = field(default_factory=lambda: [STRANGER])
    kept: set[int] = field(default_factory=set)
    """Owners of shared prefixes."""
    doomed: int = DOOMED

    @property
    def oracle(self) -> Oracle:
        return self.stage.play.oracle

    def start(self, many: bool = False) -> None:
        """Start new rows, alone or in a live batch."""
        capacity = self.stage.capacity
        beside = (
            self._ready(self.draw.choice(sorted(self.oracle.batches)))
            if self.oracle.batches and self.draw.random() < 0.5
            else NOTHING
        )
        if not beside:
            self._make_room()
        room = min(capacity.max_rows - len(self.oracle.rows), capacity.max_prefill_rows)
        grants = self._grants(self.oracle.batches.get(beside, []))
        left = capacity.max_step_tokens - sum(grant.take for grant in grants) - len(self.oracle.batches.get(beside, []))
        count = min(room, room if many and self.draw.random() < 0.7 else self.draw.choice((1, 1, 2, 3, 8, 40)))
        requests: list[Request] = []
        while len(requests) < count and left > 0:
            request = self._request(min(left, capacity.max_row_tokens - 1, 12 if count > 8 else 10**6))
            requests.append(request)
            left -= request.take
        if requests:
            self.used.append(beside or STRANGER)
            self.stage.launch(*requests, beside=beside, grants=grants)

    def decode(self) -> None:
        """Decode one batch, or merge several."""
        batches = sorted(self.oracle.batches)
        self.draw.shuffle(batches)
        count = self.draw.choice((1, 1, 2, len(batches)))
        chosen = [ready for batch in batches[:count] if batch in self.oracle.batches and (ready := self._ready(batch))]
        chosen = [batch for batch in chosen if batch in self.oracle.batches]
        rows = [row for batch in chosen for row in self.oracle.batches[batch]]
        if rows and len(rows) <= self.stage.capacity.max_step_tokens:
            self.used += chosen
            self.stage.go_on(*chosen, grants=self._grants(rows))

    def read(self) -> None:
        """Read the oldest unread step."""
        if self.oracle.steps:
            self.stage.read(min(self.oracle.steps))

    def leave(self) -> None:
        """Remove some rows of a batch, keeping the rest in any order."""
        if self.oracle.batches:
            batch = self.draw.choice(sorted(self.oracle.batches))
            ids = [row.request.id for row in self.oracle.batches[batch]]
            self._filter(batch, self.draw.sample(ids, self.draw.randint(len(ids) // 2, len(ids))))

    def clear(self) -> None:
        """Clear one batch, or everything."""
        batch = self.draw.choice(sorted(self.oracle.batches)) if self.oracle.batches and self.draw.random() < 0.6 else None
        self.used += sorted(self.oracle.batches) if batch is None else [batch]
        self.stage.clear(batch)

    def refused(self) -> None:
        """Make a call with one mistake. Handles used up lately may still have rows."""
        dead = self.draw.choice(self.used[-self.draw.choice((1, 3, 100)) :])
        calls: list[Call] = [Decode((dead,)), Filter(dead, ()), Clear(dead), Prefill(())]
        if self.oracle.batches:
            batch = self.draw.choice(sorted(self.oracle.batches))
            row = self.draw.choice(self.oracle.batches[batch])
            calls += [
                *(Decode((batch, batch)), Filter(batch, (row.request.id, 555_555)), Decode((batch,), (Grant(555_555, 1),))),
                *(Decode((batch,), (Grant(row.request.id, max(1, row.owed) + 1),)), Prefill((row.request,))),
                Decode((batch, dead)),
            ]
        call = self.draw.choice(calls)
        if self.oracle.expect(call).errors:
            self.stage.play.call(call)

    # rows

    def _make_room(self) -> None:
        while len(self.oracle.steps) >= self.stage.capacity.in_flight or (self.oracle.steps and self.draw.random() < 0.7):
            self.stage.read(min(self.oracle.steps))

    def _ready(self, batch: Ref) -> Ref:
        """Prepare a batch to go on by removing rows that failed or are full. Returns 0 if none are left."""
        self._make_room()
        rows = self.oracle.batches.get(batch, [])
        most = self.stage.capacity.max_row_tokens
        keep = [row.request.id for row in rows if not row.failed and row.done < most]
        return batch if len(keep) == len(rows) and rows else self._filter(batch, keep) if rows else NOTHING

    def _filter(self, batch: Ref, keep: list[int]) -> Ref:
        self.used.append(batch)
        return self.stage.filter(batch, keep)

    def _grants(self, rows: list[OracleRow]) -> list[Grant]:
        """Grant prompts their chunks and rows the blocks they need, sometimes early, and pause some rows."""
        grants, left, long = [], self.stage.capacity.max_step_tokens - len(rows), self.stage.capacity.max_prefill_rows
        for row in rows:
            if row.owed:
                take = min(left, row.owed, self.draw.choice((0, 1, 3, 16, row.owed)))
                long -= take > 1
                if take > 0 and long >= 0:
                    left -= take
                    grants.append(self.stage.grant(row, take))
            elif self.draw.random() < 0.06:
                grants.append(Grant(row.request.id, 0))
            else:
                grant = self.stage.grant(row)
                grants += [grant] if any(grant.blocks) or self.draw.random() < 0.2 else []
        return grants

    # requests

    def _request(self, longest: int) -> Request:
        draw, size = self.draw, self.stage.capacity.groups[0].block_size
        length = max(
            1,
            min(
                longest,
                draw.choice(
                    (
                        draw.randint(1, 9),
                        draw.randint(1, 40),
                        size,
                        size + 1,
                        2 * size,
                        *[draw.randint(1, longest)] * (3 if longest > 300 else 1),
                    )
                ),
            ),
        )
        few = draw.choice((5, 50, self.stage.capabilities.vocab_size))
        prompt = tuple(draw.randrange(few) for _ in range(length))
        masked = self.stage.play.masks is not None and draw.random() < 0.4
        adapter = draw.choice((None, None, *self.stage.capabilities.adapters))
        fields: dict[str, object] = {"masked": masked, "adapter": adapter, "want": self._want()}
        if self.stage.play.setup.masks in (BREAKING, FAILING) and masked and draw.random() < 0.15:
            self.doomed += 1
            fields["id"] = self.doomed
        if draw.random() < 0.2:
            fields["prompt_len"] = draw.randint(0, length)
        take = draw.randint(1, length) if draw.random() < 0.25 else None
        owner = self._owner()
        if owner is not None and length + owner.done // size * size < self.stage.capacity.max_row_tokens:
            return self._sharing(owner, prompt, fields)
        return self.stage.request(prompt, self._sampling(), take, **fields)  # type: ignore[arg-type]

    def _owner(self) -> OracleRow | None:
        """Choose a row whose prompt is computed and read, so that its blocks can be shared."""
        size = self.stage.capacity.groups[0].block_size
        under_way = {part.row.request.id for parts in self.oracle.steps.values() for part in parts}
        rows = [row for row in self.oracle.rows if len(row.request.tokens) >= size and not row.owed and not row.failed]
        rows = [row for row in rows if row.request.id not in under_way | self.stage.thinned and not row.request.cached]
        return self.draw.choice(rows) if rows and self.draw.random() < 0.3 else None

    def _sharing(self, owner: OracleRow, tail: tuple[int, ...], fields: dict[str, object]) -> Request:
        size = self.stage.capacity.groups[0].block_size
        cached = size * self.draw.randint(1, len(owner.request.tokens) // size)
        if owner.request.id not in self.kept:
            self.stage.keep_blocks(owner.request.id)
            self.kept.add(owner.request.id)
        blocks = tuple(tuple(table) for table in owner.blocks)
        whole = Request(owner.request.id, owner.request.tokens, 1, 0, blocks, 1)
        want = fields["want"]
        assert isinstance(want, OutputOptions)
        fields |= {
            "adapter": owner.request.adapter,
            "cached": cached,
            "shares": whole,
            "want": OutputOptions(want.logprobs, want.top_n),
        }
        fields.pop("prompt_len", None)
        return self.stage.request((*owner.request.tokens[:cached], *tail), self._sampling(), **fields)  # type: ignore[arg-type]

    def _want(self) -> OutputOptions:
        return OutputOptions(self.draw.random() < 0.6, self.draw.choice((0, 0, 2, 4)), self.draw.random() < 0.25)

    def _sampling(self) -> Sampling:
        """Draw each field, alone or with others."""
        draw, often = self.draw, self.draw.choice((0.1, 0.5))

        def maybe(value: Any, plain: Any) -> Any:
            return value if draw.random() < often else plain

        bias = tuple((draw.randrange(20), draw.choice((-9.0, 1.5, 6.0))) for _ in range(draw.randint(1, 3)))
        values: dict[str, Any] = {"do_sample": draw.random() < 0.6}
        for spec in _FIRST:
            values[spec.name] = maybe(bias if spec.name == "logit_bias" else draw.choice(spec.tried), spec.neutral)
        values["seed"] = draw.choice((draw.randrange(100), draw.randrange(2**64)))
        draw = Random(values["seed"])
        for spec in _LATER:
            values[spec.name] = maybe(draw.choice(spec.tried), spec.neutral)
            values |= spec.beside if values[spec.name] != spec.neutral else ()
        return Sampling(**values)
