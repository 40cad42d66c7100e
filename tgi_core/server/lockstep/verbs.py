"""TGI's native verbs, for routers without steps and grants. Every verb blocks until its steps have completed."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

from tgi_core.backend import Capacity
from tgi_core.proto.generate.v3 import generate_pb2 as pb
from tgi_core.server.grpc_host import Model
from tgi_core.server.grpc_tenant import Tenancy
from tgi_core.server.lockstep.rows import Batch, EverythingLost, LockStepRows, VerbFailed, merged
from tgi_core.server.lockstep.text import encode_generation
from tgi_core.wire.types import StepResult

__all__ = ["LockStep", "VerbFailed"]


class LockStep:
    """The batches of one TGI router. Thread-safe: executes one verb at a time. All methods raise VerbFailed."""

    def __init__(self, tenancy: Tenancy, model: Model, capacity: Capacity) -> None:
        self._tenancy, self._model, self._capacity = tenancy, model, capacity
        self._lock = threading.Lock()
        self._rows: LockStepRows | None = None
        self._batches: dict[int, Batch] = {}

    def prefill(self, request: pb.PrefillRequest) -> pb.PrefillResponse:
        """Prefill a new batch; the running batch that it joins generates its next token as well."""
        with self._verb() as rows:
            joined = [self._find(request.cached_batch.id)] if request.HasField("cached_batch") else []
            fresh = rows.admit(request.batch.requests)
            with self._dropping(rows, joined, [*joined, fresh]):
                results = rows.prefill(fresh)
                for batch in joined:
                    results += rows.decode(batch)
            id = request.cached_batch.id if joined else request.batch.id
            whole = merged([*joined, fresh])
            made = _generations(whole, results)
            return pb.PrefillResponse(generations=made, batch=self._settle(rows, id, whole, results), **_timings(results))

    def decode(self, request: pb.DecodeRequest) -> pb.DecodeResponse:
        """Merge the batches and generate one token for every row."""
        with self._verb() as rows:
            if not request.batches:
                raise VerbFailed("Must provide at least one batch")
            joined = [self._find(batch.id) for batch in request.batches]
            whole = merged(joined)
            with self._dropping(rows, joined, [whole]):
                results = rows.decode(whole)
            for batch in request.batches:
                self._batches.pop(batch.id, None)
            made = _generations(whole, results)
            left = self._settle(rows, request.batches[0].id, whole, results)
            return pb.DecodeResponse(generations=made, batch=left, **_timings(results))

    def filter(self, request: pb.FilterBatchRequest) -> pb.FilterBatchResponse:
        """Keep only some rows of a batch, in the given order."""
        with self._verb() as rows:
            batch = self._find(request.batch_id)
            if not request.request_ids:
                raise VerbFailed("Batch must have at least one request")
            known = {row.router_id: id for id, row in batch.rows.items()}
            for missing in set(request.request_ids).difference(known, batch.ended):
                raise VerbFailed(f"Batch ID {request.batch_id} has no request {missing}.")
            kept = [known[id] for id in request.request_ids if id in known]
            rows.drop(batch, set(batch.rows).difference(kept))
            batch.rows = {id: batch.rows[id] for id in kept}
            batch.ended.clear()
            return pb.FilterBatchResponse(batch=self._settle(rows, request.batch_id, batch, []))

    def clear(self, request: pb.ClearCacheRequest) -> pb.ClearCacheResponse:
        """Drop a batch, if it exists; or drop everything, which also takes the shard over from another router."""
        if not request.HasField("id"):
            with self._lock:
                self._take_over()
            return pb.ClearCacheResponse()
        with self._verb() as rows:
            batch = self._batches.pop(request.id, None)
            if batch is not None:
                rows.drop(batch, set(batch.rows))
        return pb.ClearCacheResponse()

    @contextmanager
    def _verb(self) -> Generator[LockStepRows, None, None]:
        """Take a free shard with the router's first verb. A shard that another router holds must be cleared first."""
        with self._lock:
            rows = self._rows
            if rows is None or self._tenancy.tenant is not rows.tenant:
                if self._tenancy.tenant is not None:
                    raise VerbFailed("another router has this shard")
                rows = self._take_over()
            yield rows

    def _take_over(self) -> LockStepRows:
        self._batches = {}
        self._rows = LockStepRows(self._tenancy.admit(), self._model, self._capacity)
        return self._rows

    @contextmanager
    def _dropping(self, rows: LockStepRows, taken: list[Batch], left: list[Batch]) -> Generator[None, None, None]:
        """Consume batches for a verb. If the verb fails, they are lost, as in TGI; otherwise `left` replaces them."""
        try:
            yield
        except EverythingLost:
            self._rows, self._batches = None, {}
            rows.tenant.leave()
            raise
        except VerbFailed:
            self._batches = {id: held for id, held in self._batches.items() if held not in taken}
            whole = merged(left)
            rows.drop(whole, set(whole.rows))
            raise

    def _find(self, id: int) -> Batch:
        if id not in self._batches:
            raise VerbFailed(f"Batch ID {id} not found in cache.")
        return self._batches[id]

    def _settle(self, rows: LockStepRows, id: int, batch: Batch, results: list[StepResult]) -> pb.CachedBatch | None:
        """Drop finished rows; keep the rest under an id."""
        rows.drop_ended(batch, [item for result in results for item in result.generations])
        if not batch.rows:
            self._batches.pop(id, None)
            return None
        self._batches[id] = batch
        return rows.held(batch, id)


def _generations(batch: Batch, results: list[StepResult]) -> list[pb.Generation]:
    made = []
    for item in (item for result in results for item in result.generations):
        row = batch.rows[item.request_id]
        made.append(encode_generation(item, row.router_id, row.item.request.sampling, row.item.request.want.top_n > 0))
    return made


def _timings(results: list[StepResult]) -> dict[str, int]:
    forward = sum(result.forward_ns for result in results)
    sample = sum(result.sample_ns for result in results)
    return {"forward_ns": forward, "decode_ns": sample, "total_ns": forward + sample}
