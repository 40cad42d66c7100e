"""Rows of a TGI router in the model server: their blocks, and the steps that each verb takes.

A TGI router reserves blocks for prompt and output up front and lists them in each request. The shard uses only the size of that
reservation and allocates blocks itself. So requests without blocks (generate.v2, health checks), block 0 and models with several
kinds of cache need no special cases.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from tgi_core.backend import Capacity, Feature, Grant
from tgi_core.blocks import CacheBlocks
from tgi_core.proto.generate.v3 import generate_pb2 as pb
from tgi_core.server.grpc_host import Model
from tgi_core.server.grpc_tenant import Superseded, Tenant
from tgi_core.server.lockstep.text import input_ids, max_new_tokens, shard_request
from tgi_core.wire.types import (
    Bookkeeping,
    Clear,
    Decode,
    Filter,
    Generation,
    Prefill,
    ShardRequest,
    StepResult,
    StepVerb,
    Turn,
)


class VerbFailed(Exception):
    """A verb of a TGI router failed. The message is sent to the router."""


class EverythingLost(VerbFailed):
    """A step failed, and all batches of the shard are lost."""


@dataclass(slots=True, eq=False)
class Row:
    """A request with the id that the router assigned to it."""

    router_id: int
    item: ShardRequest


@dataclass(slots=True, eq=False)
class Batch:
    """Rows by the shard's request ids, and the model server's batches that hold them."""

    rows: dict[int, Row] = field(default_factory=dict)
    names: dict[int, list[int]] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    """Router's ids of finished rows, which a filter may still name."""


def merged(batches: Sequence[Batch]) -> Batch:
    """Merge two sets of rows into one batch."""
    whole = Batch()
    for batch in batches:
        whole.rows |= batch.rows
        whole.names |= batch.names
        whole.ended |= batch.ended
    return whole


class LockStepRows:
    """Executes the steps of one tenant. All methods raise VerbFailed."""

    def __init__(self, tenant: Tenant, model: Model, capacity: Capacity) -> None:
        self.tenant = tenant
        self._model, self._capacity = model, capacity
        self._blocks = CacheBlocks(capacity.groups)
        self._ids, self._steps = itertools.count(1), itertools.count(1)

    def admit(self, requests: Sequence[pb.Request]) -> Batch:
        """Create rows with blocks for prompt and output: all of them, or none."""
        batch = Batch()
        try:
            for request in requests:
                row = self._row(request)
                batch.rows[row.item.id] = row
        except ValueError as error:
            self.drop(batch, set(batch.rows))
            raise VerbFailed(str(error)) from error
        return batch

    def prefill(self, batch: Batch) -> list[StepResult]:
        """Prefill all rows, in as many steps as needed."""
        return [result for rows in self._groups(list(batch.rows.values())) for result in self._prefill_group(batch, rows)]

    def decode(self, batch: Batch) -> list[StepResult]:
        """Generate one token for every row; the shard's batches are merged."""
        return [self._decode(batch, tuple(batch.names))] if batch.names else []

    def drop(self, batch: Batch, gone: set[int]) -> None:
        """Remove rows from the shard's batches and free their blocks."""
        verbs: list[Bookkeeping] = []
        for name, ids in list(batch.names.items()):
            keep = [id for id in ids if id not in gone]
            if not keep:
                del batch.names[name]
                verbs.append(Clear(name))
            elif len(keep) < len(ids):
                batch.names[name] = keep
                verbs.append(Filter(name, tuple(keep)))
        if verbs:
            self._exchange(Turn(tuple(verbs)))
        for id in gone:
            self._blocks.release(batch.rows.pop(id).item.request.blocks)

    def drop_ended(self, batch: Batch, generations: Sequence[Generation]) -> None:
        """Drop the rows that finished with these generations."""
        ended = {item.request_id for item in generations if item.finished is not None}
        batch.ended.update(batch.rows[id].router_id for id in ended)
        if ended:
            self.drop(batch, ended)

    def held(self, batch: Batch, id: int) -> pb.CachedBatch:
        """Return the batch descriptor for the router."""
        size = self._capacity.groups[0].block_size
        return pb.CachedBatch(
            id=id,
            request_ids=[row.router_id for row in batch.rows.values()],
            size=len(batch.rows),
            max_tokens=sum(len(row.item.request.blocks[0]) * size for row in batch.rows.values()),
            current_tokens=len(batch.rows),
        )

    def _row(self, request: pb.Request) -> Row:
        """Create the row of a request. Raises ValueError if this shard cannot serve it."""
        ids, info = input_ids(request, self._model.tokenizer), self._model.server.info
        # the last token is not fed back into the model, so it needs no position
        positions = len(ids) + max_new_tokens(request) - 1
        if not ids or positions >= self._capacity.max_row_tokens:
            raise ValueError(f"a request of {len(ids)} + {max_new_tokens(request)} tokens; {self._capacity.max_row_tokens} fit")
        take = min(len(ids), self._capacity.max_step_tokens)
        if take < len(ids) and Feature.CHUNKED_PREFILL not in info.capabilities.features:
            raise ValueError(f"a prompt of {len(ids)} tokens; {take} fit into a step")
        counts = self._blocks.missing(tuple([] for _ in self._capacity.groups), positions)
        if not self._blocks.fits(counts):
            raise ValueError("the cache has no room for the batch")
        made = shard_request(request, next(self._ids), ids, take, info)
        return Row(request.id, replace(made, request=replace(made.request, blocks=self._blocks.allocate(counts))))

    def _groups(self, rows: list[Row]) -> Iterator[list[Row]]:
        """Group rows whose first chunks fit into one step together."""
        group: list[Row] = []
        for row in rows:
            tokens = sum(each.item.request.take for each in group) + row.item.request.take
            if group and (tokens > self._capacity.max_step_tokens or len(group) >= self._capacity.max_prefill_rows):
                yield group
                group = []
            group.append(row)
        if group:
            yield group

    def _prefill_group(self, batch: Batch, rows: list[Row]) -> Iterator[StepResult]:
        """Prefill a group of rows. A prompt longer than a step is a group of its own."""
        step, first = next(self._steps), rows[0].item.request
        yield self._run(Prefill(step, tuple(row.item for row in rows)), batch, [row.item.id for row in rows])
        done = first.take
        while done < len(first.tokens):
            take = min(self._capacity.max_step_tokens, len(first.tokens) - done)
            result = self._decode(batch, (step,), (Grant(first.id, take),))
            step, done = result.step, done + take
            yield result

    def _decode(self, batch: Batch, names: tuple[int, ...], grants: tuple[Grant, ...] = ()) -> StepResult:
        ids = [id for name in names for id in batch.names[name]]
        return self._run(Decode(next(self._steps), names, grants), batch, ids)

    def _run(self, verb: StepVerb, batch: Batch, ids: list[int]) -> StepResult:
        result = self._exchange(Turn(launch=verb, read=verb.step))
        for name in verb.batches if isinstance(verb, Decode) else ():
            del batch.names[name]
        batch.names[verb.step] = ids
        for item in result.generations:
            if item.fault is not None:  # TGI's messages have no field for the failure of one row
                raise VerbFailed(f"request {batch.rows[item.request_id].router_id}: {item.fault.message}")
        return result

    def _exchange(self, turn: Turn) -> StepResult:
        try:
            done = self.tenant.exchange(turn)
        except Superseded as error:
            raise EverythingLost(str(error)) from error
        if done.refused is not None:
            raise VerbFailed(done.refused.message)
        if done.result is not None and done.result.fault is not None:
            raise EverythingLost(done.result.fault.message)
        return done.result or StepResult(0)
