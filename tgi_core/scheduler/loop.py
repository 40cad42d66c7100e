"""The loop that sends the scheduler's turns to the shard and delivers its results to streams; it survives the loss of the shard."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from tgi_core.backend import BackendError, Capacity, DeviceLost
from tgi_core.client.base import Replaced, ShardClient, ShardGone, Supervisor
from tgi_core.client.grammars import Release, nothing
from tgi_core.grammar import Cost, Grammar
from tgi_core.lifecycle import Lifecycle, Phase
from tgi_core.media.errors import MediaBusy
from tgi_core.media.prompts import MultimodalPrompt, PromptTokens
from tgi_core.scheduler.coalescing import LONGEST_S, OutputCoalescer
from tgi_core.scheduler.device_monitor import DeviceMonitor
from tgi_core.scheduler.drafting import ObserveDrafts
from tgi_core.scheduler.events import Event, Snapshot
from tgi_core.scheduler.replication import Replication
from tgi_core.scheduler.scheduler import Clock, Scheduler
from tgi_core.scheduler.sequence import Sequence
from tgi_core.scheduler.stream import GenerationStream
from tgi_core.scheduler.types import GenerationFailed, GenerationRequest, Limits, RequestFailed, SchedulerOptions
from tgi_core.waiting import any_set
from tgi_core.wire.types import ShardInfo, Turn, TurnResult

_log = logging.getLogger(__name__)

TOKENIZE_TRIES = 4
"""Attempts to tokenize a prompt with images on shards that are lost."""
_NOTICING_S = 10.0
"""Maximum seconds until a loss is known that a call has found: how the shard's process ended is waited for first."""
_EXPIRE_EVERY_S = 0.1

ObserveTurn = Callable[[Turn, TurnResult, float, float], None]
"""Called after each turn, with its duration and the part of it spent on delivering rows, in seconds."""


