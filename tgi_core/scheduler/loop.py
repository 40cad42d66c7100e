"""The loop that carries the scheduler's turns to the shard and its answers to the streams."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from tgi_core.backend import BackendError, Capacity, RowFaultKind
from tgi_core.client.base import ShardClient
from tgi_core.client.types import ShardInfo, Turn, TurnResult
from tgi_core.scheduler.scheduler import Event, Scheduler, Snapshot
from tgi_core.scheduler.soundness import Soundness
from tgi_core.scheduler.stream import GenerationStream
from tgi_core.scheduler.types import GenerationFailed, GenerationRequest, Limits, RequestFailed, SchedulerOptions

_log = logging.getLogger(__name__)

ObserveTurn = Callable[[Turn, TurnResult, float, float], None]
"""Called after each turn with its seconds, and those of them in which its rows were delivered."""


class SchedulerLoop:
    """Serves requests on one shard. `run` is its only task; everything else is called on the same event loop."""

    def __init__(
        self,
        client: ShardClient,
        info: ShardInfo,
        capacity: Capacity,
        observe: ObserveTurn | None = None,
        options: SchedulerOptions | None = None,
    ) -> None:
        self.info = info
        self.capacity = capacity
        self._client = client
        self._scheduler = Scheduler(info.capabilities, capacity, options)
        self._streams: dict[int, GenerationStream] = {}
        self._observe = observe
        self._work = asyncio.Event()
        self._failure: str | None = None
        self.soundness = Soundness(time.monotonic)
        """Whether what the shard computes is to be trusted; where it is not, the server is not ready."""

    @property
    def limits(self) -> Limits:
        """What one request may be."""
        return self._scheduler.limits

    @property
    def prefix_caching(self) -> bool:
        """Whether prompts are looked up in the cache."""
        return self._scheduler.prefix_caching

    def snapshot(self) -> Snapshot:
        """How full the scheduler is."""
        return self._scheduler.snapshot

    async def healthy(self) -> bool:
        """Whether requests can be served."""
        return self._failure is None and await self._client.healthy()

    def submit(self, request: GenerationRequest) -> GenerationStream:
        """Queue a request. Raises GenerationFailed when the shard is gone, Overloaded when too many wait, ValueError when the
        request can never fit."""
        if self._failure is not None:
            raise GenerationFailed(self._failure)
        key = self._scheduler.add(request)
        stream = GenerationStream(asyncio.get_running_loop().time(), lambda: self._cancel(key))
        self._streams[key] = stream
        self._work.set()
        return stream

    async def run(self) -> None:
        """Serve until cancelled. A shard that is gone fails what runs and what comes; the loop then ends."""
        try:
            while self._failure is None:
                await self._work.wait()
                await self._turn()
                if self._scheduler.idle:
                    self._work.clear()
        finally:
            self._fail_all("the server is shutting down")

    async def _turn(self) -> None:
        clock = asyncio.get_running_loop().time
        for event in self._scheduler.expire():
            self._deliver(event)
        turn = self._scheduler.plan()
        start = clock()
        try:
            result = await self._client.exchange(turn)
        except BackendError as error:
            _log.error("the shard is gone: %s", error)
            self._fail_all(str(error))
            return
        answered = clock()
        self._note_starts(turn, start)
        for event in self._scheduler.complete(result):
            self._deliver(event)
        if self._observe is not None:
            end = clock()
            self._observe(turn, result, end - start, end - answered)
        if self._scheduler.lost is not None:
            self._fail_all(self._scheduler.lost.message)

    def _note_starts(self, turn: Turn, start: float) -> None:
        for started in self._scheduler.started(turn):
            stream = self._streams.get(started.key)
            if stream is not None and stream.started_at is None:
                stream.started_at, stream.cached = start, started.cached

    def _deliver(self, event: Event) -> None:
        ends = event.generation is None or event.generation.finished is not None
        stream = self._streams.pop(event.key, None) if ends else self._streams.get(event.key)
        if stream is None:
            return
        if event.generation is not None:
            stream.push(event.generation)
        elif event.error is not None:
            if isinstance(event.error, RequestFailed) and event.error.kind is RowFaultKind.NAN:
                self.soundness.note_nan()
            stream.fail(event.error)

    def _cancel(self, key: int) -> None:
        self._streams.pop(key, None)
        self._scheduler.cancel(key)
        self._work.set()

    def _fail_all(self, reason: str) -> None:
        self._failure = self._failure or reason
        for event in self._scheduler.fail_all(GenerationFailed(reason)):
            self._deliver(event)