class SchedulerLoop:
    """Serves requests on one shard. `run` is its only task; everything else is called on the same event loop.

    With a supervisor, a lost shard is replaced: running requests continue on the next one from their tokens, and waiting ones keep
    waiting. Without one, the loop ends when the shard is lost.
    """

    def __init__(
        self,
        client: ShardClient,
        info: ShardInfo,
        capacity: Capacity,
        observe: ObserveTurn | None = None,
        options: SchedulerOptions | None = None,
        supervisor: Supervisor | None = None,
        coalescer: OutputCoalescer | None = None,
        lifecycle: Lifecycle | None = None,
        observe_drafts: ObserveDrafts | None = None,
        replication: Replication | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self.info = info
        self.capacity = capacity
        self.lifecycle = lifecycle or Lifecycle(Phase.SERVING)
        """Receives the loss and the return of the shard."""
        self.ended = asyncio.Event()
        """Set once `run` has ended."""
        self._client = client
        self._replication = replication
        shared = (None, None) if replication is None else (replication.prefixes, replication.queue_limits)
        self._worked: Callable[[], float] = float if replication is None else time.thread_time
        """Returns the CPU seconds of the event loop: other replicas deliver on it while this one waits for its shard."""
        self.scheduler = Scheduler(info.capabilities, capacity, options, clock, observe_drafts, *shared)
        self._streams: dict[int, GenerationStream] = {}
        self._observe = observe
        self._supervisor = supervisor
        self._work = asyncio.Event()
        self._serving = asyncio.Event()
        """Set while there is a shard, as far as is known."""
        self._serving.set()
        self._lost = asyncio.Event()
        """Set once the current shard is known to be lost; the next one gets an event of its own."""
        self._coalescer = coalescer or OutputCoalescer()
        self._release: asyncio.TimerHandle | None = None
        """Delivers the events held back if the next step takes long."""
        self.device_monitor = DeviceMonitor(clock)
        """Whether the shard's results can be trusted; if not, the server is not ready."""
        if supervisor is not None:
            supervisor.watch(self._note_loss)

    @property
    def limits(self) -> Limits:
        """Limits of one request."""
        return self.scheduler.limits

    @property
    def sound(self) -> bool:
        """Whether the shard's results can be trusted."""
        return self.device_monitor.sound

    @property
    def prefix_caching(self) -> bool:
        """Whether prefix caching is enabled."""
        return self.scheduler.prefix_caching

    @property
    def speculates(self) -> bool:
        """Whether requests get drafts."""
        return self.scheduler.speculates

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do, and no step in flight left to read."""
        return not self._work.is_set()

    def snapshot(self) -> Snapshot:
        """Return the scheduler's load."""
        return self.scheduler.snapshot

    async def healthy(self) -> bool:
        """Return whether requests can be served now."""
        return self.lifecycle.shard is Phase.SERVING and await self._client.healthy()

    async def prepare(self, grammar: Grammar, cost: Cost) -> Release:
        """Compile the grammar of a request before it is submitted, so that no step waits for it. Call the release when the request
        has ended. Does nothing while there is no shard. Raises InvalidGrammar, GrammarsBusy."""
        try:
            return await self._client.prepare(grammar, cost)
        except BackendError as error:
            _log.warning("a grammar was not prepared: %s", error)
            return nothing

    async def tokenize_images(self, prompt: MultimodalPrompt) -> PromptTokens:
        """Tokenize a prompt with images; waits for the next shard if this one is lost. Raises ImageRejected, MediaBusy."""
        for _ in range(TOKENIZE_TRIES):
            try:
                return await self.tokenize_images_once(prompt)
            except DeviceLost:
                await any_set((self._serving, self.ended))
                if self.ended.is_set():
                    break
        raise MediaBusy

    async def tokenize_images_once(self, prompt: MultimodalPrompt) -> PromptTokens:
        """Tokenize a prompt with images on the current shard. Raises ImageRejected, MediaBusy; DeviceLost if that is lost and will be
        replaced, once the loss is known."""
        lost = self._lost
        try:
            return await self._client.tokenize_images(prompt)
        except DeviceLost:
            if not self._continues:
                raise MediaBusy from None
            await any_set((lost, self.ended), _NOTICING_S)
            raise
        except BackendError as error:
            _log.warning("a prompt with images was not tokenized: %s", error)
            raise MediaBusy from None

    def submit(self, request: GenerationRequest) -> GenerationStream:
        """Queue a request. Raises GenerationFailed if the shard is lost, Overloaded if too many requests wait, ValueError if the
        request can never fit."""
        if self.ended.is_set():
            raise GenerationFailed(self._end_reason)
        if self.lifecycle.shard is Phase.RESTARTING and not self._continues:
            raise GenerationFailed(f"the shard is being restarted: {self.lifecycle.loss}")
        key = self.scheduler.add(request)
        stream = GenerationStream(asyncio.get_running_loop().time(), lambda: None)
        stream.prediction = self.scheduler.sequences[key].prediction
        self._serve(key, stream)
        return stream

    def adopt(self, sequence: Sequence, stream: GenerationStream) -> None:
        """Continue a request that another shard's loop has given up; `stream` gets the rest of its results."""
        self._serve(self.scheduler.adopt(sequence), stream)

    def give_up(self, key: int) -> tuple[Sequence, GenerationStream] | None:
        """Drop a request that has no row on the shard, for another loop to adopt; None if it is running or gone. All of its results have
        been delivered to its stream."""
        self._hand_out(self._coalescer.flush())
        stream, sequence = self._streams.get(key), self.scheduler.give_up(key)
        if stream is None or sequence is None:
            return None
        self._forget(key)
        return sequence, stream

    def waiting_since(self, key: int) -> float | None:
        """Return when a request was queued, on the event loop's clock; None if its first step has been sent."""
        stream = self._streams.get(key)
        return None if stream is None or stream.started_at is not None else stream.queued_at

    def replace_shard(self, reason: str) -> None:
        """Replace the shard after the step in progress, as if it were lost."""
        self._note_loss(Replaced(reason))

    def _serve(self, key: int, stream: GenerationStream) -> None:
        paused = (lambda stalled: None) if self.info.is_upstream_tgi else (lambda stalled: self._set_paused(key, stalled))
        stream.serve_by(lambda: self._cancel(key), paused)
        self._streams[key] = stream
        if self._replication is not None:
            self._replication.queued(self.scheduler.sequences[key])
        self._work.set()

    async def run(self) -> None:
        """Serve until cancelled, or until the shard is lost for good, which fails all requests."""
        try:
            while True:
                await self._work.wait()
                turn = await self._turn() if self.scheduler.lost is None else None
                if (error := self.scheduler.lost) is not None:
                    await self._replace(error)
                elif self.scheduler.idle:
                    self._work.clear()
                elif turn is not None and turn.empty:
                    await self._rest()
        except ShardGone as gone:
            _log.error("the shard is gone: %s", gone)
            self.lifecycle.failed(str(gone))
        finally:
            self.ended.set()
            self._deliver_all(self.scheduler.fail_all(GenerationFailed(self._end_reason)))

    @property
    def _end_reason(self) -> str:
        return self.lifecycle.loss if self.lifecycle.shard is Phase.FAILED else "the server is shutting down"

    async def _rest(self) -> None:
        """While no client reads, wait until one does, a request arrives or ends, or a deadline may have passed."""
        self._work.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_EXPIRE_EVERY_S):
                await self._work.wait()
        self._work.set()

    async def _turn(self) -> Turn:
        clock = asyncio.get_running_loop().time
        self._deliver_all(self.scheduler.expire())
        turn = self.scheduler.plan()
        if turn.empty:
            return turn
        start, others = clock(), self._worked()
        try:
            result = await self._client.exchange(turn)
        except BackendError as error:
            self._note_loss(error)
            return turn
        answered = clock()
        others = self._worked() - others
        self._note_starts(turn, start)
        self._hand_out(self._coalescer.step(self.scheduler.complete(result)))
        end = clock()
        if result.result is not None:
            if result.result.generations:
                self.device_monitor.note_step()
            self._coalescer.turn(max(0.0, answered - start - others), end - answered)
        self._watch_held()
        if self._observe is not None:
            self._observe(turn, result, end - start, end - answered)
        return turn

    async def _replace(self, error: BackendError) -> None:
        """Replace the shard. Raises ShardGone."""
        reason = str(error)
        if self._supervisor is None:
            raise ShardGone(reason) from error
        if isinstance(error, Replaced):
            _log.warning("the shard is replaced: %s", reason)
        else:
            _log.error("the shard is lost: %s", reason)
        self._report_loss(error)
        if not self._continues and not isinstance(error, Replaced):
            self._deliver_all(self.scheduler.fail_all(GenerationFailed(reason)))
        self._deliver_all(self.scheduler.restart(reason))
        if self._replication is not None:
            self._replication.lost()
        await self._waiting(self._supervisor.restart(error))  # any loss from here on concerns the next shard
        if self.scheduler.lost is None:  # the next shard may already be lost as well
            self._lost = asyncio.Event()
            self._serving.set()
            self.lifecycle.serving()

    async def _waiting(self, restart: Coroutine[Any, Any, None]) -> None:
        """Wait for the next shard, and end requests whose deadline passes in the meantime."""
        restarting = asyncio.ensure_future(restart)
        try:
            while not (await asyncio.wait({restarting}, timeout=_EXPIRE_EVERY_S))[0]:
                self._deliver_all(self.scheduler.expire())
            restarting.result()
        finally:
            if restarting.cancel():
                await asyncio.wait({restarting})

    @property
    def _continues(self) -> bool:
        return self._supervisor is not None and self._supervisor.continues

    def _note_loss(self, error: BackendError) -> None:
        self.scheduler.lose(error)
        self._report_loss(self.scheduler.lost or error)
        self._work.set()

    def _report_loss(self, error: BackendError) -> None:
        """Update the lifecycle at once, so that nothing else has to ask whether there is a shard."""
        self._serving.clear()
        self._lost.set()
        if self._supervisor is None:
            self.lifecycle.failed(str(error))
        elif (self.lifecycle.shard, self.lifecycle.loss) != (Phase.RESTARTING, str(error)):
            self.lifecycle.restarting(str(error), queueing=self._continues)

    def _note_starts(self, turn: Turn, start: float) -> None:
        for started in self.scheduler.started(turn):
            if self._replication is not None:
                self._replication.started(started.key)
            stream = self._streams.get(started.key)
            if stream is not None and stream.started_at is None:
                stream.started_at, stream.cached = start, started.cached

    def _watch_held(self) -> None:
        if self._coalescer.holds and self._release is None:
            self._release = asyncio.get_running_loop().call_later(LONGEST_S, self._let_go)
        elif self._release is not None and not self._coalescer.holds:
            self._release.cancel()
            self._release = None

    def _let_go(self) -> None:
        self._release = None
        self._hand_out(self._coalescer.flush())

    def _deliver_all(self, events: list[Event]) -> None:
        """Deliver events that do not come from a step, after the pending events of steps."""
        if events:
            self._hand_out(self._coalescer.flush())
            self._hand_out(events)

    def _hand_out(self, events: Iterable[Event]) -> None:
        streams = self._streams
        for event in events:
            generation = event.generation
            if generation is None or generation.finished is not None:
                self._deliver(event)
            elif (stream := streams.get(event.key)) is not None:
                stream.push(generation)

    def _deliver(self, event: Event) -> None:
        """Deliver the last event of a request."""
        stream = self._forget(event.key)
        if stream is None:
            return
        if event.generation is not None:
            stream.push(event.generation)
        elif event.error is not None:
            if isinstance(event.error, RequestFailed):
                self.device_monitor.note_failed(event.error.kind)
            stream.fail(event.error)

    def _set_paused(self, key: int, paused: bool) -> None:
        (self.scheduler.pause if paused else self.scheduler.resume)(key)
        self._work.set()

    def _forget(self, key: int) -> GenerationStream | None:
        stream = self._streams.pop(key, None)
        if stream is not None and self._replication is not None:
            self._replication.ended(key)
        return stream

    def _cancel(self, key: int) -> None:
        self._forget(key)
        self.scheduler.cancel(key)
        self._work.set()
